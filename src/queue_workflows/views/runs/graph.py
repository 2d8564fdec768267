"""A run as boxes and edges that can be drawn: however many nodes it has, never more than a few hundred.

What is alike is one box with counts by state. Boxes go by the document's shape and not by the states that
its nodes go through, so a picture of a run that goes on stays as it is but for its colours.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import lru_cache
from heapq import nsmallest
from operator import attrgetter
from typing import Any, Final, NamedTuple

from queue_workflows.drawing.fold import Folded, boxes
from queue_workflows.drawing.run import note_of
from queue_workflows.engine.watch.run_reader import RunReader
from queue_workflows.engine.watch.run_view import NodeOverview, RunOverview
from queue_workflows.repositories.sql.connection import Handle

MOST_BOXES: Final = 300
# So many nodes are a box each, as they are a row each in a terminal.
ALL_SHOWN: Final = 60
# Of a run with more nodes only counts are drawn, and what is active or failed.
MOST_NODES: Final = 20_000
# Of a run with more nodes a box is of many, and no worker or attempt is named in it.
BRIEF_ABOVE: Final = 500
_NAMED: Final = 5
# A box of several nodes looks like the first of these that one of them is in.
_TELLING: Final = (
    *("failed", "awaiting_input", "running", "active", "scheduled", "queued", "waiting", "cancelled"),
    *("completed", "skipped"),
)
_PLACES: Final = {state: place for place, state in enumerate(_TELLING)}


@dataclass(frozen=True, slots=True)
class Box:
    """One node, or `members` nodes that are alike; `counts` are those of elements where there are any."""

    id: str
    label: str
    # The type of the node; for_each of one with elements, counts of what is only counted.
    kind: str
    state: str
    counts: Mapping[str, int]
    members: int
    module: str | None
    note: str
    started_at: datetime | None
    finished_at: datetime | None
    # Some of its nodes, those that failed or are at something first.
    named: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunGraph:
    """The boxes, parents before children as the document has them, and edges between their ids."""

    run: RunOverview
    boxes: tuple[Box, ...]
    edges: tuple[tuple[str, str], ...]


def run_graph(conn: Handle, run_id: uuid.UUID, *, seen: RunOverview | None = None) -> RunGraph:
    """The run as it is now; `UnknownRun` if there is none. What was `seen` of it is not read again."""
    return graph_of(all_nodes(conn, run_id, seen))


def all_nodes(
    conn: Handle, run_id: uuid.UUID, seen: RunOverview | None = None, *, reader: RunReader | None = None
) -> RunOverview:
    """The run with more of its nodes than are listed elsewhere; as it was `seen` if all were there.

    The `reader` that has seen it just now reads nothing but the nodes.
    """
    if seen is not None and not seen.counts:
        return seen
    if seen is not None and reader is not None:
        return reader.look_closer(conn, seen, most_nodes=MOST_NODES, brief_above=BRIEF_ABOVE)
    return RunReader(run_id, most_nodes=MOST_NODES, brief_above=BRIEF_ABOVE).look(conn)


def graph_of(run: RunOverview, *, few: int = ALL_SHOWN, most: int = MOST_BOXES) -> RunGraph:
    """The boxes of a run that was read."""
    counted = tuple(_counted(state, count) for state, count in run.counts.items() if count)
    nodes = {node.id: node for node in run.nodes}
    rows = folded_nodes(run, few=few, most=most - len(counted))
    edges = [(parent, row) for row, above in rows.parents.items() for parent in above]
    drawn = [_box([nodes[member] for member in members], run.at) for members in rows.members.values()]
    return RunGraph(run, (*counted, *drawn), tuple(edges))


def folded_nodes(run: RunOverview, *, few: int = ALL_SHOWN, most: int = MOST_BOXES) -> Folded:
    """Which nodes share a box, by the first of them."""
    return _folded(tuple(map(_SHAPE_OF, run.nodes)), few, most)


class _Shape(NamedTuple):
    """What of a node never changes while its run goes on."""

    id: str
    parents: tuple[str, ...]
    type: str
    module: str | None
    queue: str | None

    @property
    def kind(self) -> Hashable:
        return self[2:]


# Plain tuples: a large run is drawn again and again, and has thousands.
_SHAPE_OF: Final = attrgetter(*_Shape._fields)


# A run is drawn again whenever something happens in it, and folds as before.
@lru_cache(maxsize=64)
def _folded(shapes: tuple[tuple[Any, ...], ...], few: int, most: int) -> Folded:
    by_id = {shape.id: shape for shape in map(_Shape._make, shapes)}
    return boxes(
        {
            shape.id: [parent for parent in shape.parents if parent in by_id and parent != shape.id]
            for shape in by_id.values()
        },
        kind=lambda node: by_id[node].kind,
        coarser=lambda node: by_id[node].type,
        few=few,
        most=most,
    )


def _box(members: Sequence[NodeOverview], at: datetime) -> Box:
    first = members[0]
    states = {node.state for node in members}
    state = next((one for one in _TELLING if one in states), first.state)
    is_one = len(members) == 1
    has_elements = any(node.elements is not None for node in members)
    started = [node.started_at for node in members if node.started_at is not None]
    finished = [node.finished_at for node in members if node.finished_at is not None]
    modules = {node.module for node in members}
    return Box(
        id=first.id,
        label=first.id if is_one else f"{first.id} … {members[-1].id}",
        kind="for_each" if has_elements else first.type,
        state=state,
        counts=_counts(members),
        members=len(members),
        module=first.module if len(modules) == 1 else None,
        note=note_of(first, at, has_bar=False) if is_one else "",
        started_at=min(started, default=None),
        finished_at=max(finished, default=None) if len(finished) == len(members) else None,
        named=tuple(node.id for node in nsmallest(_NAMED, members, key=_place)),
    )


def _place(node: NodeOverview) -> int:
    return _order(node.state)


def _counts(members: Sequence[NodeOverview]) -> dict[str, int]:
    """By state, in the order in which they are looked for: of elements if there are some, else of nodes."""
    counts = Counter(node.state for node in members if node.elements is None)
    for elements in (node.elements for node in members if node.elements is not None):
        for state in ("completed", "skipped", "failed", "cancelled", "running"):
            counts[state] += getattr(elements, state)
        counts["waiting"] += max(0, elements.total - elements.ended - elements.running)
    return {state: counts[state] for state in sorted(counts, key=_order) if counts[state]}


def _order(state: str) -> int:
    return _PLACES.get(state, len(_PLACES))


def _counted(state: str, count: int) -> Box:
    """Nodes of a run that is too large to list them; those that are over ended in whatever way but failed."""
    word = "completed" if state == "over" else state
    return Box(
        id=f"counted {state}",
        label=f"{count:,} {'node' if count == 1 else 'nodes'} {state}",
        kind="counts",
        state=word,
        counts={word: count},
        members=count,
        module=None,
        note="",
        started_at=None,
        finished_at=None,
        named=(),
    )


def json_of(graph: RunGraph) -> dict[str, Any]:
    """The boxes and edges as plain data."""
    return {
        "run": str(graph.run.id),
        "status": graph.run.status,
        "boxes": [asdict(box) for box in graph.boxes],
        "edges": [list(edge) for edge in graph.edges],
    }
