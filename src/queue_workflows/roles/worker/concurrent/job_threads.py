"""The threads that run the jobs of a worker: claimed jobs go in, and come out as jobs that have ended.

                 ┌─ a thread ── sync: runs it            ┐
    put ─> inbox ┼─ a thread ── async: stands for it     ├─> ended ─> the main thread writes it
                 └─ a thread      while the loop runs it ┘
      <── take_back ── what no thread has begun

Nothing here knows the database. What a job's function raises is its own failure, `SystemExit` and
`KeyboardInterrupt` included: these threads have no other way to end than `close`. One that a job has left no
memory to begin in is started anew: the main thread waits for none of them.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Final

from queue_workflows import clock as time
from queue_workflows.engine.execution.guards import HeldJob
from queue_workflows.engine.execution.log_fields import at_hand
from queue_workflows.thread_start import start_thread

_log = logging.getLogger(__name__)

# A thread that did not take its first step by then is taken for one that never will.
BEGINS_WITHIN_S: Final = 1.0


class JobThreads:
    """Threads for `most` jobs at once; `perform` writes into a held job how it ended, and raises nothing."""

    def __init__(
        self,
        most: int,
        *,
        perform: Callable[[HeldJob], None],
        ring: Callable[[], None],
        begins: Callable[[int, int], None] = lambda _place, _job_id: None,
    ) -> None:
        """`ring` is called by a thread at the end of its job while the main thread waits for one.

        `begins` is told which thread, by its number, begins which job, by its id.
        """
        self._most = most
        self._perform = perform
        self._ring = ring
        self._begins = begins
        self._inbox: deque[HeldJob | None] = deque()
        self._tokens: SimpleQueue[None] = SimpleQueue()
        self._ended: list[HeldJob] = []
        self._places = 0
        # When a thread was started for a place, until it has begun there: only the last one may.
        self._starting: dict[int, float] = {}
        self._beginning = threading.Lock()
        self._is_awaited = False
        # With how many waiting, or fewer, the end of a job is worth a ring.
        self._rings_at = sys.maxsize

    @property
    def waiting(self) -> int:
        """How many jobs no thread has begun."""
        return len(self._inbox)

    def put(self, jobs: Iterable[HeldJob], in_hand: int) -> None:
        """Have these jobs run; `in_hand` is how many there are with them: no more threads are started."""
        for held in jobs:
            self._inbox.append(held)
            self._tokens.put(None)
        while self._places < min(in_hand, self._most):
            self._places += 1
            self._start(self._places - 1)

    def _replace_lost(self) -> None:
        """Start anew the threads that had no memory to begin in; cheap where there are none."""
        if self._starting:
            late = time.monotonic() - BEGINS_WITHIN_S
            for place in [place for place, at in list(self._starting.items()) if at < late]:
                _log.warning("the thread of jobs %d did not begin: it is started anew", place + 1)
                self._start(place)

    def _start(self, place: int) -> None:
        with self._beginning:
            at = self._starting[place] = time.monotonic()
        start_thread(partial(self._begin, place, at), f"qwf-job-{place + 1}")

    def _begin(self, place: int, at: float) -> None:
        with self._beginning:
            if self._starting.get(place) != at:
                return
            del self._starting[place]
        self._work(place)

    def take_back(self) -> list[HeldJob]:
        """Take back the jobs that no thread has begun; none will."""
        back: list[HeldJob] = []
        with suppress(IndexError):
            while True:
                held = self._inbox.popleft()
                if held is not None:
                    back.append(held)
        return back

    def ended(self) -> list[HeldJob]:
        """The jobs that have ended since the last call; asked each round, so lost threads are seen to."""
        self._replace_lost()
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
        for _ in range(self._places):
            self._inbox.append(None)
            self._tokens.put(None)

    def _work(self, place: int) -> None:
        """Run jobs until `close`: a thread that ended before that would be missed by every job after it.

        What limits how long a call may take often raises an exception in its thread from another one, and
        that may come when the job is over. Then it is nobody's failure. It comes as soon as a wait ends: so
        what is waited for is a token, and the job is taken after that.
        """
        wait, take, perform, now = self._tokens.get, self._inbox.popleft, self._perform, time.monotonic
        begins = self._begins
        at: HeldJob | None = None
        while True:
            try:
                if at is not None:
                    self._over(at)
                    at = None
                while True:
                    wait()
                    # There may be more tokens than jobs: some were taken back, and some tokens were lost.
                    try:
                        at = take()
                    except IndexError:
                        continue
                    if at is None:
                        return
                    at.started = now()
                    at_hand.set(at)
                    begins(place, at.job.id)
                    perform(at)
                    self._over(at)
                    at = None
            except BaseException as late:
                self._tokens.put(None)
                _log.warning("something raised %s in the thread of a job that was over", type(late).__name__)

    def _over(self, held: HeldJob) -> None:
        """Once, however often it is called: nothing can come between the mark and the list."""
        if math.isinf(held.ended):
            held.is_ending = True
            held.ended = time.monotonic()
            self._ended.append(held)
        if self._is_awaited and len(self._inbox) <= self._rings_at:
            # Once: to ring is to let others run, so that nobody would get on.
            self._is_awaited = False
            self._ring()
