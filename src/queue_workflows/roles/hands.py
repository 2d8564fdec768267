"""The threads that run a crew's jobs: claimed jobs go in, and come out as jobs that have ended.

                 ┌─ a thread ── sync: runs it            ┐
    put ─> inbox ┼─ a thread ── async: stands for it     ├─> ended ─> the main thread writes it
                 └─ a thread      while the loop runs it ┘
      <── take_back ── what no thread has begun

Nothing here knows the database. What a job's function raises is its own failure, `SystemExit` and
`KeyboardInterrupt` included: these threads have no other way to end than `close`.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue

from queue_workflows.jobs.guards import HeldJob
from queue_workflows.roles.shared_loop import at_hand

_log = logging.getLogger(__name__)


class Hands:
    """At most `most` jobs at once; `perform` writes into a held job how it ended, and raises nothing."""

    def __init__(
        self,
        most: int,
        *,
        perform: Callable[[HeldJob], None],
        ring: Callable[[], None],
    ) -> None:
        """`ring` is called by a thread whose job has ended while the main thread waits for one."""
        self._most = most
        self._perform = perform
        self._ring = ring
        self._inbox: SimpleQueue[HeldJob | None] = SimpleQueue()
        self._ended: list[HeldJob] = []
        self._threads: list[threading.Thread] = []
        self._is_awaited = False
        # With how many waiting, or fewer, the end of a job is worth a ring.
        self._rings_at = sys.maxsize

    @property
    def waiting(self) -> int:
        """How many no thread has begun."""
        return self._inbox.qsize()

    def put(self, jobs: Iterable[HeldJob], in_hand: int) -> None:
        """Have these run; `in_hand` is how many there are with them, to start no more threads than those."""
        for held in jobs:
            self._inbox.put(held)
        while len(self._threads) < min(in_hand, self._most):
            thread = threading.Thread(
                target=self._work, name=f"qwf-job-{len(self._threads) + 1}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def take_back(self) -> list[HeldJob]:
        """What no thread has begun, and none will."""
        back: list[HeldJob] = []
        try:
            while True:
                held = self._inbox.get_nowait()
                if held is not None:
                    back.append(held)
        except Empty:
            return back

    def ended(self) -> list[HeldJob]:
        """Those that have ended since the last time."""
        seen = self._ended
        # As many as there are now: threads append meanwhile.
        ended = seen[: len(seen)]
        del seen[: len(ended)]
        return ended

    def awaited(self, wait: Callable[[], None]) -> None:
        """Wait, until a job ends at the latest; at once if one has ended already."""
        self._is_awaited = True
        try:
            # Looked at after saying so: a thread looks the other way round.
            if not self._ended:
                wait()
        finally:
            self._is_awaited = False

    def gathered(self, wait: Callable[[], None], *, waiting: int) -> None:
        """Wait, until a job has ended with no more than so many waiting."""
        self._rings_at, self._is_awaited = waiting, True
        try:
            if self.waiting > waiting:
                wait()
        finally:
            self._rings_at, self._is_awaited = sys.maxsize, False

    def close(self) -> None:
        """End the threads; none of them is at a job."""
        for _ in self._threads:
            self._inbox.put(None)

    def _work(self) -> None:
        get, perform, ended, now = self._inbox.get, self._perform, self._ended, time.monotonic
        while (held := get()) is not None:
            held.started = now()
            at_hand.set(held)
            perform(held)
            held.ended = now()
            held.is_ending = True
            ended.append(held)
            if self._is_awaited and self._inbox.qsize() <= self._rings_at:
                # Once: to ring is to let others run, so that nobody would get on.
                self._is_awaited = False
                self._ring()
