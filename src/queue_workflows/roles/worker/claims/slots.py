"""Slots of keyed limits in the claims of a worker: taken with a claim, renewed with a lease, freed by an end.

    claimed ──slot──> runs ──> its end frees the slot, in one transaction ──> the next come out of the lanes
       └──none free──> its key's lane, on hold `limit_full`, and with it what stands in the queue for the key

All of it is asked only for jobs that have a key. `engine/limits` says what a slot, a lane and a window are.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import psycopg

from queue_workflows import clock as time
from queue_workflows.engine.execution.guards import HeldJob
from queue_workflows.engine.outcomes import Stop
from queue_workflows.repositories.claims.end import Ending
from queue_workflows.repositories.claims.repository import ClaimableRepository
from queue_workflows.repositories.limits.lane_turns import Reached
from queue_workflows.repositories.limits.lanes import LANE_DELAY_S, LIMIT_FULL, LaneRepository, counted
from queue_workflows.repositories.limits.slots import Slot, SlotRepository, Want
from queue_workflows.repositories.sql.claimed_job import ClaimedJob, Fence
from queue_workflows.repositories.sql.low_water_marks import Marks
from queue_workflows.roles.worker.claims.terms import ClaimTerms
from queue_workflows.states import JobStatus

_log = logging.getLogger(__name__)


class SlotClaims:
    """The slots and lanes of one claim session, on its connection."""

    def __init__(
        self,
        terms: ClaimTerms,
        connection: psycopg.Connection[Any],
        repository: ClaimableRepository[Any, Any],
    ) -> None:
        self._lease_s = terms.lease_s
        self._kept = terms.kept
        self._repository = repository
        self._slots = SlotRepository(connection)
        self._lanes = LaneRepository(connection, repository.family)
        self._reached = Reached(terms.queue)

    def follow(self, marks: Marks) -> None:
        """Let out of the lanes what stands above these marks, which learn from the claims."""
        self._reached.by(marks)

    def admit(self, keys: Iterable[str | None]) -> None:
        """Let jobs of these keys out of their lanes, as far as there is room."""
        if found := counted(keys):
            self._lanes.admit(found, self._reached)

    # With a claim.

    def taken(self, jobs: list[ClaimedJob]) -> tuple[list[ClaimedJob], list[Fence]]:
        """The jobs that have a slot, or need none; the fences of those that went into a lane."""
        keyed = [job for job in jobs if job.limit_key is not None]
        if not keyed:
            return jobs, []
        wants = [Want(job.limit_key or "", job.family, job.fence) for job in keyed]
        taken = self._slots.take(wants, lease_s=self._lease_s)
        self._kept.claimed(keyed)
        self._kept.add(taken.slots.values())
        refused = [keyed[place] for place in sorted(taken.full)]
        try:
            if refused:
                self._put_aside(refused)
            self.admit(job.limit_key for job in keyed)
        except BaseException:
            # Nobody hears of these jobs, so nobody will end them.
            self._kept.forget([job.fence for job in keyed])
            raise
        gone = {job.id for job in refused}
        return [job for job in jobs if job.id not in gone], [job.fence for job in refused]

    def _put_aside(self, jobs: Sequence[ClaimedJob]) -> None:
        """Put jobs into the lanes of their keys, and with them what stands in the queue for these."""
        self._repository.end_many(
            [
                Ending(
                    job.fence,
                    JobStatus.SCHEDULED,
                    delay_s=LANE_DELAY_S,
                    hold_reason=LIMIT_FULL,
                    hold_key=job.limit_key,
                )
                for job in jobs
            ]
        )
        self._lanes.move_others({job.limit_key or "" for job in jobs})
        self._kept.forget([job.fence for job in jobs])

    # With an end.

    def send_free(self, fences: Sequence[Fence]) -> None:
        """Send, before the end of these attempts, that their slots are free; read with that end."""
        self._slots.send_free(self._kept.of(fences))

    def send_admit(self, keys: Mapping[str, int]) -> Callable[[], object]:
        """Send, after the commit of that end, what lets the next out of the lanes; call it for the answer."""
        return self._lanes.send_admit(keys, self._reached)

    def free(self, fences: Sequence[Fence]) -> None:
        """Give back the slots of attempts that have no end to write: they are another's, or over."""
        if not self._kept or not (keys := self._kept.keys_of(fences)):
            return
        self._slots.free(self._kept.of(fences))
        self._lanes.admit_freed(keys, self._reached)
        self._kept.forget(fences)

    def free_left_by(self, worker_id: str) -> None:
        """Give back the slots of jobs that this worker was given and never heard of."""
        if freed := self._slots.free_left_by(worker_id):
            self._lanes.admit_freed(freed, self._reached)

    def free_late(self) -> None:
        """Give back what was taken again while its attempt ended."""
        self._give_back(self._kept.pop_late())

    # With a renewal of leases.

    def renew(self, held: Sequence[HeldJob]) -> set[Slot]:
        """Extend the leases of what these jobs hold; the slots that were lost."""
        slots = self._kept.of([one.job.fence for one in held]) if self._kept else []
        renewed = self._slots.renew(slots, lease_s=self._lease_s)
        return set(slots).difference(renewed) if len(renewed) < len(slots) else set()

    def take_again(self, lost: set[Slot], held: Sequence[HeldJob]) -> None:
        """Slots that a crash of the server forgot; a job without them has to go back.

        Not those that were given back meanwhile: with their job, which is not held any more, or by itself.
        """
        wanted = [slot for slot in self._kept.of(one.job.fence for one in held) if slot in lost]
        # Each cap for itself, the lowest first: taken together, two would share the lower one.
        wanted.sort(key=_most)
        without: set[Fence] = set()
        for _, group in groupby(wanted, key=_most):
            without |= self._replace(list(group))
        for one in held:
            if one.job.fence in without:
                _log.warning("job %d: its slot of a limit is another's by now", one.job.id)
                one.tell(Stop.RELEASE, "its slot of a limit was lost", time.monotonic() + self._lease_s)

    def _replace(self, lost: Sequence[Slot]) -> set[Fence]:
        """Slots in the place of those that are lost and wanted still; the attempts that got none."""
        wants = [Want(slot.key, slot.family, slot.fence, slot.most) for slot in lost]
        again = self._slots.take(wants, lease_s=self._lease_s)
        # A window may have been closed meanwhile, or the job be over.
        unwanted = [slot for place, slot in again.slots.items() if not self._kept.replace(lost[place], slot)]
        self._give_back(unwanted)
        for place in again.unlimited:
            self._kept.lose(lost[place])
        return {lost[place].fence for place in again.full if self._kept.lose(lost[place])}

    def _give_back(self, slots: Sequence[Slot]) -> None:
        """Slots that were taken for nobody."""
        if slots:
            self._slots.free(slots)
            self._lanes.admit_freed(counted(slot.key for slot in slots), self._reached)


def _most(slot: Slot) -> float:
    return math.inf if slot.most is None else slot.most
