"""The jobs in a worker's hands, and the dead man's timer that stands at the earliest of their leases.

The timer is armed after each confirmed claim and renewal, from a clock read before it was sent. Who cannot
renew (no database, or no GIL) leaves it alone, and the kernel ends the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from queue_workflows.host.deadman import DeadMan, boottime
from queue_workflows.jobs.guards import HeldJob
from queue_workflows.repositories.claimed import ClaimedJob


class Holdings:
    """What is held, for the thread that works and the thread that guards."""

    def __init__(self, deadman: DeadMan, lease_s: float) -> None:
        self.lease_s = lease_s
        self._deadman = deadman
        self._margin_s = max(lease_s / 10, 0.1)
        self._lock = threading.Lock()
        self._held: dict[int, HeldJob] = {}

    def take(self, held: HeldJob) -> None:
        """A job whose claim is confirmed."""
        with self._lock:
            self._held[held.job.id] = held
            self._arm()

    def drop(self, job_id: int) -> None:
        """A job whose end is confirmed."""
        with self._lock:
            self._held.pop(job_id, None)
            self._arm()

    def get(self, job_id: int) -> HeldJob:
        """One that is held."""
        with self._lock:
            return self._held[job_id]

    def all(self) -> list[HeldJob]:
        """Those held now, the longest held first."""
        with self._lock:
            return list(self._held.values())

    def holds(self, job: ClaimedJob) -> bool:
        """Whether this attempt of a job is held still."""
        with self._lock:
            held = self._held.get(job.id)
            return held is not None and held.job is job

    def tell_all(self, what: Callable[[HeldJob], None]) -> None:
        """Tell each something, none being dropped meanwhile."""
        with self._lock:
            for held in self._held.values():
                what(held)

    def due(self, reading: float, renew_s: float) -> list[HeldJob]:
        """Those whose lease was confirmed `renew_s` ago or earlier."""
        return [held for held in self.all() if reading >= held.lease_until - self.lease_s + renew_s]

    def renewed(self, alive: Iterable[HeldJob], reading: float) -> None:
        """Their renewal, sent after this reading of the clock, is confirmed."""
        with self._lock:
            for held in alive:
                held.lease_until = reading + self.lease_s
            self._arm()

    @contextmanager
    def bounded(self) -> Iterator[float]:
        """A statement of the main thread, from the clock reading given: no answer within a lease ends us.

        Only until the answer: what waits for work, or for the operator, may wait longer than a lease.
        """
        reading = boottime()
        with self._lock:
            if not self._held:
                self._deadman.arm(reading + self.lease_s - self._margin_s)
        try:
            yield reading
        finally:
            with self._lock:
                self._arm()

    def _arm(self) -> None:
        first = min((held.lease_until for held in self._held.values()), default=None)
        if first is None:
            self._deadman.disarm()
        else:
            self._deadman.arm(first - self._margin_s)
