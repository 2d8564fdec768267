"""The edges of a directed acyclic graph as rails on the left of its rows, as `git log --graph` has them.

Parents stand above their children. A lane runs down the page and waits for one child; a second parent of that
child joins the lane rather than opening another, so that there are never more lanes than children awaited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

MARK: Final = "*"
# What a corner or crossing looks like, by whether it reaches up, down, left and right.
_JOINTS: Final = {
    (True, True, False, False): "│",
    (False, False, True, True): "─",
    (True, True, False, True): "├",
    (True, True, True, False): "┤",
    (True, True, True, True): "┼",
    (True, False, False, True): "╰",
    (True, False, True, False): "╯",
    (True, False, True, True): "┴",
    (False, True, False, True): "╭",
    (False, True, True, False): "╮",
    (False, True, True, True): "┬",
}


class Rail(NamedTuple):
    """One line of rails: before a row, with its place at MARK, or between two rows."""

    text: str
    row: str | None


def reduced(parents: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """An equal order with fewer edges: none to a child that is reached through another one as well."""
    order = topological(parents)
    place = {row: number for number, row in enumerate(order)}
    # The set of all above a row, as the bits of a number.
    above: dict[str, int] = {}
    kept: dict[str, list[str]] = {}
    for row in order:
        near = list(dict.fromkeys(parents[row]))
        further = 0
        for parent in near:
            further |= above[parent]
        kept[row] = [parent for parent in near if not further >> place[parent] & 1]
        above[row] = further | sum(1 << place[parent] for parent in near)
    return {row: kept[row] for row in parents}


def children_of(parents: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """The edges seen from above, in the order of the rows."""
    children: dict[str, list[str]] = {row: [] for row in parents}
    for row, above in parents.items():
        for parent in above:
            children[parent].append(row)
    return children


def topological(parents: Mapping[str, Sequence[str]]) -> list[str]:
    """Parents first, and each row as soon as it may come after the one above it, so that lanes stay short."""
    children = children_of(parents)
    open_parents = {row: len(set(above)) for row, above in parents.items()}
    ready = [row for row, count in open_parents.items() if not count][::-1]
    order: list[str] = []
    while ready:
        row = ready.pop()
        order.append(row)
        freed = []
        for child in dict.fromkeys(children[row]):
            open_parents[child] -= 1
            if not open_parents[child]:
                freed.append(child)
        ready.extend(reversed(freed))
    return order


def rails(parents: Mapping[str, Sequence[str]], *, most_lanes: int) -> list[Rail] | None:
    """All rows in their order and the edges between them; None if that takes more lanes than `most_lanes`."""
    children = children_of(parents)
    lanes: list[str | None] = []
    lines: list[Rail] = []
    ended: int | None = None
    for row in topological(parents):
        column = lanes.index(row) if row in lanes else _free(lanes, 0)
        if column == ended and row not in lanes:
            # Right below a row with which it has nothing to do.
            lines.append(Rail(_line(lanes, None), None))
        _put(lanes, column, row)
        lines.append(Rail(_line(lanes, column), row))
        joint = _continue(lanes, column, children[row])
        if len(lanes) > most_lanes:
            return None
        if joint is not None:
            lines.append(Rail(joint, None))
        ended = None if children[row] else column
    return lines


def _continue(lanes: list[str | None], column: int, children: Sequence[str]) -> str | None:
    """Let lanes wait for these children from here on; the line that shows how, unless it is plainly on."""
    before = list(lanes)
    lanes[column] = None
    targets = set()
    for child in children:
        at = lanes.index(child) if child in lanes else None
        if at is None:
            at = column if lanes[column] is None else _free(lanes, column + 1)
            _put(lanes, at, child)
        targets.add(at)
    while lanes and lanes[-1] is None:
        lanes.pop()
    if targets <= {column}:
        return None
    return _joint(before, lanes, column, targets)


def _joint(before: list[str | None], after: list[str | None], column: int, targets: set[int]) -> str:
    """The line between two rows on which the edges of the upper one part."""
    left, right = min(targets | {column}), max(targets | {column})

    def is_open(lanes: list[str | None], at: int) -> bool:
        return at < len(lanes) and lanes[at] is not None

    cells = []
    for at in range(max(len(before), len(after), right + 1)):
        up, down = is_open(before, at), is_open(after, at)
        if at in targets or at == column:
            cells.append(_JOINTS[up, down, at > left, at < right])
        elif left < at < right:
            # Another lane passes below the edge.
            cells.append("│" if up and down else "─")
        else:
            cells.append("│" if up and down else " ")
        cells.append("─" if left <= at < right else " ")
    return "".join(cells).rstrip()


def _line(lanes: Sequence[str | None], marked: int | None) -> str:
    cells = [MARK if at == marked else "│" if lane is not None else " " for at, lane in enumerate(lanes)]
    return " ".join(cells).rstrip()


def _free(lanes: Sequence[str | None], start: int) -> int:
    """The first column from `start` on that no lane takes."""
    for at in range(start, len(lanes)):
        if lanes[at] is None:
            return at
    return max(start, len(lanes))


def _put(lanes: list[str | None], at: int, row: str) -> None:
    lanes.extend([None] * (at + 1 - len(lanes)))
    lanes[at] = row
