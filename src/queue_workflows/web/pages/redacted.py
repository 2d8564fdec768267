"""A host app's values inside of sentences: explanations and runs quote errors, progress and operators."""

from __future__ import annotations

from dataclasses import replace

from queue_workflows.engine.explain.history import Event, Reason, quotes_error, quotes_operator
from queue_workflows.engine.explain.job import Explanation
from queue_workflows.engine.watch.run_view import NodeOverview, RunOverview
from queue_workflows.views.runs.timeline import RunTimeline
from queue_workflows.web.access.redaction import KINDS, Redaction


def redacted_explanation(told: Explanation, redaction: Redaction) -> Explanation:
    """Its sentences as they may be shown; the data beside them is redacted as all columns are."""

    def reason(one: Reason) -> Reason:
        kind = next((KINDS[name] for name, value in one.data.items() if name in KINDS and value), None)
        if kind is None and "actor" in one.data:
            kind = "note"
        return one if kind is None else replace(one, text=redaction.shown(kind, one.text))

    def event(one: Event) -> Event:
        if quotes_error(one):
            return replace(one, text=redaction.shown("error", one.text))
        return replace(one, text=redaction.shown("note", one.text)) if quotes_operator(one) else one

    return Explanation(told.headline, [*map(reason, told.reasons)], [*map(event, told.history)])


def redacted_run(run: RunOverview, redaction: Redaction) -> RunOverview:
    """A run as it may be drawn."""
    poisoned = tuple(redaction.shown("error", one) for one in run.poisoned)
    return replace(run, nodes=tuple(_node(one, redaction) for one in run.nodes), poisoned=poisoned)


def redacted_timeline(drawn: RunTimeline, redaction: Redaction) -> RunTimeline:
    """A timeline as it may be drawn: its pauses quote operators."""
    pauses = (
        replace(one, reason=redaction.shown("note", one.reason)) if one.reason else one
        for one in drawn.pauses
    )
    return replace(drawn, pauses=tuple(pauses))


def _node(node: NodeOverview, redaction: Redaction) -> NodeOverview:
    if not node.error and not any(one.message for one in node.activities):
        return node
    activities = tuple(
        replace(one, message=redaction.shown("result", one.message)) if one.message else one
        for one in node.activities
    )
    error = redaction.shown("error", node.error) if node.error else node.error
    return replace(node, error=error, activities=activities)
