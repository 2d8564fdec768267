"""What an event costs, counted in rows and nodes looked at, never in seconds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.reference.planned_runs import CANCELLED, COMPLETED, FAILED, PlannedRun

from queue_workflows.states import RunStatus
from queue_workflows.workflow.planning.graph import Graph, GraphNode, Shape, graph_from
from queue_workflows.workflow.planning.progress import (
    Begun,
    CancelNode,
    CancelRun,
    Ended,
    Opened,
    SkippedNode,
)

SIZES = (100, 10_000, pytest.param(100_000, marks=pytest.mark.slow))
A_FEW = 60


class CountedNodes(dict[str, GraphNode]):
    """The nodes of a graph, counting how many of them somebody has looked at."""

    touched = 0

    def __getitem__(self, node_id: str) -> GraphNode:
        self.touched += 1
        return super().__getitem__(node_id)

    def __iter__(self) -> Iterator[str]:
        self.touched += len(self)
        return super().__iter__()


def counted(*shapes: Shape) -> tuple[PlannedRun, CountedNodes]:
    graph = graph_from(shapes)
    nodes = CountedNodes(graph.nodes)
    run = PlannedRun(Graph(nodes, graph.roots))
    nodes.touched = 0
    return run, nodes


def crowd(size: int, **shape: str) -> list[Shape]:
    """So many nodes that the chain a -> b, c, d -> e has nothing to do with, below one that never ends."""
    others = [Shape(f"n{number}", ("busy",)) for number in range(size)]
    small = [Shape("a"), *(Shape(name, ("a",), **shape) for name in "bcd"), Shape("e", ("b", "c", "d"))]
    return [Shape("busy"), *others, *small]


@pytest.mark.parametrize("size", SIZES)
def test_an_event_costs_what_hangs_on_its_node(size: int) -> None:
    """However many other nodes the run has."""
    run, nodes = counted(*crowd(size, on_failure="continue"))
    run.do(Begun())
    for event in (
        Opened("busy"),
        Opened("a"),
        Ended("a", COMPLETED),
        SkippedNode("b"),
        Opened("c"),
        Opened("d"),
        CancelNode("c"),
        Ended("c", CANCELLED),
        Ended("d", FAILED),
    ):
        nodes.touched, run.looks = 0, []
        run.do(event)
        assert (nodes.touched <= A_FEW, sum(run.looks) <= 6, len(run.looks) <= 2) == (True, True, True), event
    assert run.row("e").state == "cancelled"


@pytest.mark.parametrize("size", SIZES)
def test_an_end_of_one_element_costs_the_same_in_a_list_of_any_length(size: int) -> None:
    """And nothing looks at what follows the list before its last element has ended."""
    run, nodes = counted(Shape("each", is_mapped=True), *(Shape(f"n{n}", ("each",)) for n in range(size)))
    run.do(Begun())
    run.do(Opened("each", size))
    nodes.touched, run.looks = 0, []
    run.do(Ended("each", COMPLETED))
    assert nodes.touched <= A_FEW
    assert run.looks == [1]


@pytest.mark.parametrize("cancels", [CancelRun(), Ended("a", FAILED)], ids=["cancel", "fail_fast"])
def test_a_stop_looks_at_all_nodes_once_and_writes_only_rows_that_are_there(
    cancels: CancelRun | Ended,
) -> None:
    """A second cancel looks at nothing."""
    size = 10_000
    run, _ = counted(*crowd(size))
    run.do(Begun())
    run.do(Opened("busy"), Opened("a"))
    run.looks = []
    step = run.do(cancels)
    assert sum(run.looks) <= size + 20
    assert len(run.looks) <= 2
    assert len(step.nodes) <= 5
    run.do(CancelRun())
    run.looks = []
    assert run.do(CancelRun()).nodes == {}
    assert run.looks == []


def test_a_chain_that_is_cancelled_node_by_node_takes_few_looks() -> None:
    """It grows what it fetches at once with what it has cancelled, and asks for no more."""
    size = 20_000
    shapes = [Shape("n0", on_failure="continue")]
    shapes += [Shape(f"n{number}", (f"n{number - 1}",)) for number in range(1, size)]
    run, _ = counted(*shapes)
    run.do(Begun())
    run.do(Opened("n0"))
    run.looks = []
    assert run.do(Ended("n0", FAILED)).over is RunStatus.FAILED
    assert len(run.looks) <= 20
    assert sum(run.looks) <= size


@pytest.mark.parametrize("size", SIZES)
def test_a_cascade_asks_for_no_more_than_it_ends(size: int) -> None:
    """Those far below that one of the next nodes keeps waiting are of no concern to it."""
    shapes = [Shape("busy"), Shape("bad", on_failure="continue"), Shape("x", ("bad",)), Shape("y", ("x",))]
    shapes += [Shape("waits", ("busy", "y")), *(Shape(f"n{number}", ("waits",)) for number in range(size))]
    run, nodes = counted(*shapes)
    run.do(Begun())
    run.do(Opened("busy"), Opened("bad"))
    nodes.touched, run.looks = 0, []
    run.do(Ended("bad", FAILED))
    assert (nodes.touched <= A_FEW, sum(run.looks) <= 12) == (True, True)
