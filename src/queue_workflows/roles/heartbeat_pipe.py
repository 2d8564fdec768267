"""How a process that is no worker tells its supervisor that it gets on: a byte a second in a pipe.

It holds no jobs, so nobody but its supervisor has to know, and no database is needed for that: one that is
away makes nobody look dead.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from typing import Final

_log = logging.getLogger(__name__)

PIPE: Final = "_QWF_LIFELINE"
EVERY_S: Final = 1.0
_MANY: Final = 65_536


class HeartbeatPipe:
    """The supervisor's end; `fd` is the other one, the child's to inherit."""

    def __init__(self, now: float, *, stale_s: float, first_s: float) -> None:
        self._pipe, self.fd = os.pipe()
        os.set_blocking(self._pipe, False)
        os.set_blocking(self.fd, False)
        self._stale_s = stale_s
        self._first_s = first_s
        self._is_heard = False
        self._since = self._looked_at = now

    def handed_over(self) -> None:
        """Close our copy of the child's end: the child has it."""
        os.close(self.fd)

    def judge(self, now: float) -> str | None:
        """Why the child has to be killed, if it has; silence is counted only while we look ourselves."""
        away_s, self._looked_at = now - self._looked_at, now
        heard = b""
        with suppress(BlockingIOError):
            heard = os.read(self._pipe, _MANY)
        if heard or away_s > self._stale_s / 2:
            self._since, self._is_heard = now, self._is_heard or bool(heard)
        silence = now - self._since
        if self._is_heard:
            return f"no sign of life for {silence:.0f} s" if silence > self._stale_s else None
        return f"no sign of life within {self._first_s:g} s" if silence > self._first_s else None

    def close(self) -> None:
        """Close the pipe: the child has ended."""
        os.close(self._pipe)


@contextmanager
def told(
    is_fine: Callable[[], bool], see_to: Callable[[], object], environ: MutableMapping[str, str] = os.environ
) -> Iterator[None]:
    """Call `see_to` each second meanwhile, so that nothing is stuck, and tell the supervisor, if any."""
    given = environ.pop(PIPE, "")
    pipe = int(given) if given.isdecimal() else None
    if pipe is not None:
        os.set_inheritable(pipe, False)
    over = threading.Event()

    def tell() -> None:
        while True:
            try:
                see_to()
            except Exception:
                _log.exception("this process cannot look after itself")
            if pipe is not None and is_fine():
                # A supervisor that is gone or does not look is told nothing.
                with suppress(OSError):
                    os.write(pipe, b".")
            if over.wait(EVERY_S):
                return

    thread = threading.Thread(target=tell, name="qwf-heartbeat-pipe", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
