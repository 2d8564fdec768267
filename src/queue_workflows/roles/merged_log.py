"""The output of several children as one log: whole lines, each with the name of its child in front."""

from __future__ import annotations

import os
import selectors
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Self

from queue_workflows.db.listen.join_thread import INTERRUPT, Wakeup

_CHUNK: Final = 65_536
# Longer lines are broken, so that a child that never ends one does not fill our memory.
LONGEST_LINE: Final = 65_536


@dataclass
class _Source:
    """A pipe that a child, and whatever it starts, writes into."""

    name: str
    begun: bytearray = field(default_factory=bytearray)


class MergedLog:
    """Hands out pipes, and writes what comes out of them by `write(name, line)`, from a thread of its own.

    `lost` is called when writing fails: nobody reads any more, and the children had better stop.
    """

    def __init__(self, write: Callable[[str, str], None], lost: Callable[[], None]) -> None:
        self._write = write
        self._lost = lost
        self._selector = selectors.DefaultSelector()
        self._bell = Wakeup()
        self._selector.register(self._bell.fileno(), selectors.EVENT_READ, None)
        self._new: list[tuple[int, _Source]] = []
        self._guard = threading.Lock()
        self._closing = False
        self._broken = False
        self._thread = threading.Thread(target=self._run, name="qwf-log", daemon=True)

    @contextmanager
    def outlet(self, name: str) -> Iterator[int]:
        """Where to let a child of this name write; ours no more once it is started."""
        readable, writable = os.pipe()
        try:
            yield writable
        except BaseException:
            os.close(readable)
            raise
        finally:
            os.close(writable)
        with self._guard:
            self._new.append((readable, _Source(name)))
        self._bell.ring(INTERRUPT)

    def _run(self) -> None:
        while not (self._closing and len(self._selector.get_map()) == 1 and not self._new):
            for key, _ in self._selector.select():
                if key.data is None:
                    self._bell.answer()
                else:
                    self._read(key.fd, key.data)
            with self._guard:
                new, self._new = self._new, []
            for readable, source in new:
                self._selector.register(readable, selectors.EVENT_READ, source)

    def _read(self, readable: int, source: _Source) -> None:
        chunk = os.read(readable, _CHUNK)
        source.begun += chunk
        *lines, rest = source.begun.split(b"\n")
        if not chunk or len(rest) > LONGEST_LINE:
            lines, rest = [*lines, *([rest] if rest else [])], bytearray()
        for line in lines:
            self._say(source.name, line)
        source.begun = bytearray(rest)
        if not chunk:
            self._selector.unregister(readable)
            os.close(readable)

    def _say(self, name: str, line: bytes | bytearray) -> None:
        """What cannot be written is read all the same, so that no child waits for a full pipe."""
        if self._broken:
            return
        try:
            self._write(name, line.decode("utf-8", "replace").rstrip("\r"))
        except (OSError, ValueError):
            self._broken = True
            self._lost()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the last lines; not for long, as a child's leftover may hold its pipe open."""
        self._closing = True
        self._bell.ring(INTERRUPT)
        self._thread.join(2.0)
