"""A process for each job, for a while, where a job has killed the process that it shared with others.

    whole ──it crashed──> parts ──calm, no suspect waits──> rejoining ──all have ended──> whole
                            ^                                   │
                            └── one crashed, or it takes long ──┘

A worker of eight that dies of one job takes seven along, and nobody can say which of them it was. So the
supervisor replaces it by as many processes as it had jobs, of one job each: what kills its process takes
nobody along, is known at once, and is counted. When no process has crashed for a few seconds and no suspect
waits, the parts are told to end as soon as they hold nothing, and one process takes their place again. Jobs
that last keep them: then those that have ended are started again, and it is tried later.

There are never more jobs at once than the worker may have, and never more processes than `most`, of all
workers of a supervisor together: each is a Python of its own with three connections. So that the second
worker that crashes has its share, none takes more than its part of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from queue_workflows.host.processes.harden import RETIRE
from queue_workflows.host.processes.launcher import tell
from queue_workflows.roles.supervisor.liveness import Signs
from queue_workflows.roles.supervisor.slots import Slot, Spec

_log = logging.getLogger(__name__)

# What cannot be forked imports everything for itself, and costs about as much as so many that can.
_COST_UNFORKED: Final = 8
_FEWEST: Final = 2
CALM_S: Final = 5.0
_LONGEST_CALM_S: Final = 600.0
# How long the last jobs of the parts may take before those that have ended are started again, in calm times.
_REJOINS_WITHIN: Final = 0.5


@dataclass
class _Division:
    """`rejoins_until` is set while the parts are told to end, `calm_s` after the last crash."""

    crashed_at: float
    calm_s: float = CALM_S
    rejoins_until: float | None = None


class Isolation:
    """Which slots of a supervisor are in parts; told the time by `now`, and which kinds `can_fork`."""

    def __init__(
        self,
        now: Callable[[], float],
        can_fork: Callable[[Spec], bool],
        *,
        most: int,
        workers: Callable[[], int],
    ) -> None:
        """`most` processes in all; `workers` says how many there are that may be divided."""
        self._now = now
        self._can_fork = can_fork
        self._most = most
        self._workers = workers
        self._divided: dict[str, tuple[Slot, _Division]] = {}

    @property
    def queues(self) -> frozenset[str]:
        """The queues of which it has to know whether suspects wait."""
        return frozenset(whole.spec.queue for whole, _ in self._divided.values())

    def crashed(self, slot: Slot) -> list[Slot]:
        """The parts that take the place of a worker that did; none where its jobs shared with nobody."""
        now = self._now()
        if slot.part:
            self._crashed_apart(slot, now)
        most = self._most_parts(slot) if self.may_divide(slot) else 0
        if most < 2:
            return []
        slot.parts = [
            Slot(f"{slot.name}.{number}", slot.spec, now, urgent=True, part=number)
            for number in range(1, most + 1)
        ]
        self._divided[slot.name] = slot, _Division(now)
        return slot.parts

    def _most_parts(self, slot: Slot) -> int:
        there = sum(len(whole.parts) for whole, _ in self._divided.values())
        share = max(_FEWEST, self._most // max(1, self._workers()))
        if not self._can_fork(slot.spec):
            share = max(_FEWEST, share // _COST_UNFORKED)
        return min(slot.spec.shared_by, share, self._most - there)

    def in_words(self, slot: Slot) -> str:
        """What the log says of a worker that has just been divided."""
        parts, jobs = len(slot.parts), slot.spec.shared_by
        fewer = f", {parts} at once instead of {jobs} (see QWF_SINGLE_JOB_PROCESSES)" if parts < jobs else ""
        return f"a job may have ended it: each has its own process for a while{fewer}"

    def may_divide(self, slot: Slot) -> bool:
        """Whether a crash of its jobs has parts take its place."""
        return not slot.part and slot.spec.shared_by > 1 and not slot.spec.last_ends

    def is_rejoining(self, slot: Slot) -> bool:
        """Whether a part that has ended is not to be started again."""
        division = self._of(slot)
        return division is not None and division.rejoins_until is not None

    def tend(self, signs: Signs) -> list[Slot]:
        """Rejoin what is calm, by what the database thread read last; returns the parts that are no more."""
        over: list[Slot] = []
        for name, (whole, division) in list(self._divided.items()):
            if division.rejoins_until is not None:
                if all(part.done for part in whole.parts):
                    over += whole.parts
                    self._rejoined(name, whole)
                elif self._now() >= division.rejoins_until:
                    self._part_again(whole, division)
            elif signs.read_at > division.crashed_at and not signs.suspects.get(whole.spec.queue, True):
                self._rejoin_if_calm(whole, division)
        return over

    def _crashed_apart(self, slot: Slot, now: float) -> None:
        """Have no part rejoin after one has crashed, and start again those that have ended to rejoin."""
        division = self._of(slot)
        if division is not None:
            was_rejoining, division.rejoins_until = division.rejoins_until, None
            division.crashed_at = now
            for part in self._divided[slot.name.rpartition(".")[0]][0].parts if was_rejoining else ():
                if part is not slot and part.done:
                    part.start_at, part.urgent = now, True

    def _of(self, slot: Slot) -> _Division | None:
        whole, division = self._divided.get(slot.name.rpartition(".")[0], (None, None))
        return division if whole is not None and slot in whole.parts else None

    def _rejoin_if_calm(self, whole: Slot, division: _Division) -> None:
        now = self._now()
        if now - division.crashed_at < division.calm_s:
            return
        division.rejoins_until = now + _REJOINS_WITHIN * division.calm_s
        _log.info(
            "%s: no job has crashed for %.0f s, so they share a process again", whole.name, division.calm_s
        )
        for part in whole.parts:
            part.start_at = part.parked_at = None
            if part.life is not None and part.life.fd is not None:
                tell(part.life.child, part.life.fd, RETIRE)

    def _part_again(self, whole: Slot, division: _Division) -> None:
        """Start parts again, as the places of those that ended would stand empty while other jobs last."""
        division.rejoins_until, division.crashed_at = None, self._now()
        division.calm_s = min(division.calm_s * 2, _LONGEST_CALM_S)
        for part in whole.parts:
            if part.done:
                part.start_at, part.urgent = self._now(), True

    def _rejoined(self, name: str, whole: Slot) -> None:
        whole.parts, whole.urgent, whole.deaths = [], True, 0
        whole.start_at = self._now()
        del self._divided[name]
