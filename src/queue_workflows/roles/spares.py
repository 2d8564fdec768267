"""The supervisor's spare workers: one for each kind that it runs, to take the place of one that died.

Starting an interpreter and importing a host app takes longer than all the rest of a restart. A spare has done
both. It costs memory and nothing else, so there are few, and none where memory is what is short: on `gpu`.
What it imported and read may be out of date, so it is only for who died and had the same.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from queue_workflows.host.launcher import Child, spawn, watch
from queue_workflows.roles.loop import Waiter
from queue_workflows.roles.standby import PIPES, WAITS
from queue_workflows.roles.sweep import Sweep

_log = logging.getLogger(__name__)

K = TypeVar("K")
MOST: Final = 4
# Once nothing was started for so long: a spare is not to compete with the workers for the processor.
QUIET_S: Final = 3.0
# After a start that failed, for want of memory or processes.
_AGAIN_AFTER_S: Final = 60.0


@dataclass
class _Spare:
    """`pipe` tells it its name, `waits` says that it waits for one, `fd` that it ended."""

    child: Child
    pipe: int
    waits: int | None
    fd: int


class Spares(Generic[K]):
    """At most one for each key; all calls come from the thread that spawns."""

    def __init__(self, keys: Iterable[K], command_for: Callable[[K], Sequence[str]], waiter: Waiter) -> None:
        self._keys = list(dict.fromkeys(keys))[:MOST]
        self._command_for = command_for
        self._waiter = waiter
        self._spares: dict[K, _Spare] = {}
        self._due_at: dict[K, float] = {}
        self._dismissed: list[Sweep] = []

    def started(self, now: float) -> None:
        """A worker was started, perhaps from a spare: wait a little."""
        for key in self._keys:
            self._due_at[key] = now + QUIET_S

    def tend(self, now: float) -> None:
        """Start those that are missing and due, and wait for those that have been ended."""
        self._bury()
        for key in self._keys:
            if key not in self._spares and now >= self._due_at.get(key, now + QUIET_S):
                self._due_at[key] = now + _AGAIN_AFTER_S
                with suppress(OSError):
                    self._start(key)

    def take(self, key: K, name: str) -> Child | None:
        """Give the spare of this kind a name and its work; None if there is none."""
        spare = self._forget(key)
        if spare is None:
            return None
        try:
            os.write(spare.pipe, name.encode("ascii"))
        except OSError:
            self._end(spare.child)
            return None
        finally:
            os.close(spare.pipe)
        return spare.child

    def dismiss(self, key: K) -> None:
        """End the spare of this kind; it holds nothing. Another one follows."""
        spare = self._forget(key)
        if spare is not None:
            os.close(spare.pipe)
            self._end(spare.child)

    def dismiss_all(self) -> None:
        """End them all, for good."""
        for key in self._keys:
            self.dismiss(key)
        self._keys = []

    def close(self, *, within_s: float) -> None:
        """Wait for those that have been ended, and for what they had started, but no longer than that."""
        until = time.monotonic() + within_s
        for sweep in self._dismissed:
            sweep.join(max(0.0, until - time.monotonic()))
        self._bury()

    def _start(self, key: K) -> None:
        with ExitStack() as on_failure, ExitStack() as theirs:
            named, pipe = os.pipe()
            theirs.callback(os.close, named)
            on_failure.callback(os.close, pipe)
            waits, waiting = os.pipe()
            theirs.callback(os.close, waiting)
            on_failure.callback(os.close, waits)
            told = {**os.environ, PIPES: f"{named},{waiting}"}
            child = spawn(self._command_for(key), env=told, pass_fds=[named, waiting], with_last_word=True)
            on_failure.callback(self._end, child)
            fd = watch(child)
            on_failure.pop_all()
        self._spares[key] = _Spare(child, pipe, waits, fd)
        self._waiter.watch(fd, lambda: self._ended(key))
        self._waiter.watch(waits, lambda: self._heard(key))

    def _heard(self, key: K) -> None:
        """It has imported what there is to import; its end, which is heard here too, is told by the other."""
        spare = self._spares.get(key)
        if spare is None or spare.waits is None:
            return
        if os.read(spare.waits, len(WAITS)):
            _log.info("a spare stands by, pid %d", spare.child.pid)
        self._hear_no_more(spare)

    def _ended(self, key: K) -> None:
        """By itself, which another one would do as well: its kind goes without from here on."""
        spare = self._forget(key)
        if spare is not None:
            os.close(spare.pipe)
            self._keys.remove(key)
            _log.warning("the spare with pid %d ended by itself; there will be no other", spare.child.pid)
            self._end(spare.child)

    def _end(self, child: Child) -> None:
        """It, and what its imports may have started."""
        sweep = Sweep(child, self._waiter.ring)
        self._dismissed.append(sweep)
        sweep.start()

    def _bury(self) -> None:
        self._dismissed = [sweep for sweep in self._dismissed if not sweep.over or sweep.child.poll() is None]

    def _forget(self, key: K) -> _Spare | None:
        spare = self._spares.pop(key, None)
        if spare is not None:
            self._waiter.forget(spare.fd)
            os.close(spare.fd)
            self._hear_no_more(spare)
        return spare

    def _hear_no_more(self, spare: _Spare) -> None:
        if spare.waits is not None:
            self._waiter.forget(spare.waits)
            os.close(spare.waits)
            spare.waits = None
