"""A run as boxes: what is alike is one box, and there are never more than can be drawn."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_workflows.engine.watch.run_view import Elements, NodeOverview, RunOverview
from queue_workflows.views.runs.graph import MOST_BOXES, Box, RunGraph, graph_of, json_of

AT = datetime(2026, 1, 2, 14, tzinfo=UTC)


def run(*nodes: NodeOverview, **counts: int) -> RunOverview:
    return RunOverview(uuid.UUID(int=1), "film", "running", AT, AT, nodes=nodes, counts=counts)


def task(name: str, *parents: str, state: str = "waiting", module: str = "m") -> NodeOverview:
    return NodeOverview(name, parents=parents, state=state, module=module)


def shape(graph: RunGraph) -> tuple[dict[str, int], set[tuple[str, str]]]:
    return {box.id: box.members for box in graph.boxes}, set(graph.edges)


def chains(number: int) -> list[NodeOverview]:
    """So many chains of three beside each other, between one node and another."""
    nodes = [task("plan")]
    for at in range(number):
        nodes += [task(f"read{at}", "plan"), task(f"draw{at}", f"read{at}", module="d")]
        nodes += [task(f"store{at}", f"draw{at}", module="s")]
    return [*nodes, task("publish", *(f"store{at}" for at in range(number)))]


def test_each_node_of_a_small_run_is_a_box() -> None:
    """With an edge from each parent, but for those that another path goes past."""
    graph = graph_of(run(task("a"), task("b", "a"), task("c", "a", "b")))
    assert shape(graph) == ({"a": 1, "b": 1, "c": 1}, {("a", "b"), ("b", "c")})


def test_a_node_with_elements_is_a_box_with_their_counts() -> None:
    """Those that nobody has begun wait; the worst state that it is in comes first."""
    elements = Elements(100, completed=60, failed=2, running=8)
    graph = graph_of(run(NodeOverview("draw", state="running", module="draw", elements=elements)))
    (box,) = graph.boxes
    assert box == Box(
        id="draw",
        label="draw",
        kind="for_each",
        state="running",
        counts={"failed": 2, "running": 8, "waiting": 30, "completed": 60},
        members=1,
        module="draw",
        note=box.note,
        started_at=None,
        finished_at=None,
        named=("draw",),
    )
    assert list(box.counts) == ["failed", "running", "waiting", "completed"]
    assert "60/100" in box.note


def test_many_chains_beside_each_other_are_one() -> None:
    """Each step is a box that counts its nodes by state, and names those that failed first."""
    nodes = chains(1666)
    nodes[5] = task("draw1", "read1", state="failed", module="d")
    graph = graph_of(run(*nodes))
    assert shape(graph) == (
        {"plan": 1, "read0": 1666, "draw0": 1666, "store0": 1666, "publish": 1},
        {("plan", "read0"), ("read0", "draw0"), ("draw0", "store0"), ("store0", "publish")},
    )
    draw = graph.boxes[2]
    assert (draw.label, draw.state, draw.module) == ("draw0 … draw1665", "failed", "d")
    assert (draw.counts, draw.named[0]) == ({"failed": 1, "waiting": 1665}, "draw1")


def test_boxes_stay_where_they_are_as_the_run_goes_on() -> None:
    """What changes is what they count."""
    before = graph_of(run(*chains(100)))
    done = [task(node.id, *node.parents, state="completed", module=str(node.module)) for node in chains(100)]
    after = graph_of(run(*done[:150], *chains(100)[150:]))
    assert shape(after) == shape(before)
    assert [sum(box.counts.values()) for box in after.boxes] == [1, 100, 100, 100, 1]


@pytest.mark.parametrize("modules", [1, 9, 5000])
@pytest.mark.parametrize("nodes", [301, 5000])
def test_never_more_than_can_be_drawn(nodes: int, modules: int) -> None:
    """Of chains, of what nobody drew by hand, and of nodes that all are of another module."""
    lots = random.Random(nodes + modules)
    chain = [task(f"n{at}", *[f"n{at - 1}"][:at], module=f"m{at % modules}") for at in range(nodes)]
    tangle = [
        task(f"n{at}", *{f"n{lots.randrange(at)}" for _ in range(min(at, 3))}, module=f"m{at % modules}")
        for at in range(nodes)
    ]
    for made in (chain, tangle):
        graph = graph_of(run(*made))
        assert len(graph.boxes) <= MOST_BOXES
        assert sum(box.members for box in graph.boxes) == nodes
        check_drawable(graph)


@given(st.lists(st.tuples(st.integers(0, 2), st.sets(st.integers(0, 40), max_size=4)), max_size=40))
def test_boxes_are_a_graph_without_circles(given: Sequence[tuple[int, set[int]]]) -> None:
    """However they are folded; each node is in one of them."""
    nodes = [
        task(f"n{at}", *sorted(f"n{parent}" for parent in parents if parent < at), module=str(module))
        for at, (module, parents) in enumerate(given)
    ]
    for few, most in ((60, 300), (0, 300), (0, 8), (0, 1)):
        graph = graph_of(run(*nodes), few=few, most=most)
        assert len(graph.boxes) <= max(most, 0 if few < len(nodes) else len(nodes))
        assert sum(box.members for box in graph.boxes) == len(nodes)
        check_drawable(graph)


def check_drawable(graph: RunGraph) -> None:
    """Every edge is between two boxes, and none leads back."""
    left = {box.id: {above for above, below in graph.edges if below == box.id} for box in graph.boxes}
    assert {name for edge in graph.edges for name in edge} <= left.keys()
    while ready := [name for name, above in left.items() if not above]:
        for name in ready:
            del left[name]
        for above in left.values():
            above.difference_update(ready)
    assert not left


def test_of_a_run_that_is_too_large_only_counts_are_boxes() -> None:
    """Beside the nodes that fail or are at something."""
    graph = graph_of(run(task("n7", state="failed"), over=20_000, failed=1, active=0))
    assert [(box.kind, box.label, box.state) for box in graph.boxes] == [
        ("counts", "20,000 nodes over", "completed"),
        ("counts", "1 node failed", "failed"),
        ("task", "n7", "failed"),
    ]
    assert json_of(graph)["boxes"][0]["counts"] == {"completed": 20_000}
