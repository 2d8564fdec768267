"""Low-water marks: how far a worker has come in each priority of its queue, and need not walk again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from queue_workflows.repositories.sql.claimed_job import ClaimedJob

PRIORITIES: Final = tuple(range(9, -1, -1))


UNMARKED: Final = (0,) * len(PRIORITIES)


# Where nothing but suspects is.
PAST_ALL: Final = (2**63 - 1,) * len(PRIORITIES)


# How long nothing is passed by after that has cost a claim that was in vain.
_ASKS_AGAIN_FOR_S: Final = 60.0


class Marks:
    """One worker's low-water marks on one queue; a pure object that is told the time.

    Before a claim ask `positions(now)`, after its answer call `claimed(…)`. `empty` says whether the last
    claim looked at everything and came up short, which alone makes a worker believe that there is no work;
    `full` whether it brought all that it asked for.
    """

    def __init__(self, poll_s: float, *, passes_by: bool = False) -> None:
        """Whether to pass by, above the marks, what others are at; only ingest jobs are claimed so."""
        self._poll_s = poll_s
        self._passes_from = -math.inf if passes_by else math.inf
        self._is_passing = self._passed_short = False
        self._marks = dict.fromkeys(PRIORITIES, 0)
        self._looked_at: float | None = None
        self._short = False
        self._asked_all = True
        self.empty = False
        self.full = False

    def positions(self, now: float) -> tuple[int, ...]:
        """What to claim from; nothing but zeros when it is time to look at everything."""
        self._asked_all = (
            self._short or self._looked_at is None or not 0 <= now - self._looked_at < self._poll_s
        )
        if self._asked_all:
            self._looked_at = now
            return UNMARKED
        self._is_passing = now >= self._passes_from
        marks = self._marks.values()
        return tuple([-mark for mark in marks] if self._is_passing else marks)

    @property
    def reached(self) -> tuple[int, ...]:
        """How far the last claims came, per priority."""
        return tuple(self._marks.values())

    def unsure(self) -> None:
        """A claim's answer was lost, or a row was given back since: what was learned of "empty" is void."""
        self.empty = self._asked_all = False
        self._looked_at = None

    def claimed(self, jobs: Sequence[ClaimedJob], wanted: int) -> None:
        """Learn from the answer to a claim, which asked for `wanted` jobs; they come in their order.

        A claim without marks that found a straggler sets the mark back to it, so that its neighbours follow.
        A mark stands right before the last one: another may have the same place, if it came out of a lane.
        A suspect comes by itself, after all the others, and says nothing of them.
        """
        if len(jobs) == 1 and jobs[0].suspect:
            self.full, self.empty, self._short = True, False, False
            return
        if jobs and jobs[0].priority == jobs[-1].priority:
            self._marks[jobs[-1].priority] = max(jobs[-1].position - 1, 0)
        else:
            highest: dict[int, int] = {}
            for job in jobs:
                highest[job.priority] = max(job.position - 1, highest.get(job.priority, 0))
            self._marks.update(highest)
        short = len(jobs) < wanted
        if not self._asked_all:
            self._passed_short = short and self._is_passing
        elif self._passed_short:
            self._passed_short = False
            if not short and self._looked_at is not None and self._passes_from < math.inf:
                # Many were locked once and are nobody's, as by the foreign keys of a host app's tables.
                self._passes_from = self._looked_at + _ASKS_AGAIN_FOR_S
        self.full = not short
        self.empty = short and self._asked_all
        self._short = short and not self._asked_all


def marks_text(positions: Sequence[int]) -> str:
    """Marks as an array that the server reads."""
    return "{" + ",".join(map(str, positions)) + "}"
