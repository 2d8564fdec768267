"""What changed in a run between two looks at it, a line each; for pipes, logs and programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from queue_workflows.drawing.run import LOOKS, note_of
from queue_workflows.drawing.terminal import Terminal
from queue_workflows.drawing.words import on_one_line, say_moment
from queue_workflows.engine.watch.run_view import NodeOverview, RunOverview

# Progress is told in tenths: a line each is enough for a log.
_STEPS: Final = 10


class Change(NamedTuple):
    """A node that is in another state or further than before; `node` None is the run itself."""

    at: datetime
    node: str | None
    state: str
    note: str
    fraction: float | None = None
    # Of a run that has just completed.
    outputs: Mapping[str, Any] | None = None


def changes(before: RunOverview | None, now: RunOverview) -> Iterator[Change]:
    """The nodes first, in the order of the document, then the run; before the first look all waited."""
    known = {node.id: node for node in before.nodes} if before else {}
    for node in now.nodes:
        if _told_of(node) != _told_of(known.get(node.id, NodeOverview(node.id))):
            yield Change(now.at, node.id, node.state, note_of(node, now.at), node.fraction)
    if before is not None and _counted(now) != _counted(before):
        words = ", ".join(f"{count:,} {word}" for word, count in now.counts.items())
        yield Change(now.at, None, now.status, words)
    for poison in now.poisoned:
        if before is None or poison not in before.poisoned:
            yield Change(now.at, None, "poisoned", poison)
    if before is None or before.status != now.status or (_cancels(now) and not _cancels(before)):
        yield Change(now.at, None, now.status, _note(now), outputs=now.outputs)


def _told_of(node: NodeOverview) -> tuple[object, ...]:
    """What of a node is worth a line if it is not as before."""
    step = None if node.fraction is None or node.finished_at else int(node.fraction * _STEPS + 1e-9)
    message = None if node.elements or not node.activities else node.activities[0].message
    failed = node.elements.failed if node.elements and not node.finished_at else 0
    return node.state, node.attempt, step or 0, message, failed, node.hold, node.child_run


def _counted(run: RunOverview) -> tuple[int, int]:
    """Of a run with only counts of its nodes: how many hundredths of them are over, and how many failed."""
    failed, total = run.counts.get("failed", 0), sum(run.counts.values())
    return (100 * (run.counts.get("over", 0) + failed) // total if total else 0), failed


def _cancels(run: RunOverview) -> bool:
    return run.cancel_requested_at is not None


def _note(run: RunOverview) -> str:
    if run.error:
        return run.error
    if _cancels(run) and not run.is_over:
        return "cancel asked for" + (f": {run.cancel_reason}" if run.cancel_reason else "")
    return run.cancel_reason or ""


def in_words(change: Change, terminal: Terminal) -> str:
    """A change as a line for people."""
    look = LOOKS.get(change.state)
    words = " ".join(
        part for part in (look.glyph if look else "!", change.node or "run", change.state) if part
    )
    note = f"  {change.note}" if change.note else ""
    return terminal.glyphs(
        on_one_line(f"{say_moment(change.at, now=change.at)} {words}{note}", squeeze=False)
    )
