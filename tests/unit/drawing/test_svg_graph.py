"""A graph of any shape is laid out without a box on another, and drawn within its bounds."""

from __future__ import annotations

import itertools
import random
import xml.etree.ElementTree as ET

from hypothesis import given, settings
from hypothesis import strategies as st
from support.reference.examples import examples

from queue_workflows.drawing.svg.graph import MOST_BOXES, Box, draw_graph
from queue_workflows.drawing.svg.layers import BOX_HEIGHT, BOX_WIDTH, PER_ROW, Layout, laid_out

Graph = tuple[list[str], list[tuple[str, str]]]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Boxes and edges, which may go anywhere: in circles, to themselves, and to what is not there."""
    ids = [f"n{number}" for number in range(draw(st.integers(0, 40)))]
    ends = st.sampled_from([*ids, "missing"])
    return ids, draw(st.lists(st.tuples(ends, ends), max_size=80))


def fan(width: int) -> Graph:
    """One parent, many children, and one child of them all."""
    middle = [f"m{number}" for number in range(width)]
    return ["a", *middle, "z"], [("a", one) for one in middle] + [(one, "z") for one in middle]


def overlapping(layout: Layout) -> list[tuple[str, str]]:
    """Pairs of boxes that share a place."""
    return [
        (one, other)
        for (one, (x, y)), (other, (left, top)) in itertools.combinations(layout.corners.items(), 2)
        if abs(x - left) < BOX_WIDTH - 0.01 and abs(y - top) < BOX_HEIGHT
    ]


def outside(layout: Layout) -> list[object]:
    """Boxes and pieces of edges that leave the picture."""
    points = [(x, y) for x, y in layout.corners.values()]
    points += [(x + BOX_WIDTH, y + BOX_HEIGHT) for x, y in layout.corners.values()]
    points += [point for piece in layout.pieces for point in (piece[:2], piece[2:])]
    return [(x, y) for x, y in points if not (0 <= x <= layout.width and 0 <= y <= layout.height)]


def arrives(layout: Layout, parent: str, child: str) -> bool:
    """Whether a finger that follows the pieces from the parent down comes to the child."""
    x, y = layout.corners[parent]
    to_x, to_y = layout.corners[child]
    target = (round(to_x + BOX_WIDTH / 2, 3), round(to_y, 3))
    reached = {(round(x + BOX_WIDTH / 2, 3), round(y + BOX_HEIGHT, 3))}
    for begin_x, begin_y, end_x, end_y in sorted(layout.pieces, key=lambda piece: piece[1]):
        if (round(begin_x, 3), round(begin_y, 3)) in reached:
            reached.add((round(end_x, 3), round(end_y, 3)))
    return target in reached


@given(graphs())
@settings(max_examples=examples(120), deadline=None)
def test_no_box_is_upon_another(graph: Graph) -> None:
    """Nor outside of the picture, and none is left out."""
    layout = laid_out(*graph)
    assert (sorted(layout.corners), overlapping(layout), outside(layout)) == (sorted(graph[0]), [], [])


@given(st.integers(2, 30), st.integers(0, 60), st.randoms(use_true_random=False))
@settings(max_examples=examples(60), deadline=None)
def test_each_edge_leads_down_from_its_parent_to_its_child(
    count: int, edges: int, chance: random.Random
) -> None:
    """Along pieces that hang together; one that follows from others is not drawn."""
    ids = [f"n{number}" for number in range(count)]
    graph = {tuple(sorted(chance.sample(range(count), 2))) for _ in range(edges)}
    pairs = [(f"n{one}", f"n{other}") for one, other in graph]
    layout = laid_out(ids, pairs)
    drawn_up = [pair for pair in pairs if layout.corners[pair[0]][1] >= layout.corners[pair[1]][1]]
    assert drawn_up == []
    below: dict[str, set[str]] = {one: set() for one in ids}
    for one in reversed(ids):
        for parent, child in pairs:
            if parent == one:
                below[one] |= {child, *below[child]}
    implied = {
        (parent, child)
        for parent, child in pairs
        if any(child in below[other] for above, other in pairs if above == parent and other != child)
    }
    assert [pair for pair in pairs if pair not in implied and not arrives(layout, *pair)] == []


def test_no_edge_goes_below_a_box_that_it_only_passes() -> None:
    """Or one could not tell where it leads."""
    layout = laid_out(*fan(17))
    crossed = [
        (piece, box)
        for piece in layout.pieces
        for box, (x, y) in layout.corners.items()
        if piece[0] == piece[2]
        and x < piece[0] < x + BOX_WIDTH
        and piece[1] < y + BOX_HEIGHT
        and piece[3] > y
    ]
    assert crossed == []


def test_a_wide_layer_takes_several_rows() -> None:
    """So that a page is as wide as a screen, and a little wider at the most."""
    layout = laid_out(*fan(MOST_BOXES - 2))
    rows = {y for _, y in layout.corners.values()}
    assert len(rows) == 2 + -(-(MOST_BOXES - 2) // PER_ROW)
    assert layout.width < (PER_ROW + 1) * (BOX_WIDTH + 16)


def test_only_so_many_boxes_are_drawn() -> None:
    """However many somebody has, a picture stays one that can be sent."""
    ids, edges = fan(2 * MOST_BOXES)
    svg = draw_graph([Box(one, one) for one in ids], edges)
    boxes = [element for element in ET.fromstring(svg).iter("rect") if element.get("class") == "box toned"]
    assert (len(boxes), len(svg) < 400_000) == (MOST_BOXES, True)


def test_places_do_not_depend_on_states() -> None:
    """A graph that is watched changes its tones, and not its places."""
    ids, edges = fan(9)

    def places(state: str) -> list[str | None]:
        svg = draw_graph([Box(one, one, state=state) for one in ids], edges)
        return [element.get("transform") for element in ET.fromstring(svg).iter("g")]

    assert places("waiting") == places("failed") != [None] * len(ids)


def test_a_box_says_what_it_is_at() -> None:
    """A node its state or its note, many nodes how many, elements how far they are; a hover says it all."""
    boxes = [
        Box("a", "plan", state="completed"),
        Box("b", "draw", "for_each", "running", {"completed": 45, "running": 5, "waiting": 50}),
        Box("c", "c1 … c9", state="failed", counts={"failed": 2, "completed": 7}, members=9),
        Box("d", "ask", "input", "awaiting_input", note="expires at 16:30"),
    ]
    root = ET.fromstring(draw_graph(boxes, []))
    texts = [text.text for text in root.iter("text")]
    hovers = [title.text for title in root.iter("title")]
    assert texts == [
        *("plan", "completed", "draw", "45 of 100", "c1 … c9", "9 nodes", "ask", "expires at 16:30"),
    ]
    assert hovers == [
        "plan: completed",
        "draw: running · 45 completed, 5 running, 50 waiting",
        "c1 … c9: failed · 2 failed, 7 completed",
        "ask: awaiting input · expires at 16:30",
    ]
