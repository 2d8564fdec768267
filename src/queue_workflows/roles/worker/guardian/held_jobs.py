"""The jobs that a worker holds, and the dead man's timer that stands at the earliest of their leases.

The timer is armed after each confirmed claim and renewal, from a clock read before it was sent. A worker
that cannot renew (no database, or no GIL) leaves it alone, and the kernel ends the process. Jobs that go on
without their lease (`outage`) count with the time until which they may.

A lease may lapse unnoticed, where nothing is killed for it, and this very worker claim the job anew. The
earlier attempt has no lease then, but is at work in here: it stays held until it is over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import TracebackType

from queue_workflows.engine.execution.guards import HeldJob
from queue_workflows.host.processes.lease_timer import DeadMan, boottime
from queue_workflows.repositories.sql.claimed_job import ClaimedJob


class HeldJobs:
    """What is held, for the thread that works and the thread that guards."""

    def __init__(self, deadman: DeadMan, lease_s: float) -> None:
        self.lease_s = lease_s
        self._deadman = deadman
        self._margin_s = max(lease_s / 10, 0.1)
        self._lock = threading.Lock()
        self._held: dict[int, HeldJob] = {}
        # Earlier attempts of jobs that are held by a later one.
        self._displaced: list[HeldJob] = []
        # Those that go on without their lease, and until when, on the boot clock.
        self._going_on: dict[int, HeldJob] = {}
        self._going_on_until = 0.0

    def take(self, held: HeldJob) -> None:
        """Hold a job: its claim is confirmed."""
        with self._lock:
            self._held[held.job.id] = held
            self._arm()

    def drop(self, held: HeldJob) -> None:
        """Hold a job no more: its end is confirmed."""
        with self._lock:
            self._forget(held)
            self._arm()

    def exchange(self, taken: Sequence[HeldJob], dropped: Sequence[HeldJob]) -> Sequence[HeldJob]:
        """Hold a batch with a confirmed claim, and hold no more a batch with confirmed ends.

        Returns the attempts at work of which the jobs were taken.
        """
        with self._lock:
            held = self._held
            displaced: Sequence[HeldJob] = ()
            # In this order the timer has a lease to stand on throughout, and seldom needs to be set.
            if not taken or held.keys().isdisjoint([one.job.id for one in taken]):
                for one in taken:
                    held[one.job.id] = one
            else:
                displaced = self._displace(taken, dropped)
            for one in dropped:
                # As `_forget` does it, without the call.
                job_id = one.job.id
                if held.get(job_id) is one:
                    del held[job_id]
                elif self._displaced:
                    self._forget(one)
            self._arm()
        return displaced

    def _displace(self, taken: Sequence[HeldJob], dropped: Sequence[HeldJob]) -> Sequence[HeldJob]:
        over = set(map(id, dropped))
        before = [self._held[one.job.id] for one in taken if one.job.id in self._held]
        displaced = [one for one in before if id(one) not in over]
        self._displaced += displaced
        self._held.update((one.job.id, one) for one in taken)
        return displaced

    def _forget(self, held: HeldJob) -> None:
        """Drop this attempt; not a later one of its job, which may be claimed as soon as it is given back."""
        if self._held.get(held.job.id) is held:
            del self._held[held.job.id]
        else:
            self._displaced = [one for one in self._displaced if one is not held]

    def count(self) -> int:
        """How many attempts are held."""
        return len(self._held) + len(self._displaced)

    def get(self, job_id: int) -> HeldJob:
        """The held job of this id."""
        with self._lock:
            return self._held[job_id]

    def all(self) -> list[HeldJob]:
        """The attempts held now, the longest held first."""
        with self._lock:
            return [*self._displaced, *self._held.values()]

    def leased(self) -> list[HeldJob]:
        """The jobs held now by a lease, for all that is known here."""
        with self._lock:
            return list(self._held.values())

    def holds(self, job: ClaimedJob) -> bool:
        """Whether this attempt of a job is held still."""
        with self._lock:
            held = self._held.get(job.id)
            return (held is not None and held.job is job) or any(one.job is job for one in self._displaced)

    def has_attempt(self, job: ClaimedJob) -> bool:
        """Whether this attempt of a job is at work here already, so that its claim was made a second time."""
        with self._lock:
            held = self._held.get(job.id)
            if held is None or held.is_ending or held.ending is not None:
                return False
            return held.job.fence == job.fence

    def tell_all(self, what: Callable[[HeldJob], None]) -> None:
        """Tell each something, none being dropped meanwhile."""
        with self._lock:
            for held in (*self._displaced, *self._held.values()):
                what(held)

    def due(self, reading: float, renew_s: float) -> list[HeldJob]:
        """The held jobs that had their lease confirmed `renew_s` ago or earlier."""
        return [held for held in self.leased() if reading >= held.lease_until - self.lease_s + renew_s]

    def renewed(self, alive: Iterable[HeldJob], reading: float) -> None:
        """Note that the renewal of these jobs, sent after this reading of the clock, is confirmed."""
        with self._lock:
            for held in alive:
                held.lease_until = reading + self.lease_s
                self._going_on.pop(held.job.id, None)
            self._arm()

    def lapses_at(self) -> float | None:
        """When the timer would fire if nothing went on without its lease; None while none is armed."""
        with self._lock:
            if self._held:
                return min(held.lease_until for held in self._held.values()) - self._margin_s
            return self._deadman.deadline

    def go_on(self, held: Sequence[HeldJob], until: float) -> bool:
        """Let these live until then whatever their leases say; False if other jobs are held by now."""
        known = set(map(id, held))
        with self._lock:
            if not all(id(one) in known for one in self._held.values()):
                return False
            self._going_on = dict(self._held)
            self._going_on_until = until
            self._arm()
        return True

    def bounded(self, when: Callable[[Callable[[], None]], None] | None = None) -> _Bounded:
        """A statement of the main thread, from the clock reading given: no answer within a lease ends us.

        Only until the answer: what waits for work, or for the operator, may wait longer than a lease. `when`
        is handed what sets the timer, to be called when the statement is on its way; else it is set before.
        """
        return _Bounded(self, when)

    def bound(self, reading: float) -> None:
        """Bound this process from this reading on, if it holds no job."""
        with self._lock:
            if not self._held:
                self._deadman.arm(reading + self.lease_s - self._margin_s)

    def unbound(self) -> None:
        """Lift the bound: the answer is there, and what it brought is guarded by itself."""
        with self._lock:
            if not self._held:
                self._deadman.disarm()

    def _arm(self) -> None:
        if self._held:
            if self._going_on:
                first = min([self._lives_until(held) for held in self._held.values()])
            else:
                first = min([held.lease_until for held in self._held.values()])
            self._deadman.arm(first - self._margin_s)
        else:
            self._going_on = {}
            self._deadman.disarm()

    def _lives_until(self, held: HeldJob) -> float:
        if self._going_on.get(held.job.id) is held:
            return max(held.lease_until, self._going_on_until)
        return held.lease_until


class _Bounded:
    """A bound in time; a class, as a generator would cost three times as much before each job."""

    def __init__(self, holdings: HeldJobs, when: Callable[[Callable[[], None]], None] | None) -> None:
        self._holdings = holdings
        self._when = when

    def __enter__(self) -> float:
        reading = boottime()
        if self._when is None:
            self._holdings.bound(reading)
        else:
            self._when(partial(self._holdings.bound, reading))
        return reading

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._holdings.unbound()
