"""How long jobs took, by task and by key, as those show that ended last.

A worker may hold a quick job up to a quarter of a second before it begins it, which its row tells as a part
of its time; and between two jobs it is at what no row tells. So durations are those for which a slot is
taken: while jobs waited each slot was in use, so what its rows tell too much, or too little, is known.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import median
from typing import Final

# A task of which fewer have ended is not known.
ENOUGH: Final = 20
# The latest of each task, and of each of its keys, that are drawn from.
KEPT: Final = 300
# For how long a worker keeps what it has not begun, and how long it is at what is not the job's, at most.
_BESIDE_S: Final = 0.25
# Of a key of which nothing is known, and at most.
BETWEEN_S: Final = 0.03
_BETWEEN_LONGEST_S: Final = 0.5
# Of how much time, in which jobs waited, a worker's pace is taken.
_LEAST_S: Final = 0.5
_SHORT_S: Final = 0.001
# A machine is not as quick at all times: the spread of a factor that all durations of a play have.
_PACE: Final = 0.1
DEFAULT_BACKOFF_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Ended:
    """A job that is over; so many seconds ago it could be claimed, and its last attempt began and ended."""

    task: str
    key: str | None
    worker_id: str | None
    began_s: float
    ended_s: float
    ready_s: float = 0.0
    created_s: float = 0.0
    failures: int = 0
    is_failed: bool = False
    backoff_s: float | None = None
    max_attempts: int = 3
    was_parked: bool = False


@dataclass(frozen=True, slots=True)
class Trial:
    """One attempt: how long it takes, and whether it fails and is tried again."""

    took_s: float
    fails: bool


@dataclass(slots=True)
class TaskHistory:
    """Durations of one task, the oldest first, and how its attempts end."""

    took_s: list[float] = field(default_factory=list)
    by_key: dict[str, list[float]] = field(default_factory=dict)
    attempts: int = 0
    failures: int = 0
    backoff_s: float = DEFAULT_BACKOFF_S
    max_attempts: int = 3
    # Whether some of it slept or waited in between, and so took longer than is known.
    parks: bool = False

    @property
    def fails(self) -> float:
        """The share of attempts that fail."""
        return self.failures / self.attempts if self.attempts else 0.0

    def of(self, key: str | None) -> Sequence[float]:
        """Durations with a key where enough of them are known, else those of the task."""
        own = self.by_key.get(key, ()) if key is not None else ()
        return own if len(own) >= ENOUGH else self.took_s


class History:
    """What is known of each task of a queue."""

    def __init__(self, tasks: Mapping[str, TaskHistory], between: Mapping[str, float] | None = None) -> None:
        self._tasks = dict(tasks)
        self._between = between or {}
        everything = [took for task in self._tasks.values() for took in task.took_s]
        self._pooled = TaskHistory(took_s=everything)

    @classmethod
    def of(
        cls,
        ended: Iterable[Ended],
        slots: Mapping[str, int] | None = None,
        caps: Mapping[str, int] | None = None,
    ) -> History:
        """From jobs that ended, the latest first; `slots` are those of workers, `caps` those of keys."""
        rows = list(ended)[::-1]
        paces = _paces(rows, slots or {})
        tasks: dict[str, TaskHistory] = defaultdict(TaskHistory)
        for row in rows:
            task = tasks[row.task]
            took_s = max(0.0, row.began_s - row.ended_s)
            # What its key is without between two jobs is reckoned apart, and would count twice.
            paced_s = took_s * (1.0 if row.key in (caps or {}) else paces.get(row.worker_id, 1.0))
            took_s = max(0.0, took_s - _BESIDE_S, min(paced_s, took_s + _BESIDE_S))
            task.took_s.append(took_s)
            if row.key is not None:
                task.by_key.setdefault(row.key, []).append(took_s)
            task.failures += row.failures
            task.attempts += row.failures + (0 if row.is_failed else 1)
            task.max_attempts = row.max_attempts
            task.parks = task.parks or row.was_parked
            task.backoff_s = DEFAULT_BACKOFF_S if row.backoff_s is None else row.backoff_s
        for task in tasks.values():
            del task.took_s[:-KEPT]
            for own in task.by_key.values():
                del own[:-KEPT]
        return cls(tasks, dict(_between(rows, caps or {})))

    def count(self, task: str) -> int:
        """How many of a task were seen to end."""
        return len(self._tasks[task].took_s) if task in self._tasks else 0

    def knows(self, task: str) -> bool:
        """Whether enough of a task have ended."""
        return self.count(task) >= ENOUGH

    def parks(self, task: str) -> bool:
        """Whether jobs of it sleep or wait in between, so that nobody knows when one of them ends."""
        return task in self._tasks and self._tasks[task].parks

    def mean_s(self, task: str) -> float:
        """How long a job takes on average; of an unknown task one of any."""
        took_s = self._of(task).took_s
        return sum(took_s) / len(took_s) if took_s else 0.0

    def between_s(self, key: str) -> float:
        """How long a slot of a key is nobody's, from one job to the next."""
        return self._between.get(key, BETWEEN_S)

    def longest_s(self, task: str) -> float:
        """How long the longest of a task took."""
        return max(self._of(task).took_s, default=0.0)

    def _of(self, task: str) -> TaskHistory:
        return self._tasks[task] if self.knows(task) else self._pooled

    def drawn(self, chance: Random) -> Drawn:
        """What one play draws from."""
        return Drawn(self, chance)


