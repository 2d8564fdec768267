"""Filters of jobs as text: `queue:fetch status:failed error:"timed out" newer:1d`."""

from __future__ import annotations

from typing import Final

from queue_workflows.repositories.reports.job_listing import JobFilter
from queue_workflows.repositories.sql.families import BY_NAME
from queue_workflows.states import JobStatus
from queue_workflows.views.filters import spans
from queue_workflows.views.filters.grammar import (
    joined,
    one_of,
    one_run,
    one_span,
    one_value,
    quoted,
    values_by_key,
)

# Keys are the options of `qwf job list`; of each the field of the filter.
_FIELDS: Final = {
    "family": "family",
    "queue": "queue",
    "status": "status",
    "task": "task",
    "node": "node",
    "run": "run_id",
    "error": "error",
    "worker": "worker",
    "held": "held",
    "older": "older_than_s",
    "newer": "newer_than_s",
}
KEYS: Final = tuple(_FIELDS)
STATUSES: Final = tuple(status.value for status in JobStatus)


def job_filter(text: str) -> JobFilter:
    """The filter that a text asks for, or `FilterRefused`; an empty text is every job."""
    values = values_by_key(text, KEYS)
    family = one_value("family", values("family"))
    one_of("family", values("family"), tuple(BY_NAME))
    return JobFilter(
        family=family,
        queue=one_value("queue", values("queue")),
        status=one_of("status", values("status"), STATUSES),
        task=one_value("task", values("task")),
        node=one_value("node", values("node")),
        run_id=one_run("run", values("run")),
        error=one_value("error", values("error")),
        worker=one_value("worker", values("worker")),
        held=one_value("held", values("held")),
        older_than_s=one_span("older", values("older")),
        newer_than_s=one_span("newer", values("newer")),
    )


def text_of(wanted: JobFilter) -> str:
    """A filter as the text that `job_filter` reads as exactly that; of the fields that the grammar has."""
    words: list[tuple[str, str]] = []
    for key, name in _FIELDS.items():
        value = getattr(wanted, name)
        if isinstance(value, float):
            words.append((key, spans.text_of(value)))
        elif isinstance(value, tuple):
            words += [(key, each) for each in value]
        elif value is not None:
            words.append((key, str(value)))
    return quoted(words)


def with_text(wanted: JobFilter, text: str | None) -> JobFilter:
    """A filter that options asked for and a text narrows, or `FilterRefused` where the two contradict."""
    return wanted if text is None else joined(wanted, job_filter(text), _NAMES)


_NAMES: Final = {name: key for key, name in _FIELDS.items()}
