"""Making a large graph a readable one: what is alike becomes one row.

First siblings, with the same parents and the same children, that are in the same state; then what follows
one another without a branch, again in one state. So a fan-out of three hundred is a row for each state that
it has, and a long chain three rows: what is done, what runs, what waits.

`boxes` folds by shape instead: whatever states a run's nodes go through, its boxes stay where they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from queue_workflows.drawing.rails import children_of, reduced, topological

# So many alike are shown one by one.
_FEW: Final = 3


@dataclass(frozen=True)
class Folded:
    """The rows of a picture: which nodes each stands for, and the rows above it; by the row's first node."""

    members: Mapping[str, Sequence[str]]
    parents: Mapping[str, Sequence[str]]


def folded(
    parents: Mapping[str, Sequence[str]],
    *,
    alike: Callable[[str], Hashable | None],
    most: int,
    few: int = _FEW,
) -> Folded:
    """Fold what is alike if there are more than `most` nodes and more than `few` of a kind.

    A node that is like None stays by itself.
    """
    edges = reduced(parents)
    whole = Folded({node: [node] for node in edges}, edges)
    if len(edges) <= most:
        return whole
    return _by_chain(_by_siblings(whole, alike, few), alike, few)


def _by_siblings(rows: Folded, alike: Callable[[str], Hashable | None], few: int) -> Folded:
    children = children_of(rows.parents)
    groups: dict[Hashable, list[str]] = {}
    for row, above in rows.parents.items():
        kind = alike(row)
        own: Hashable = row if kind is None else (kind, frozenset(above), frozenset(children[row]))
        groups.setdefault(own, []).append(row)
    return _joined(rows, [group for group in groups.values() if len(group) > few])


def _by_chain(rows: Folded, alike: Callable[[str], Hashable | None], few: int) -> Folded:
    children = children_of(rows.parents)

    def follows(row: str) -> str | None:
        """The only child, if this is its only parent and they are alike."""
        if len(children[row]) != 1:
            return None
        (child,) = children[row]
        same = alike(row) is not None and alike(row) == alike(child)
        return child if same and len(set(rows.parents[child])) == 1 else None

    after = {row: follows(row) for row in rows.parents}
    inner = {child for child in after.values() if child is not None}
    chains = []
    for row in rows.parents:
        chain: list[str] = []
        step: str | None = None if row in inner else row
        while step is not None:
            chain.append(step)
            step = after[step]
        if len(chain) > few:
            chains.append(chain)
    return _joined(rows, chains)


def _joined(rows: Folded, groups: Sequence[Sequence[str]]) -> Folded:
    """Each group as one row, which has the parents of all and is the parent of all children."""
    into = {row: group[0] for group in groups for row in group}
    members = {row: rows.members[row] for row in rows.parents if into.get(row, row) == row}
    members |= {group[0]: [node for row in group for node in rows.members[row]] for group in groups}
    parents: dict[str, list[str]] = {}
    for row, above in rows.parents.items():
        name = into.get(row, row)
        edges = parents.setdefault(name, [])
        edges += [into.get(parent, parent) for parent in above if into.get(parent, parent) != name]
    return Folded(members, {name: _once(above) for name, above in parents.items()})


def boxes(
    parents: Mapping[str, Sequence[str]],
    *,
    kind: Callable[[str], Hashable],
    coarser: Callable[[str], Hashable],
    few: int,
    most: int,
) -> Folded:
    """Boxes for at most `few` nodes each its own, for any number of them at most `most`.

    Nodes of one kind with the same above and below them, all the way, are a box. If that is not enough, then
    chains of one kind are, or what is alike by the `coarser` kind; and in the end whole layers.
    """
    rows = Folded({node: [node] for node in parents}, {row: _once(above) for row, above in parents.items()})
    if len(parents) > few:
        rows = _by_shape(rows, kind)
    if len(rows.members) > most:
        chained = _by_chain(rows, kind, _FEW)
        rows = chained if len(chained.members) <= most else _by_layer(_by_shape(rows, coarser), most)
    # Only now, as it takes long for thousands of nodes.
    return Folded(rows.members, reduced(rows.parents))


def _once(rows: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(rows))


def _by_shape(rows: Folded, kind: Callable[[str], Hashable]) -> Folded:
    """Rows of one kind with equal rows above and below become one.

    Equal are those under one number, given out first from above, then from below: so all of a box stand in
    one layer, and no edge leads back.
    """
    children, order = children_of(rows.parents), topological(rows.parents)
    above = _numbered(order, rows.parents, kind)
    below = _numbered(reversed(order), children, kind)
    groups: dict[tuple[int, int], list[str]] = {}
    for row in rows.parents:
        groups.setdefault((above[row], below[row]), []).append(row)
    return _joined(rows, [group for group in groups.values() if len(group) > 1])


def _numbered(
    order: Iterable[str], near: Mapping[str, Sequence[str]], kind: Callable[[str], Hashable]
) -> dict[str, int]:
    """A number for each row, the same for rows of one kind that come after rows of the same numbers."""
    known: dict[Hashable, int] = {}
    numbers: dict[str, int] = {}
    for row in order:
        shape = kind(row), frozenset(numbers[other] for other in near[row])
        numbers[row] = known.setdefault(shape, len(known))
    return numbers


def _by_layer(rows: Folded, most: int) -> Folded:
    """The largest layers become a box each; of a graph with more layers than boxes, neighbours share one."""
    layer: dict[str, int] = {}
    for row in topological(rows.parents):
        layer[row] = 1 + max((layer[parent] for parent in rows.parents[row]), default=-1)
    sizes = Counter(layer.values())
    left, folded_layers = len(layer), set()
    for number, size in sizes.most_common():
        if left <= most:
            break
        folded_layers.add(number)
        left -= size - 1
    together = -(-len(sizes) // most)
    groups: dict[int, list[str]] = {}
    for row in rows.parents:
        if layer[row] in folded_layers:
            groups.setdefault(layer[row] // together, []).append(row)
    return _joined(rows, [group for group in groups.values() if len(group) > 1])
