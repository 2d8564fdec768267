"""A host app's values inside of sentences: explanations and runs quote errors, progress and operators.

A sentence is redacted by the facts it was made of, so what it quotes has to be one of them under a name that
`access/redaction` knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from queue_workflows.engine.explain.history import Event, Reason, quotes_error, quotes_operator
from queue_workflows.engine.explain.job import Explanation
from queue_workflows.engine.watch.run_view import NodeOverview, RunOverview
from queue_workflows.views.runs.timeline import RunTimeline
from queue_workflows.views.stuck import Stuck
from queue_workflows.web.access.redaction import KINDS, Kind, Redaction


def redacted_explanation(told: Explanation, redaction: Redaction) -> Explanation:
    """Its sentences as they may be shown; the data beside them is redacted as all columns are."""

    def reason(one: Reason) -> Reason:
        kind = _quoted(one.data)
        return one if kind is None else replace(one, text=redaction.shown(kind, one.text))

    def event(one: Event) -> Event:
        if quotes_error(one):
            return replace(one, text=redaction.shown("error", one.text))
        return replace(one, text=redaction.shown("note", one.text)) if quotes_operator(one) else one

    return Explanation(told.headline, [*map(reason, told.reasons)], [*map(event, told.history)])


def redacted_stuck(one: Stuck, redaction: Redaction) -> Stuck:
    """What does not go on as it may be shown: why is in the words of an explanation."""
    kind = _quoted(one.data)
    return one if kind is None else replace(one, text=redaction.shown(kind, one.text))


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


def _quoted(data: Mapping[str, Any]) -> Kind | None:
    """The kind of what a sentence that was made of these facts may quote."""
    kind = next((KINDS[name] for name, value in data.items() if name in KINDS and value), None)
    return "note" if kind is None and "actor" in data else kind


def _node(node: NodeOverview, redaction: Redaction) -> NodeOverview:
    if not node.error and not any(one.message for one in node.activities):
        return node
    activities = tuple(
        replace(one, message=redaction.shown("result", one.message)) if one.message else one
        for one in node.activities
    )
    error = redaction.shown("error", node.error) if node.error else node.error
    return replace(node, error=error, activities=activities)
