"""Where the boxes of a graph stand, and along which way its edges go: parents above, no box on another.

Boxes are put into layers by their longest path; a layer with too many of them takes several rows. An edge
over several rows has a place of its own in each, so that it goes between boxes and not below them; edges from
one parent, or to one child, share theirs. Rows are then ordered by the mean of what each place is connected
with, and moved below it as far as their order and width allow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from queue_workflows.drawing.rails import reduced

BOX_WIDTH: Final = 176
BOX_HEIGHT: Final = 52
MARGIN: Final = 8
PER_ROW: Final = 5
_BETWEEN: Final = 16
_BELOW: Final = 40
_EDGE_WIDTH: Final = 12
_SWEEPS: Final = 4
# How much more the place of an edge stays where it is than a box does, so that long edges are straight.
_STRAIGHT: Final = 1e6
# With more places than that edges go straight, below boxes too, rather than take a second to be laid.
_MOST_PLACES: Final = 4000

# A box by its id, or the place of an edge in a row.
Place = Hashable


@dataclass(frozen=True, slots=True)
class Layout:
    """The left upper corners of boxes, the pieces of edges as (x, y, x, y), and where arrows point to."""

    corners: Mapping[str, tuple[float, float]]
    pieces: Sequence[tuple[float, float, float, float]]
    heads: Sequence[tuple[float, float]]
    width: float
    height: float


def laid_out(ids: Sequence[str], edges: Sequence[tuple[str, str]]) -> Layout:
    """Boxes and edges on a plane; it depends on them alone, and not on what state a box is in."""
    parents = reduced(_without_circles(ids, edges))
    row_of, parts = _rows_of(parents)
    links = _links(parents, row_of)
    rows: list[list[Place]] = [[] for _ in range(max(row_of.values(), default=-1) + 1)]
    for box, row in row_of.items():
        rows[row].append(box)
    for place in dict.fromkeys(place for link in links for place in link if place not in row_of):
        rows[place[1]].append(place)  # type: ignore[index]
    up: dict[Place, list[Place]] = defaultdict(list)
    down: dict[Place, list[Place]] = defaultdict(list)
    for above, below in links:
        down[above].append(below)
        up[below].append(above)
    _order(rows, parts, up, down, row_of)
    middles = _middles(rows, up, down, row_of)
    return _measured(rows, links, middles, row_of)


def _without_circles(ids: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """The parents of each box, in an order of parents first; an edge that closes a circle is left out."""
    known = dict.fromkeys(ids)
    above: dict[str, list[str]] = {box: [] for box in known}
    below: dict[str, list[str]] = {box: [] for box in known}
    for parent, child in dict.fromkeys(edges):
        if parent in known and child in known and parent != child:
            above[child].append(parent)
            below[parent].append(child)
    open_parents = {box: len(parents) for box, parents in above.items()}
    order: dict[str, None] = {}
    ready = [box for box in known if not open_parents[box]]
    left = iter(known)
    while len(order) < len(known):
        if not ready:
            ready = [next(box for box in left if box not in order)]
        box = ready.pop(0)
        if box in order:
            continue
        order[box] = None
        for child in below[box]:
            open_parents[child] -= 1
            if not open_parents[child]:
                ready.append(child)
    place = {box: number for number, box in enumerate(order)}
    return {box: [one for one in above[box] if place[one] < place[box]] for box in order}


def _rows_of(parents: Mapping[str, Sequence[str]]) -> tuple[dict[str, int], set[int]]:
    """The row of each box: its layer, of which a wide one takes several; and which rows are part of one."""
    depth: dict[str, int] = {}
    layers: dict[int, list[str]] = defaultdict(list)
    for box, above in parents.items():
        depth[box] = 1 + max((depth[parent] for parent in above), default=-1)
        layers[depth[box]].append(box)
    row_of: dict[str, int] = {}
    parts: set[int] = set()
    begin = 0
    for _, boxes in sorted(layers.items()):
        count = -(-len(boxes) // PER_ROW)
        each = -(-len(boxes) // count)
        row_of |= {box: begin + number // each for number, box in enumerate(boxes)}
        after = begin + -(-len(boxes) // each)
        parts |= set(range(begin, after)) if count > 1 else set()
        begin = after
    return {box: row_of[box] for box in parents}, parts


def _links(parents: Mapping[str, Sequence[str]], row_of: Mapping[str, int]) -> list[tuple[Place, Place]]:
    """Pairs of places in rows below one another: what each edge goes along."""
    children: dict[str, int] = defaultdict(int)
    for above in parents.values():
        for parent in above:
            children[parent] += 1
    links: dict[tuple[Place, Place], None] = {}
    for child, above in parents.items():
        for parent in above:
            # Edges that share places fan out from their parent, or come together at their child.
            shared = ("from", parent) if children[parent] >= len(above) else ("to", child)
            way: list[Place] = [parent]
            way += [(shared, row) for row in range(row_of[parent] + 1, row_of[child])]
            way.append(child)
            links |= dict.fromkeys(pairwise(way))
    if len(links) <= _MOST_PLACES:
        return list(links)
    return [(parent, child) for child, above in parents.items() for parent in above]


Neighbours = Mapping[Place, Sequence[Place]]


def _order(
    rows: Sequence[list[Place]],
    parts: Container[int],
    up: Neighbours,
    down: Neighbours,
    boxes: Container[Place],
) -> None:
    """Sort each row by the mean place of what it is connected with, downwards and upwards in turn.

    In a part of a layer boxes stay in their order, with the edges that pass it in their middle.
    """
    at = {place: (number + 0.5) / len(row) for row in rows for number, place in enumerate(row)}
    for sweep in range(_SWEEPS):
        near = down if sweep % 2 else up
        numbered = list(enumerate(rows))
        for number, row in reversed(numbered) if sweep % 2 else numbered:
            mean = {place: _mean([at[one] for one in near.get(place, ())], at[place]) for place in row}
            if number in parts:
                row[:] = _around(row, mean, boxes)
            else:
                row.sort(key=mean.__getitem__)
            at |= {place: (number + 0.5) / len(row) for number, place in enumerate(row)}


def _around(row: Sequence[Place], mean: Mapping[Place, float], boxes: Container[Place]) -> list[Place]:
    """Half of the boxes, the edges in their order, and the other half."""
    still = [place for place in row if place in boxes]
    edges = sorted((place for place in row if place not in boxes), key=mean.__getitem__)
    return [*still[: len(still) // 2], *edges, *still[len(still) // 2 :]]


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _middles(
    rows: Sequence[Sequence[Place]], up: Neighbours, down: Neighbours, boxes: Mapping[str, int]
) -> dict[Place, float]:
    """How far to the right the middle of each place is."""
    middles: dict[Place, float] = {}
    for row in rows:
        spread = _spread([0.0] * len(row), _widths(row, boxes), [1.0] * len(row))
        middles |= dict(zip(row, spread, strict=True))
    for sweep in range(_SWEEPS + 1):
        near = down if sweep % 2 else up
        for row in reversed(rows) if sweep % 2 else rows:
            wanted = [_wanted(place, near.get(place, ()), middles, boxes) for place in row]
            weights = [1.0 if place in boxes else _STRAIGHT for place in row]
            middles |= dict(zip(row, _spread(wanted, _widths(row, boxes), weights), strict=True))
    return middles


def _wanted(
    place: Place, near: Sequence[Place], middles: Mapping[Place, float], boxes: Mapping[str, int]
) -> float:
    """The middle of what it is connected with; of the places of an edge, that of the edge itself."""
    own = near if place in boxes else [one for one in near if one not in boxes] or near
    return _mean([middles[one] for one in own], middles[place])


def _widths(row: Sequence[Place], boxes: Mapping[str, int]) -> list[float]:
    return [BOX_WIDTH if place in boxes else _EDGE_WIDTH for place in row]


def _spread(wanted: Sequence[float], widths: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The middles nearest to the wanted ones, by weight, of which in this order none is upon another."""
    offsets, offset = [], 0.0
    for number, width in enumerate(widths):
        offset += (widths[number - 1] + width) / 2 + _BETWEEN if number else 0.0
        offsets.append(offset)
    # Neighbours that would overlap become a block that stands at the mean of what they want.
    blocks: list[tuple[float, float, int]] = []
    for number, want in enumerate(wanted):
        weight, count = weights[number], 1
        total = (want - offsets[number]) * weight
        while blocks and blocks[-1][0] / blocks[-1][1] > total / weight:
            more, heavier, others = blocks.pop()
            total, weight, count = total + more, weight + heavier, count + others
        blocks.append((total, weight, count))
    begins = [total / weight for total, weight, count in blocks for _ in range(count)]
    return [begin + offset for begin, offset in zip(begins, offsets, strict=True)]


