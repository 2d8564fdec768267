"""The supervisor's spare workers: one for each kind that it runs, to take the place of those that die.

Starting an interpreter and importing a host app takes longer than all the rest of a restart. A spare has done
both. Where it can be forked from, it stays and is forked from, so that any number of deaths finds it ready;
else it becomes the worker itself, and another one follows. It costs memory and nothing else, so there are
few, and none where memory is what is short: on `gpu`. What it imported and read may be out of date, so it is
only for a worker that died and had the same.

One that is dismissed is forked from no more, and ends when the last process is over that was.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from queue_workflows.host.processes.fork_server import MARK_ROOM, ForkServerLine, mark_below
from queue_workflows.host.processes.launcher import Child, Started, spawn, watch
from queue_workflows.roles.loop import Waiter
from queue_workflows.roles.supervisor.standby import SOCKET
from queue_workflows.roles.tree_end_thread import Sweep

_log = logging.getLogger(__name__)

K = TypeVar("K")
MOST: Final = 4
# So long after the start of a worker without one: a spare is not to compete with it for the processor.
QUIET_S: Final = 3.0
# How long a spare may import until it is no nearer to work than a new process.
_COMES_WITHIN_S: Final = 5.0
# After a start that failed, for want of memory or processes.
_AGAIN_AFTER_S: Final = 60.0


@dataclass
class _Spare:
    """`stands_by` once it has said so, `obstacle` is why it cannot be forked from; `fd` tells its end."""

    child: Child
    line: ForkServerLine
    fd: int
    started_at: float
    is_heard: bool = False
    stands_by: bool = False
    obstacle: str | None = None


class Spares(Generic[K]):
    """The spares, at most one for each key; all calls come from the thread that spawns."""

    def __init__(self, keys: Iterable[K], command_for: Callable[[K], Sequence[str]], waiter: Waiter) -> None:
        self._keys = list(dict.fromkeys(keys))[:MOST]
        self._command_for = command_for
        self._waiter = waiter
        self._spares: dict[K, _Spare] = {}
        self._due_at: dict[K, float] = {}
        self._unforkable: set[K] = set()
        self._retired: list[_Spare] = []
        self._dismissed: list[Sweep] = []

    def started(self, now: float) -> None:
        """A worker was started, perhaps from a spare: one that is missing waits a little."""
        for key in self._keys:
            self._due_at.setdefault(key, now + QUIET_S)

    def tend(self, now: float) -> None:
        """Start those that are missing and due, and wait for those that have been ended."""
        for spare in [one for one in self._retired if not one.line.living]:
            self._retired.remove(spare)
            self._let_go(spare)
            self._end(spare.child)
        self._bury()
        for key in self._keys:
            if key not in self._spares and now >= self._due_at.setdefault(key, now + QUIET_S):
                self._due_at[key] = now + _AGAIN_AFTER_S
                with suppress(OSError):
                    self._start(key)

    def is_coming(self, key: K) -> bool:
        """Whether the spare of this kind is about to stand by, which is nearer to work than a new process.

        A spare that hangs in its imports is not waited for.
        """
        spare = self._spares.get(key)
        if spare is None or spare.stands_by:
            return False
        return time.monotonic() - spare.started_at < _COMES_WITHIN_S

    def can_fork(self, key: K) -> bool:
        """Whether workers of this kind may be forked from a spare, as far as is known."""
        return key not in self._unforkable

    def take(self, key: K, environ: Mapping[str, str]) -> Started | None:
        """A worker of this kind with these variables besides; None if there is no spare."""
        spare = self._spares.get(key)
        if spare is None or not spare.stands_by:
            return None
        if spare.obstacle is None:
            forked = spare.line.fork(environ, mark_below(spare.child.mark))
            if forked is not None:
                return forked
        self._forget(key)
        if not (spare.line.is_lost or spare.line.living) and spare.line.become(environ):
            self._let_go(spare)
            return spare.child
        self._retire(spare)
        return None

    def dismiss(self, key: K) -> None:
        """Do without the spare of this kind. Another one follows."""
        spare = self._forget(key)
        if spare is not None:
            self._retire(spare)

    def dismiss_all(self) -> None:
        """Do without spares, for good."""
        for key in self._keys:
            self.dismiss(key)
        self._keys = []

    def close(self, *, within_s: float) -> None:
        """Wait for those that have been ended, and for what they had started, but no longer than that."""
        until = time.monotonic() + within_s
        for spare in self._retired:
            # What was forked from it and lives all the same is asked to stop by the kernel.
            self._let_go(spare)
            self._end(spare.child)
        self._retired = []
        for sweep in self._dismissed:
            sweep.join(max(0.0, until - time.monotonic()))
        self._bury()

    def _start(self, key: K) -> None:
        with ExitStack() as on_failure:
            own, given = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with given:
                on_failure.callback(own.close)
                told = {**os.environ, SOCKET: str(given.fileno())}
                child = spawn(
                    self._command_for(key),
                    env=told,
                    pass_fds=[given.fileno()],
                    with_last_word=True,
                    mark_room=MARK_ROOM,
                )
            on_failure.callback(self._end, child)
            fd = watch(child)
            on_failure.pop_all()
        spare = self._spares[key] = _Spare(child, ForkServerLine(own), fd, time.monotonic())
        self._waiter.watch(fd, lambda: self._ended(spare))
        self._waiter.watch(spare.line.fileno(), lambda: self._heard(spare))

    def _heard(self, spare: _Spare) -> None:
        """Note that a spare has imported all it needs; its end, which is heard here too, is for `_ended`."""
        if spare.is_heard:
            return
        spare.is_heard = True
        self._waiter.forget(spare.line.fileno())
        greeting = spare.line.greeting()
        if greeting is None:
            return
        spare.stands_by, spare.obstacle = True, greeting["obstacle"]
        if spare.obstacle:
            self._unforkable.update(key for key, one in self._spares.items() if one is spare)
        why = f" for one death: {spare.obstacle}" if spare.obstacle else ""
        _log.info("a spare stands by, pid %d%s", spare.child.pid, why)

    def _ended(self, spare: _Spare) -> None:
        """Let go of a spare that ended by itself; if it never stood by, none follows: it would end too."""
        spare.line.lose()
        for key in [key for key, one in self._spares.items() if one is spare]:
            self._forget(key)
            if spare.stands_by:
                _log.warning("the spare with pid %d ended by itself", spare.child.pid)
            else:
                self._keys.remove(key)
                _log.warning("the spare with pid %d ended by itself; there will be no other", spare.child.pid)
        self._let_go(spare)
        # What was forked from it has been asked to stop by the kernel; to sweep now would kill it.
        if spare not in self._retired:
            self._retire(spare)

    def _retire(self, spare: _Spare) -> None:
        """Keep a spare for as long as anything forked from it lives, which would die with it."""
        self._retired.append(spare)
        self._waiter.ring()

    def _end(self, child: Child) -> None:
        """End a spare, and what its imports may have started."""
        sweep = Sweep(child, self._waiter.ring)
        self._dismissed.append(sweep)
        sweep.start()

    def _bury(self) -> None:
        self._dismissed = [sweep for sweep in self._dismissed if not sweep.over or sweep.child.poll() is None]

    def _forget(self, key: K) -> _Spare | None:
        self._due_at.pop(key, None)
        return self._spares.pop(key, None)

    def _let_go(self, spare: _Spare) -> None:
        if spare.fd < 0:
            return
        self._waiter.forget(spare.fd)
        if not spare.is_heard:
            spare.is_heard = True
            self._waiter.forget(spare.line.fileno())
        os.close(spare.fd)
        spare.fd = -1
        spare.line.close()
