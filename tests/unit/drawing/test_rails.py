"""The rails beside a drawn graph say exactly its edges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from queue_workflows.drawing.fold import folded
from queue_workflows.drawing.rails import MARK, Rail, rails, reduced

DOWN = set("│├┤┼╭╮┬")


def drawn(graph: Mapping[str, str]) -> str:
    """The rails of `{row: "parent parent"}`, as text."""
    lines = rails({row: above.split() for row, above in graph.items()}, most_lanes=99)
    assert lines is not None
    return "\n".join(f"{line.text}  {line.row}" if line.row else line.text for line in lines)


def traced(lines: Sequence[Rail]) -> dict[str, set[str]]:
    """The parents of each row, found by following the rails with a finger."""
    lanes: dict[int, set[str]] = {}
    parents: dict[str, set[str]] = {}
    source, owner = 0, ""
    for text, row in lines:
        if row is None:
            lanes = _parted(text, lanes, source, owner)
            continue
        # Only what the line above was drawn on for reaches this one.
        lanes = {at: owners for at, owners in lanes.items() if text[2 * at : 2 * at + 1].strip()}
        source, owner = text.index(MARK) // 2, row
        parents[row] = lanes.get(source, set())
        lanes[source] = {row}
    return parents


def _parted(text: str, lanes: Mapping[int, set[str]], source: int, owner: str) -> dict[int, set[str]]:
    """What the lanes come from below a line between two rows, the upper one of which is at `source`."""
    cells = text[::2]
    reached = {source} if source < len(cells) else set()
    for step in (1, -1):
        at = source + step
        while 0 <= at < len(cells) and text[2 * at - step : 2 * at - step + 1] == "─":
            reached |= {at} if cells[at] not in "│─" else set()
            at += step
    below = {at: set(owners) for at, owners in lanes.items() if at != source}
    for at in reached:
        below.setdefault(at, set()).add(owner)
    return {at: owners for at, owners in below.items() if at < len(cells) and cells[at] in DOWN}


def test_a_chain_is_a_column():
    """Nothing between its rows."""
    assert drawn({"a": "", "b": "a", "c": "b"}) == "*  a\n*  b\n*  c"


def test_a_diamond():
    """Opens and closes."""
    picture = ["*  a", "├─╮", "* │  b", "│ *  c", "├─╯", "*  d"]
    assert drawn({"a": "", "b": "a", "c": "a", "d": "b c"}) == "\n".join(picture)


def test_edges_that_pass_below_others():
    """A lane that an edge crosses stays whole, one that it joins has a knot."""
    graph = {"a": "", "b": "a", "c": "a", "e": "a", "d": "b c e", "f": "c", "x": "", "g": "x b"}
    picture = [
        *("*  a", "├─┬─╮", "* │ │  b", "├─│─│─╮", "│ * │ │  c", "├─┤ │ │", "│ * │ │  f", "│   * │  e"),
        *("├───╯ │", "*     │  d", "      │", "*     │  x", "╰─────┤", "      *  g"),
    ]
    assert drawn(graph) == "\n".join(picture)


def test_an_edge_beside_a_path_is_not_drawn():
    """What comes after a node comes after those above it anyway."""
    assert reduced({"a": [], "b": ["a"], "c": ["a", "b", "a"]}) == {"a": [], "b": ["a"], "c": ["b"]}


def test_too_many_lanes_are_none():
    """Nobody could follow them."""
    fan = {"a": [], **{f"n{number}": ["a"] for number in range(20)}}
    assert rails(fan, most_lanes=19) is None
    assert rails(fan, most_lanes=20) is not None


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, list[str]]:
    """Acyclic graphs of up to twelve rows, in any order."""
    rows = [f"n{number}" for number in range(draw(st.integers(1, 12)))]
    above = {
        row: draw(st.lists(st.sampled_from(rows[:place]), max_size=4, unique=True)) if place else []
        for place, row in enumerate(rows)
    }
    return {row: above[row] for row in draw(st.permutations(rows))}


@given(graphs())
def test_the_rails_are_the_edges(graph):
    """Followed by finger, they lead from each row's parents to it, each row drawn once and after them."""
    lines = rails(graph, most_lanes=99)
    assert lines is not None
    order = [line.row for line in lines if line.row]
    assert sorted(order) == sorted(graph)
    assert all(order.index(parent) < order.index(row) for row, above in graph.items() for parent in above)
    assert traced(lines) == {row: set(above) for row, above in graph.items()}


def _reach(parents: Mapping[str, Sequence[str]]) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()

    def climb(row: str, above: str) -> None:
        if (above, row) not in found:
            found.add((above, row))
            for further in parents[above]:
                climb(row, further)

    for row, near in parents.items():
        for parent in near:
            climb(row, parent)
    return found


@given(graphs())
def test_reducing_keeps_the_order(graph):
    """What came after what still does, and no edge can be left out any more."""
    fewer = reduced(graph)
    assert _reach(fewer) == _reach(graph)
    for row, above in fewer.items():
        for parent in above:
            without = {**fewer, row: [other for other in above if other != parent]}
            assert _reach(without) != _reach(graph)


@given(graphs(), st.data())
def test_folding_loses_no_node_and_no_order(graph, data):
    """Each node is in one row with nodes of its state, and a row waits for what its first node waits for."""
    states = {row: data.draw(st.sampled_from(["done", "waits", None])) for row in graph}
    few = data.draw(st.integers(1, 3))
    rows = folded(graph, alike=states.__getitem__, most=0, few=few)
    assert sorted(node for members in rows.members.values() for node in members) == sorted(graph)
    for members in rows.members.values():
        assert len(members) == 1 or (len({states[one] for one in members}) == 1 and states[members[0]])
    row_of = {node: row for row, members in rows.members.items() for node in members}
    paths = _reach(rows.parents)
    for above, below in _reach(graph):
        assert row_of[above] == row_of[below] or (row_of[above], row_of[below]) in paths
    assert not any((below, above) in paths for above, below in paths)
    fewer = reduced(graph)
    for row, members in rows.members.items():
        assert set(rows.parents[row]) == {row_of[parent] for parent in fewer[members[0]]}
