"""How many jobs of a run must end before anything follows, and how long the run may be left alone until then.

An end that only counts down costs a transaction all the same. Of a hundred parents of one node the last one
opens it; so the ends of the others are taken together, a few times instead of one by one.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from queue_workflows.states import NodeState
from queue_workflows.workflow.planning.graph import Graph
from queue_workflows.workflow.planning.progress import Counters, RunCounters

# No run is left alone for longer, as something else may happen to it: a failure, a cancel, an answer.
LONGEST_REST_S: Final = 0.02
# Fewer than so many are not worth a wait.
FEWEST_ENDS: Final = 3
# What nobody has seen an end of yet may end as quickly as a job of no work does.
_QUICKEST_END_S: Final = 0.0002
# Of the time that all of the ends would take, so that the last of them is seldom waited for.
_SHARE: Final = 0.7
# A rest has so many ends in it, or there is none.
_WORTH: Final = 2
_MOST_RUNS: Final = 4_096


def ends_awaited(graph: Graph, run: RunCounters, rows: Iterable[Counters | None]) -> int:
    """The fewest jobs that must end before a node opens or the run is over, if none fails; 0 if unknown.

    `rows` are the nodes that are known. A node decides once all its parents are over, whatever its `when`;
    but for the steps of a pipeline, which do not wait for all of them.
    """
    active = [row for row in rows if row is not None and row.state is NodeState.ACTIVE]
    if not active or len(active) != run.active or run.stopping is not None:
        return 0
    below: Counter[str] = Counter()
    for row in active:
        node = graph.nodes[row.node_id]
        if node.in_step or node.is_background or row.parents_left:
            return 0
        for child in node.children:
            below[child] += row.left
    return min([sum(row.left for row in active), *below.values()])


@dataclass(frozen=True, slots=True)
class _Rest:
    """What a run awaits from the batch `at` this moment on: `ends` more at least.

    `counted` was that when all of them were last counted. Where the batch had ends, the time to the next one
    `is_paced` by them; from what opened their jobs on it is not, as nobody knows when these begin.
    """

    ends: int
    counted: int
    at: float
    is_paced: bool


class Rests:
    """Which runs one dispatcher leaves alone for a moment, because nothing can follow from them yet."""

    def __init__(self) -> None:
        self._rests: OrderedDict[UUID, _Rest] = OrderedDict()
        self._until: dict[UUID, float] = {}

    def acted(
        self, run_id: UUID, events: int, count: Callable[[], int], *, now: float, is_same: bool
    ) -> None:
        """A run has had a batch of so many events; `count` is asked for what it awaits by then.

        While `is_same`, as nothing followed from the batch, what was counted before is enough for a while.
        """
        before = self._rests.get(run_id)
        self.forget(run_id)
        left = before.ends - events if before is not None and is_same else 0
        if before is None or 2 * left < before.counted:
            left = counted = count()
        else:
            counted = before.counted
        if left < FEWEST_ENDS:
            return
        each_s = _QUICKEST_END_S
        if before is not None and before.is_paced and is_same and events:
            each_s = (now - before.at) / events
        self._rests[run_id] = _Rest(left, counted, now, is_paced=is_same and events > 0)
        rest_s = min(_SHARE * left * each_s, LONGEST_REST_S)
        # Ends that come one by one are counted as they come.
        if rest_s > _WORTH * each_s:
            self._until[run_id] = now + rest_s
        if len(self._rests) > _MOST_RUNS:
            self.forget(next(iter(self._rests)))

    def forget(self, run_id: UUID) -> None:
        """A run is over, or something may follow from it at any time."""
        self._rests.pop(run_id, None)
        self._until.pop(run_id, None)

    def is_resting(self, run_id: UUID, now: float) -> bool:
        """Whether a run is to be left alone now."""
        return now < self._until.get(run_id, -math.inf)

    def ends_at(self, now: float) -> float:
        """When the first of those that are left alone now is to be looked at again; infinity if none is."""
        self._until = {run_id: until for run_id, until in self._until.items() if until > now}
        return min(self._until.values(), default=math.inf)
