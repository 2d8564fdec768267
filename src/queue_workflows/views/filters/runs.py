"""Filters of runs as text: `workflow:film status:failed label:customer=acme newer:1d`."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from queue_workflows.drawing.words import say_labels
from queue_workflows.repositories.runs.listing import RunFilter
from queue_workflows.states import RunStatus
from queue_workflows.views.filters import spans
from queue_workflows.views.filters.grammar import (
    joined,
    one_of,
    one_run,
    one_span,
    one_value,
    quoted,
    said_twice,
    values_by_key,
)
from queue_workflows.views.filters.labels import labels_of

KEYS: Final = ("workflow", "label", "status", "poisoned", "parent", "older", "newer")
STATUSES: Final = tuple(status.value for status in RunStatus)
_NAMES: Final = {"older_than_s": "older", "newer_than_s": "newer"}
_YES: Final = "yes"


def run_filter(text: str) -> RunFilter:
    """The filter that a text asks for, or `FilterRefused`; an empty text is every run."""
    values = values_by_key(text, KEYS)
    return RunFilter(
        workflow=one_value("workflow", values("workflow")),
        labels=labels_of(values("label")),
        status=one_of("status", values("status"), STATUSES),
        poisoned=one_of("poisoned", values("poisoned"), (_YES,)) is not None or None,
        parent=one_run("parent", values("parent")),
        older_than_s=one_span("older", values("older")),
        newer_than_s=one_span("newer", values("newer")),
    )


def text_of(wanted: RunFilter) -> str:
    """A filter as the text that `run_filter` reads as exactly that; of the fields that the grammar has."""
    words = [("workflow", wanted.workflow)] if wanted.workflow is not None else []
    words += [("label", label) for label in say_labels(wanted.labels or {})]
    words += [("status", status) for status in wanted.status or ()]
    words += [("poisoned", _YES)] if wanted.poisoned else []
    words += [("parent", str(wanted.parent))] if wanted.parent is not None else []
    for key, seconds in (("older", wanted.older_than_s), ("newer", wanted.newer_than_s)):
        if seconds is not None:
            words.append((key, spans.text_of(seconds)))
    return quoted(words)


def with_text(wanted: RunFilter, text: str | None) -> RunFilter:
    """A filter that options asked for and a text narrows, or `FilterRefused` where the two contradict."""
    if text is None:
        return wanted
    said = run_filter(text)
    mine, others = wanted.labels or {}, said.labels or {}
    for name in mine.keys() & others.keys():
        if mine[name] != others[name]:
            raise said_twice(f"label {name!r:.80}")
    labels = {**mine, **others} or None
    return joined(replace(wanted, labels=labels), replace(said, labels=labels), _NAMES)