def _measured(
    rows: Sequence[Sequence[Place]],
    links: Sequence[tuple[Place, Place]],
    middles: Mapping[Place, float],
    boxes: Mapping[str, int],
) -> Layout:
    """Rows and middles in pixels, from the left upper corner on."""
    if not rows:
        return Layout({}, [], [], 2 * MARGIN, 2 * MARGIN)
    left = min(middles[place] - width / 2 for row in rows for place, width in _sized(row, boxes)) - MARGIN
    right = max(middles[place] + width / 2 for row in rows for place, width in _sized(row, boxes)) + MARGIN
    top = {place: MARGIN + number * (BOX_HEIGHT + _BELOW) for number, row in enumerate(rows) for place in row}
    at = {place: middles[place] - left for row in rows for place in row}
    pieces = [(at[above], top[above] + BOX_HEIGHT, at[below], top[below]) for above, below in links]
    # An edge goes straight down through the row that it only passes.
    pieces += [
        (at[place], top[place], at[place], top[place] + BOX_HEIGHT)
        for row in rows
        for place in row
        if place not in boxes
    ]
    heads = dict.fromkeys((at[below], top[below]) for _, below in links if below in boxes)
    corners = {box: (at[box] - BOX_WIDTH / 2, float(top[box])) for box in boxes}
    height = 2 * MARGIN + len(rows) * (BOX_HEIGHT + _BELOW) - _BELOW
    return Layout(corners, pieces, list(heads), right - left, height)


def _sized(row: Sequence[Place], boxes: Mapping[str, int]) -> list[tuple[Place, float]]:
    return list(zip(row, _widths(row, boxes), strict=True))
