"""How many jobs a worker claims ahead, and when it gives back what it has not begun; pure, told the time.

A worker that claims one job for each free thread waits for the database between any two short ones. One that
claims far ahead keeps from others what it does not get to. So it claims ahead what it begins anyway while one
round to the database takes. For that 20 ms are reckoned, or as long as the last one took, up to 50 ms: where
many share a machine batches would else get smaller with each of them, and each batch is a commit. There it
also pauses between rounds: what it began is counted since the last claim but one, up to 100 ms.

    claimed, not begun   <=   free threads  +  the least of
        what it began within the last round or pause           (while its jobs are stuck: nothing),
            or 50 while most of its threads are free: nothing is stuck, it gets little of the machine,
            or twice as much where none waits for them either: it could have begun more
        what so many threads can begin in a round              (by how long the last jobs took: 0 if slow)
        400

A worker that may have all of it claims half of it at a time: one half is run while the other is claimed. What
has not been begun 100 ms after its claim, because the jobs before it turned slow, is given back at its place,
uncounted. Where a hundred jobs run or more, a question waits up to 10 ms for a fiftieth of them to end.

What waits behind jobs that are quick and begin one after another is not stuck: its process got no processor.
To give it back would only make work, of which such a machine has too much. So it is kept as long as some
begin every 20 ms, up to 250 ms after its claim.

From a server that is far away each answer takes a round trip more, however quick the server is. So with the
round trip, from 5 ms on, the bounds grow: the 400 in proportion, up to a setting's `most`; the 50 ms to two
and a half round trips, the 100 ms to four, but 400 ms at most. What it begins in a round, and what its
threads can begin in one, bound it there as well.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Final

AHEAD_S: Final = 0.02
AHEAD_LONGEST_S: Final = 0.05
AHEAD_LEAST: Final = 50
AHEAD_MOST: Final = 400
AT_A_TIME: Final = 500
GIVE_BACK_AFTER_S: Final = 0.1
GIVE_BACK_LATEST_S: Final = 0.25
# A server with a longer round trip is far away; what 400 jobs are to one that is not, more are to it.
NEAR_S: Final = 0.005
_ROUNDS_LONGEST: Final = 2.5
_ROUNDS_UNBEGUN: Final = 4
# However far away it is, what is not begun is not kept for so long from others that may be near.
_UNBEGUN_LONGEST_S: Final = 0.4
# Of so many that run some end all the time: a question is for a fiftieth of them, or for those of 10 ms.
MANY: Final = 100
# How many jobs the mean of their durations looks back on, in threads' worth.
_REMEMBERED: Final = 4


class ClaimAhead:
    """What is known of the pace of `threads` threads, and of how far away the server is.

    However far that is, it claims no more than `most` jobs ahead.
    """

    def __init__(self, threads: int, most: int = AHEAD_MOST) -> None:
        self._threads = threads
        self._most_of_all = most
        self.is_at(0.0)
        # Slow, until the first that end show otherwise.
        self._mean_s = 2 * AHEAD_S * threads
        self._seen = 0
        # When so many jobs in all had been begun, and when the claim of so many in all was handed over.
        self._begun: deque[tuple[float, int]] = deque([(0.0, 0)])
        self._handed: deque[tuple[float, int]] = deque()
        self._handed_in_all = 0
        self._round_s = AHEAD_S
        # When the last two claims were handed over.
        self._handed_at = self._handed_before = math.inf
        # Until when what has waited long enough is kept, and how many had been begun when that was said.
        self._kept_until = 0.0
        self._kept_at: int | None = None

    def is_at(self, round_trip_s: float) -> None:
        """The server is so far away."""
        self._most = min(self._most_of_all, int(AHEAD_MOST * max(1.0, round_trip_s / NEAR_S)))
        self._longest_s = max(AHEAD_LONGEST_S, _ROUNDS_LONGEST * round_trip_s)
        self._unbegun_s = max(GIVE_BACK_AFTER_S, min(_ROUNDS_UNBEGUN * round_trip_s, _UNBEGUN_LONGEST_S))
        # More takes memory and time before the first of it begins, which from afar is little beside the way.
        is_far = round_trip_s > NEAR_S
        self.at_a_time = max(AT_A_TIME, (self._threads + self._most) // 2) if is_far else AT_A_TIME

    def asked(self, seconds: float) -> None:
        """The last round to the database took so long."""
        self._round_s = min(max(AHEAD_S, seconds), self._longest_s)

    def handed(self, jobs: int, now: float) -> None:
        """So many jobs were claimed and wait for a thread."""
        if jobs:
            self._handed_before, self._handed_at = self._handed_at, now
            self._handed_in_all += jobs
            self._handed.append((now, self._handed_in_all))

    def taken_back(self, jobs: int) -> None:
        """So many of the jobs that waited for a thread, the last ones, were taken back unbegun."""
        self._handed_in_all -= jobs
        self._handed.clear()
        self._kept_at = None

    def ended(self, jobs: int, seconds: float) -> None:
        """So many jobs have ended, which took so long together."""
        if jobs:
            weight = jobs / (jobs + self._seen)
            self._seen = min(self._seen + jobs, self._threads * _REMEMBERED)
            self._mean_s += (seconds / jobs - self._mean_s) * weight

    def free(self, running: int, waiting: int, now: float, *, unread: int = 0) -> int:
        """How many jobs to claim while so many run, so many wait for threads, so many are to be handed."""
        # More than there are threads have ended since somebody looked.
        running = min(running, self._threads)
        begun = self._handed_in_all - waiting
        seen = self._begun
        since = now - max(self._round_s, min(now - self._handed_before, self._unbegun_s))
        while len(seen) > 1 and seen[1][0] <= since:
            seen.popleft()
        lately = begun - seen[0][1]
        if running <= self._threads // 2:
            lately = max(lately if waiting else 2 * lately, AHEAD_LEAST)
        seen.append((now, begun))
        able = int(self._threads * self._round_s / max(self._mean_s, 1e-6))
        ahead = min(lately, able, self._most)
        idle = self._threads - running - waiting - unread
        free = max(0, idle + ahead)
        if ahead < self._most or not self._most:
            return free
        return min(free, max(idle, (self._threads + self._most) // 2))

    def is_little(self, free: int, running: int, waiting: int) -> bool:
        """Whether so few are worth no question yet, as each thread has work, or hundreds of jobs run."""
        if running >= MANY and free * MANY < 2 * running:
            return True
        return waiting >= self._threads and 2 * free < waiting

    def give_back_at(self, waiting: int) -> float | None:
        """When the job that waits longest has waited long enough; None if none waits."""
        if not waiting:
            self._handed.clear()
            self._kept_at = None
            return None
        begun = self._handed_in_all - waiting
        while self._handed and self._handed[0][1] <= begun:
            self._handed.popleft()
        if not self._handed:
            return None
        waited_enough = self._handed[0][0] + self._unbegun_s
        return waited_enough if self._kept_at is None else max(waited_enough, self._kept_until)

    def keeps(self, waiting: int, now: float) -> bool:
        """Whether what has waited long enough is kept for 20 ms more, as it only waits for a processor."""
        begun = self._handed_in_all - waiting
        is_quick = waiting * self._mean_s <= self._unbegun_s * self._threads
        latest_s = self._unbegun_s * (GIVE_BACK_LATEST_S / GIVE_BACK_AFTER_S)
        if not is_quick or begun == self._kept_at or now >= self._handed[0][0] + latest_s:
            return False
        self._kept_at, self._kept_until = begun, now + AHEAD_S
        return True
