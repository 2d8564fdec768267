"""How many ends a run awaits, and how long a dispatcher leaves it alone for them."""

from __future__ import annotations

import math
from uuid import UUID

import pytest

from queue_workflows.states import NodeState
from queue_workflows.workflow.planning.ends_awaited import LONGEST_REST_S, Rests, ends_awaited
from queue_workflows.workflow.planning.graph import Graph, Shape, graph_from
from queue_workflows.workflow.planning.progress import Counters, RunCounters

RUN = UUID(int=1)
FAN = graph_from(
    [Shape("a"), *(Shape(f"n{at}", ["a"]) for at in range(9)), Shape("z", [f"n{at}" for at in range(9)])]
)
LISTS = graph_from([Shape("a", is_mapped=True), Shape("b"), Shape("c", ["a", "b"]), Shape("d")])
STEPS = graph_from([Shape("a", in_step=True), Shape("b", ["a"], in_step=True)])


def active(*left: tuple[str, int]) -> list[Counters]:
    return [Counters(node_id, NodeState.ACTIVE, total=9, left=ends) for node_id, ends in left]


@pytest.mark.parametrize(
    ("graph", "rows", "run", "ends"),
    [
        (FAN, active(*((f"n{at}", 1) for at in range(5))), RunCounters(6, 5), 5),
        # A list's elements, and what else its child waits for; the end of `d` opens nothing.
        (LISTS, active(("a", 4), ("b", 1), ("d", 1)), RunCounters(4, 3), 5),
        (LISTS, active(("d", 1)), RunCounters(1, 1), 1),
        # One that is active is not known, a stop, and steps, which do not wait for all ends.
        (LISTS, active(("a", 4)), RunCounters(4, 2), 0),
        (LISTS, active(("a", 4)), RunCounters(1, 1, stopping="cancel"), 0),
        (STEPS, active(("a", 1)), RunCounters(2, 1), 0),
    ],
)
def test_the_fewest_ends_that_anything_follows_from(
    graph: Graph, rows: list[Counters], run: RunCounters, ends: int
) -> None:
    """By the child that needs the fewest of what is at work, or by the end of the run."""
    assert ends_awaited(graph, run, [*rows, None, Counters("c", parents_left=2)]) == ends


def test_a_run_is_left_alone_for_less_than_its_ends_take() -> None:
    """By what they took before; never for long, and not where few are left or they come one by one."""
    rests, asked = Rests(), list[int]()

    def counted(ends: int) -> int:
        asked.append(ends)
        return ends

    rests.acted(RUN, 1, lambda: counted(40), now=1.0, is_same=False)
    assert 1.0 < (first := rests.ends_at(1.0)) <= 1.0 + 40 * 0.0002
    assert (rests.is_resting(RUN, 1.0), rests.is_resting(RUN, first)) == (True, False)
    # When the first job began is not known; what is left need not be counted, as nothing else has changed.
    rests.acted(RUN, 10, lambda: counted(30), now=2.0, is_same=True)
    assert 2.0 < rests.ends_at(2.0) <= 2.0 + 30 * 0.0002
    rests.acted(RUN, 10, lambda: counted(20), now=2.010, is_same=True)
    assert 2.010 + 10 * 0.001 < rests.ends_at(2.010) <= 2.010 + 20 * 0.001
    rests.acted(RUN, 10, lambda: counted(10), now=2.030, is_same=True)
    assert 2.030 + 5 * 0.002 < rests.ends_at(2.030) <= 2.030 + LONGEST_REST_S
    rests.acted(RUN, 8, lambda: counted(2), now=2.039, is_same=True)
    assert (rests.ends_at(2.039), asked) == (math.inf, [40, 10, 2])
    rests.acted(RUN, 1, lambda: counted(40), now=3.0, is_same=False)
    for now in (3.1, 3.2):
        rests.acted(RUN, 1, lambda: counted(38), now=now, is_same=True)
    assert not rests.is_resting(RUN, 3.2)
    rests.acted(RUN, 0, lambda: counted(40), now=4.0, is_same=False)
    assert rests.is_resting(RUN, 4.0)
    rests.forget(RUN)
    assert not rests.is_resting(RUN, 4.0)
