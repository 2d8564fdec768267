"""The places of a worker's jobs, and the threads that run the sync ones: jobs go in, and come out ended.

    put ─┬─ sync ──> inbox ──────> a thread, which has a place ──────────┬─> ended ─> the main thread
         └─ async ─> inbox of the loop ─> a task, which has a place ─────┘            writes it
      <── take_back ── what has not begun

A place is a number, and there are as many as the worker may have jobs at once. A thread keeps its place
between two jobs, a job on the event loop has its own as long as it runs. A place that becomes free goes to
what was claimed first, whatever kind that is; of one batch its own kind comes first. So a thread that makes
room for a job on the loop ends, and threads are started for sync jobs alone.

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
from queue import Empty, SimpleQueue
from typing import Any, Final

from queue_workflows import clock as time
from queue_workflows.engine.execution.guards import HeldJob
from queue_workflows.engine.execution.log_fields import at_hand
from queue_workflows.roles.worker.concurrent.event_loop import SharedLoop
from queue_workflows.thread_start import start_thread

_log = logging.getLogger(__name__)

# A thread that did not take its first step by then is taken for one that never will.
BEGINS_WITHIN_S: Final = 1.0


class JobThreads:
    """Places for `most` jobs at once; `perform` writes into a held job how it ended, and raises nothing."""

    def __init__(
        self,
        most: int,
        *,
        perform: Callable[[HeldJob], None],
        ring: Callable[[], None],
        begins: Callable[[int, int], None] = lambda _place, _job_id: None,
        loop: SharedLoop | None = None,
    ) -> None:
        """`ring` is called by a thread at the end of its job while the main thread waits for one.

        `begins` is told which thread, by its place, begins which job, by its id. Async jobs go to the `loop`.
        """
        self._perform = perform
        self._ring = ring
        self._begins = begins
        self._loop = loop
        self._uses_loop = False
        self._inbox: deque[HeldJob | None] = deque()
        self._for_loop: deque[HeldJob] = deque()
        # As many as there are jobs in both: an idle thread hears of either kind.
        self._tokens: SimpleQueue[None] = SimpleQueue()
        self._ended: list[HeldJob] = []
        # Any thread takes the last one, which is the lowest that was not taken yet.
        self._free = list(range(most - 1, -1, -1))
        self._threads: set[int] = set()
        # How many sync jobs the main thread has put and not seen ended; it alone starts threads.
        self._sync = 0
        # When a thread was started for a place, until it has begun there: only the last one may.
        self._starting: dict[int, float] = {}
        self._beginning = threading.Lock()
        self._is_awaited = False
        # With how many waiting, or fewer, the end of a job is worth a ring.
        self._rings_at = sys.maxsize

    @property
    def waiting(self) -> int:
        """How many jobs have not begun, for want of a place or of a thread that has taken them."""
        return len(self._inbox) + len(self._for_loop)

    def put(self, jobs: Iterable[HeldJob]) -> None:
        """Have these jobs run; a thread is started for a sync one while there are fewer than such jobs."""
        put, add_token, is_for_loop = self._inbox.append, self._tokens.put, False
        for held in jobs:
            if held.is_async:
                self._for_loop.append(held)
                add_token(None)
                is_for_loop = self._uses_loop = True
                continue
            if is_for_loop:
                self._fill_loop()
                is_for_loop = False
            put(held)
            add_token(None)
            self._sync += 1
            if self._free and len(self._threads) < self._sync:
                self._start_one()
        if is_for_loop:
            self._fill_loop()

    def _see_to_threads(self) -> None:
        """Start those that sync jobs wait for, and anew those that had no memory to begin in."""
        while self._free and self._inbox and len(self._threads) < self._sync:
            self._start_one()
        if self._starting:
            late = time.monotonic() - BEGINS_WITHIN_S
            for place in [place for place, at in list(self._starting.items()) if at < late]:
                _log.warning("the thread of jobs %d did not begin: it is started anew", place + 1)
                self._start(place)

    def _start_one(self) -> None:
        with suppress(IndexError):
            place = self._free.pop()
            self._threads.add(place)
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
        """Take back the jobs that have not begun; none will."""
        back: list[HeldJob] = []
        with suppress(IndexError):
            while True:
                held = self._inbox.popleft()
                if held is not None:
                    back.append(held)
        self._sync -= len(back)
        while (held := self._taken_for_loop()) is not None:
            back.append(held)
        return back

    def ended(self) -> list[HeldJob]:
        """The jobs that have ended since the last call; asked each round, so lost threads are seen to."""
        seen = self._ended
        # As many as there are now: threads append meanwhile.
        ended = seen[: len(seen)]
        del seen[: len(ended)]
        if self._uses_loop and self._loop is not None:
            self._sync -= sum([not held.is_async for held in ended])
            self._see_to_threads()
            self._loop.see_to_start()
            self._fill_loop()
        else:
            self._sync -= len(ended)
            self._see_to_threads()
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
        for _ in range(len(self._threads)):
            self._inbox.append(None)
            self._tokens.put(None)

    # In a thread.

    def _work(self, place: int) -> None:
        """Run jobs until `close`: a thread that ended before that would be missed by every job after it.

        What limits how long a call may take often raises an exception in its thread from another one, and
        that may come when the job is over. Then it is nobody's failure. It comes as soon as a wait ends: so
        what is waited for is a token, and the job is taken after that.
        """
        wait, take, perform, now = self._tokens.get, self._inbox.popleft, self._perform, time.monotonic
        begins, for_loop = self._begins, self._for_loop
        at: HeldJob | None = None
        while True:
            try:
                if at is not None:
                    self._over(at)
                    at = None
                while True:
                    wait()
                    if for_loop and self._makes_room(place):
                        return
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

    def _makes_room(self, place: int) -> bool:
        """Whether this thread has to end, as its place goes to a job on the loop."""
        if not _comes_first(self._for_loop, self._inbox):
            return False
        # For the job that gets the place, which takes one.
        self._tokens.put(None)
        self._threads.discard(place)
        self._free.append(place)
        self._fill_loop()
        return True

    def _over(self, held: HeldJob) -> None:
        """Once, however often it is called: nothing can come between the mark and the list."""
        if math.isinf(held.ended):
            held.is_ending = True
            held.ended = time.monotonic()
            self._ended.append(held)
        if self._is_awaited and len(self._inbox) + len(self._for_loop) <= self._rings_at:
            # Once: to ring is to let others run, so that nobody would get on.
            self._is_awaited = False
            self._ring()

    # The event loop's jobs.

    def _fill_loop(self) -> None:
        """Give free places to jobs that wait for the loop; from any thread.

        What puts a job there, or a place, looks for the other one after that: neither is overlooked.
        """
        begun = []
        while self._for_loop and self._free:
            try:
                place = self._free.pop()
            except IndexError:
                break
            if (held := self._taken_for_loop()) is None:
                self._free.append(place)
            else:
                begun.append((place, held))
        if begun and self._loop is not None:
            self._loop.begin(begun)

    def _taken_for_loop(self) -> HeldJob | None:
        """The first job that waits for the loop; a token before it, so that no other job lacks its own."""
        token = True
        try:
            self._tokens.get_nowait()
        except Empty:
            token = False
        try:
            return self._for_loop.popleft()
        except IndexError:
            if token:
                self._tokens.put(None)
            return None

    def over_on_loop(self, place: int, held: HeldJob) -> HeldJob | None:
        """In the loop: a job has ended; the one that has its place now, if that is one of the loop's."""
        following = None
        if not _comes_first(self._inbox, self._for_loop):
            following = self._taken_for_loop()
        if following is None:
            self._free.append(place)
            if self._for_loop and not self._inbox:
                self._fill_loop()
        self._over(held)
        return following


def _comes_first(these: deque[Any], others: deque[Any]) -> bool:
    """Whether one of these waits, and was claimed before all of the others.

    What was claimed first has the earliest lease: it is not renewed before it is begun or given back.
    """
    try:
        first = these[0]
    except IndexError:
        return False
    try:
        other = others[0]
    except IndexError:
        return True
    return first is not None and (other is None or bool(first.lease_until < other.lease_until))
