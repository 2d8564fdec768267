"""A run as a picture: the head line, the graph with a row a node, and what went wrong below it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from queue_workflows.drawing.fold import Folded, folded
from queue_workflows.drawing.rails import MARK, Rail, rails
from queue_workflows.drawing.terminal import Terminal, padded, wide
from queue_workflows.drawing.words import on_one_line, say_labels, say_moment, say_time
from queue_workflows.engine.watch.run_view import Elements, NodeOverview, RunOverview

# More nodes than that are folded, more lanes are not drawn.
MOST_ROWS: Final = 60
MOST_LANES: Final = 16
LONGEST_NOTE: Final = 160
LONGEST_OUTPUTS: Final = 1000
_LONGEST_NAME: Final = 44
_BAR: Final = 12
_NAMED: Final = 3
# A run is begun within moments where an orchestrator is.
_SOON: Final = timedelta(seconds=5)


class Look(NamedTuple):
    """How a state is shown."""

    glyph: str
    style: Mapping[str, Any]


LOOKS: Final[Mapping[str, Look]] = {
    "waiting": Look("○", {"dim": True}),
    "scheduled": Look("◌", {}),
    "queued": Look("◌", {}),
    "active": Look("◐", {"fg": "yellow"}),
    "running": Look("◐", {"fg": "yellow"}),
    "awaiting_input": Look("◇", {"fg": "cyan"}),
    "completed": Look("●", {"fg": "green"}),
    "skipped": Look("⊘", {"dim": True}),
    "failed": Look("✗", {"fg": "red", "bold": True}),
    "cancelled": Look("⊗", {"fg": "magenta"}),
}
# What a parked node is called that waits for no answer.
_PARKED: Final = {"wait": "pausing", "workflow": "child run", "descendants": "runs below"}
# What a user looks for in a large run; never folded away.
_TELLING: Final = frozenset({"failed", "running", "active", "awaiting_input"})


def draw(run: RunOverview, terminal: Terminal, *, most_rows: int | None = MOST_ROWS) -> list[str]:
    """The run as lines; of more than `most_rows` nodes those that are alike share a row, None draws each."""
    lines = [*_head(run, terminal), ""]
    if run.counts:
        lines += [_counted(run.counts)]
    if run.nodes:
        lines += _graph(run, terminal, most_rows)
    lines = [*lines, *_foot(run, terminal)]
    return [terminal.glyphs(line) for line in (lines if lines[-1] else lines[:-1])]


def draw_within(run: RunOverview, terminal: Terminal, height: int) -> list[str]:
    """The run in so many lines at the most: folded further and further, and cut in the end."""
    for most_rows in (MOST_ROWS, MOST_ROWS // 2, MOST_ROWS // 4, MOST_ROWS // 8):
        lines = draw(run, terminal, most_rows=most_rows)
        if len(lines) <= height:
            return lines
    return [*lines[: max(0, height - 1)], terminal.glyphs("…")]


def _head(run: RunOverview, terminal: Terminal) -> Iterator[str]:
    look = LOOKS[run.status]
    status = terminal.paint(run.status, **look.style)
    yield f"{terminal.paint(on_one_line(run.workflow), bold=True)}  {run.id}  {status}{_times(run)}"
    if run.cancel_requested_at is not None:
        why = f": {run.cancel_reason}" if run.cancel_reason else ""
        yield on_one_line(f"cancel asked for at {say_moment(run.cancel_requested_at, now=run.at)}{why}")
    if run.hold is not None:
        yield f"on hold: {run.hold}; `qwf explain {run.id}` says what it waits for"
    if run.labels:
        yield on_one_line("labels: " + ", ".join(say_labels(run.labels)))


def _times(run: RunOverview) -> str:
    if run.started_at is None:
        verb = " for " if run.finished_at is None else " after "
        return verb + say_time((run.finished_at or run.at) - run.created_at)
    if run.finished_at is None:
        return f" for {say_time(run.at - run.started_at)}"
    return f" after {say_time(run.finished_at - run.started_at)}"


# The graph.


def _graph(run: RunOverview, terminal: Terminal, most_rows: int | None) -> list[str]:
    nodes = {node.id: node for node in run.nodes}
    parents = {
        node.id: [parent for parent in node.parents if parent in nodes and parent != node.id]
        for node in run.nodes
    }
    most = len(nodes) if most_rows is None else most_rows
    rows = folded(parents, alike=lambda node: _kind(nodes[node]), most=most)
    drawn = rails(rows.parents, most_lanes=MOST_LANES)
    if drawn is None or len(rows.members) > most or run.counts:
        return _listed(nodes, rows, run.at, terminal, most)
    return _beside(
        drawn, {row: _row(nodes, members, run.at) for row, members in rows.members.items()}, terminal
    )


def _kind(node: NodeOverview) -> str | None:
    return None if node.state in _TELLING and node.elements is not None else node.state


class _Row(NamedTuple):
    """The cells of one row, and the state that gives it its look."""

    name: str
    state: str
    time: str
    note: str
    word: str


def _beside(drawn: Sequence[Rail], cells: Mapping[str, _Row], terminal: Terminal) -> list[str]:
    """The rows with their rails; columns are as wide as they need to be."""
    rail_width = max(wide(line.text) for line in drawn)
    shown = [(row.name, row.word, row.time) for row in cells.values()]
    widths = [max(map(wide, column)) for column in zip(*shown, strict=True)]
    lines = []
    for rail, name in drawn:
        if name is None:
            lines.append(terminal.paint(terminal.cut(rail, terminal.columns), dim=True))
            continue
        row = cells[name]
        look = LOOKS.get(row.state, LOOKS["waiting"])
        before, _, after = rail.partition(MARK)
        lead = terminal.paint(before, dim=True) + terminal.paint(look.glyph, **look.style)
        lead += terminal.paint(padded(after, rail_width - wide(before) - 1), dim=True) + "  "
        said = f"{padded(row.name, widths[0])}  ", padded(row.word, widths[1]), f"  {row.time:>{widths[2]}}"
        room = None if terminal.columns is None else terminal.columns - rail_width - 2
        lines.append(lead + _painted(said, row.note, room, look, terminal))
    return lines


def _painted(said: tuple[str, str, str], note: str, room: int | None, look: Look, terminal: Terminal) -> str:
    """Cut to the room first, coloured afterwards."""
    whole = terminal.cut("".join(said) + (f"  {note}" if note else ""), room).rstrip()
    start, end = len(said[0]), len(said[0]) + len(said[1])
    return whole[:start] + terminal.paint(whole[start:end], **look.style) + whole[end:]


def _row(nodes: Mapping[str, NodeOverview], members: Sequence[str], at: datetime) -> _Row:
    node = nodes[members[0]]
    if len(members) > 1:
        return _Row(_cut(f"{node.id} … {members[-1]}"), node.state, "", f"{len(members):,} nodes", node.state)
    return _Row(_cut(node.id), node.state, _duration(node, at), note_of(node, at), word_of(node))


def _cut(name: str) -> str:
    return Terminal().cut(on_one_line(name), _LONGEST_NAME)


def _duration(node: NodeOverview, at: datetime) -> str:
    if node.started_at is None:
        return ""
    return say_time((node.finished_at or at) - node.started_at)


def word_of(node: NodeOverview) -> str:
    """The state in a word: of what is parked, what for."""
    return _PARKED.get(node.type, node.state) if node.state == "awaiting_input" else node.state


def note_of(node: NodeOverview, at: datetime, *, has_bar: bool = True) -> str:
    """What there is to say of a node beside its state; without a bar, short enough for a small box."""
    worker = "" if not has_bar and node.elements is not None else _who(node)
    parts = [_progress(node, has_bar=has_bar), worker, _tries(node), _waits(node, at, is_short=not has_bar)]
    if node.error and node.state in ("failed", "cancelled", "scheduled"):
        parts.append(node.error)
    return on_one_line(" · ".join(part for part in parts if part))[:LONGEST_NOTE]


def _progress(node: NodeOverview, *, has_bar: bool) -> str:
    elements = node.elements
    words = "" if elements is None else _of_elements(elements)
    if elements is None and node.activities:
        message = node.activities[0].message or ""
        words = message if node.fraction is None else f"{int(node.fraction * 100)}% {message}".rstrip()
    if node.fraction is None or node.finished_at is not None or not has_bar:
        return words
    return f"{bar(node.fraction)} {words}"


def bar(fraction: float, *, cells: int = _BAR) -> str:
    """Full only when nothing is left."""
    full = min(cells, int(fraction * cells + 1e-9))
    return "▕" + "█" * full + "░" * (cells - full) + "▏"


def _of_elements(elements: Elements) -> str:
    counts = {
        "running": elements.running,
        "failed": elements.failed,
        "skipped": elements.skipped,
        "cancelled": elements.cancelled,
    }
    told = [f"{elements.completed:,}/{elements.total:,}"]
    return ", ".join(told + [f"{count:,} {word}" for word, count in counts.items() if count])


def _who(node: NodeOverview) -> str:
    if node.state not in ("running", "active"):
        return f"by {node.worker}" if node.worker else ""
    workers = list(dict.fromkeys(one.worker for one in node.activities))
    more = f" and {len(workers) - _NAMED} more" if len(workers) > _NAMED else ""
    return "on " + ", ".join(workers[:_NAMED]) + more if workers else ""


def _tries(node: NodeOverview) -> str:
    return f"attempt {node.attempt}" if node.attempt > 1 else ""


def _waits(node: NodeOverview, at: datetime, *, is_short: bool) -> str:
    if node.child_run is not None:
        return str(node.child_run) if node.state == "awaiting_input" else f"run {node.child_run}"
    if node.state == "scheduled":
        held = f"held: {node.hold}" if node.hold else ""
        return held or (f"until {say_moment(node.due_at, now=at)}" if node.due_at else "")
    if node.state == "awaiting_input" and node.due_at is not None:
        word = "until" if node.type == "wait" else "expires" if is_short else "expires at"
        return f"{word} {say_moment(node.due_at, now=at)}"
    return ""


# What is too large for a graph.


def _listed(
    nodes: Mapping[str, NodeOverview], rows: Folded, at: datetime, terminal: Terminal, most: int
) -> list[str]:
    """Rows without rails: the telling ones first, each with what it comes after, then counts of the rest."""
    order = sorted(rows.members, key=lambda row: nodes[row].state not in _TELLING)[:most]
    shown = {member for row in order for member in rows.members[row]}
    rest = Counter(node.state for node in nodes.values() if node.id not in shown)
    cells = {}
    for row in order:
        one = _row(nodes, rows.members[row], at)
        above = list(rows.parents[row])
        after = "after " + ", ".join(above[:_NAMED]) + (" …" if len(above) > _NAMED else "") if above else ""
        cells[row] = one._replace(note=" · ".join(part for part in (one.note, after) if part))
    lines = _beside([Rail(MARK, row) for row in order], cells, terminal)
    return lines + ([f"and {_counted(rest)}"] if rest else [])


def _counted(counts: Mapping[str, int]) -> str:
    told = ", ".join(f"{count:,} {state}" for state, count in counts.items() if count)
    total = sum(counts.values())
    return f"{total:,} {'node' if total == 1 else 'nodes'}: {told}"


def _foot(run: RunOverview, terminal: Terminal) -> Iterator[str]:
    """What went wrong, what came out, and what somebody is waited for."""

    lines = []
    if run.error:
        lines.append(terminal.paint("error: ", fg="red") + on_one_line(run.error))
    for poison in run.poisoned:
        lines.append(terminal.paint("poisoned: ", fg="red") + on_one_line(poison))
    if run.outputs:
        lines.append("outputs: " + on_one_line(json.dumps(run.outputs, ensure_ascii=False))[:LONGEST_OUTPUTS])
    if run.status == "queued" and run.hold is None and run.at - run.created_at > _SOON:
        lines.append(f"nobody has begun it yet; `qwf explain {run.id}` says why")
    asked = [node for node in run.nodes if node.type == "input" and node.state == "awaiting_input"]
    lines += [f"to answer: qwf run submit-input {run.id} {node.id}" for node in asked[:_NAMED]]
    if lines:
        yield ""
        yield from lines