class Drawn:
    """Durations for one play: of each task from one half of its history, as things were for a while.

    The half differs from play to play, so that what is not known of the mean is in the range of all plays.
    """

    def __init__(self, history: History, chance: Random) -> None:
        self._history = history
        self._chance = chance
        self._pace = math.exp(chance.gauss(0.0, _PACE))
        self._parts: dict[tuple[str, str | None], Sequence[float]] = {}

    def trial(self, task: str, key: str | None) -> Trial:
        """How an attempt that begins goes."""
        part = self._part(task, key)
        took_s = part[int(self._chance.random() * len(part))] * self._pace if part else 0.0
        share = self.known(task).fails
        return Trial(took_s, share > 0 and self._chance.random() < share)

    def rest_s(self, task: str, key: str | None, elapsed_s: float) -> float:
        """How much longer one takes that has run for so long."""
        longer = [took for took in self._part(task, key) if took * self._pace > elapsed_s]
        if not longer:
            # Longer than any that was seen: as long again, as nothing better is known.
            return elapsed_s
        return longer[int(self._chance.random() * len(longer))] * self._pace - elapsed_s

    def known(self, task: str) -> TaskHistory:
        """How attempts of a task end."""
        return self._history._of(task)

    def _part(self, task: str, key: str | None) -> Sequence[float]:
        part = self._parts.get((task, key))
        if part is None:
            whole = self.known(task).of(key)
            length = max(ENOUGH // 2, (len(whole) + 1) // 2)
            first = int(self._chance.random() * (max(0, len(whole) - length) + 1))
            part = self._parts[task, key] = whole[first : first + length]
        return part


class _Waited:
    """The times that some spans cover, in seconds ago, and how long they are."""

    def __init__(self, spans: Iterable[tuple[float, float]]) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []
        self._before: list[float] = [0.0]
        for start, end in sorted(spans):
            if self._ends and start <= self._ends[-1]:
                self._before[-1] += max(0.0, end - self._ends[-1])
                self._ends[-1] = max(end, self._ends[-1])
            elif end > start:
                self._starts.append(start)
                self._ends.append(end)
                self._before.append(self._before[-1] + end - start)

    def until(self, moment: float) -> float:
        """How long of the time before this moment jobs waited."""
        place = bisect_right(self._starts, moment)
        if place == 0:
            return 0.0
        return self._before[place] - max(0.0, self._ends[place - 1] - moment)

    def less(self, other: _Waited) -> Iterator[tuple[float, float]]:
        """The spans that the other's leave of these."""
        for start, end in zip(self._starts, self._ends, strict=True):
            at = start
            first = max(0, bisect_right(other._starts, start) - 1)
            for cut_start, cut_end in zip(other._starts[first:], other._ends[first:], strict=True):
                if cut_start >= end:
                    break
                if cut_start > at:
                    yield at, cut_start
                at = max(at, cut_end)
            if at < end:
                yield at, end

    def within(self, start: float, end: float) -> float:
        """How long of this time."""
        return self.until(end) - self.until(start)


def _paces(rows: Sequence[Ended], slots: Mapping[str, int]) -> Mapping[str | None, float]:
    """Of each worker how long it took a slot to be through with a second of its rows, while others waited."""
    if not slots:
        return {}
    usual = median(slots.values())
    waited = _unkeyed(rows)
    spans: dict[str | None, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        spans[row.worker_id].append((-row.began_s, -row.ended_s))
    paces: dict[str | None, float] = {}
    for worker, of_worker in spans.items():
        at_it = sum(waited.within(start, end) for start, end in of_worker)
        able = waited.within(min(start for start, _ in of_worker), max(end for _, end in of_worker))
        if at_it > 0 and able >= _LEAST_S:
            paces[worker] = slots.get(worker or "", usual) * able / at_it
    return paces


def _unkeyed(rows: Sequence[Ended]) -> _Waited:
    """When jobs waited that any worker could have claimed; a key may have kept the others."""
    return _Waited((-row.ready_s, -row.began_s) for row in rows if row.key is None)


def _between(rows: Sequence[Ended], caps: Mapping[str, int]) -> Iterator[tuple[str, float]]:
    """Of each key how long its slots were nobody's while its jobs waited, for each job that began then."""
    of_keys: dict[str, list[Ended]] = defaultdict(list)
    for row in rows:
        if row.key in caps:
            of_keys[row.key or ""].append(row)
    others = _unkeyed(rows) if of_keys else None
    for key, own in of_keys.items():
        # In a lane a job waits from its first moment on, but one that was tried again. While others waited
        # too, what it waited for may have been a worker.
        waited = _Waited((-row.created_s, -row.began_s) for row in own if not row.failures)
        waited = waited if others is None else _Waited(waited.less(others))
        begun = sum(waited.within(-row.began_s - _SHORT_S, -row.began_s) > 0 for row in own)
        if begun < ENOUGH // 2:
            continue
        first, last = min(-row.began_s for row in own), max(-row.ended_s for row in own)
        idle_s = caps[key] * waited.within(first, last) - sum(
            waited.within(-row.began_s, -row.ended_s) for row in own
        )
        yield key, min(max(idle_s / begun, 0.0), _BETWEEN_LONGEST_S)
