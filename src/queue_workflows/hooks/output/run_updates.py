"""Records about the run itself: a tag is a label of it, and a record of its own type may name it anew.

    {"type": "Tag", "name": "news"}         the label `tag:news`, which is true unless it has a `value`
    {"type": "Page", "id": "<the run's id>", "title": "…", "labels": {"lang": "en"}}    in a run of Page

They are noted as they come, and written together at the end of a part: the run's row is locked no longer than
that takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from queue_workflows.errors import PayloadError
from queue_workflows.hooks.output.child_runs import run_of
from queue_workflows.hooks.output.record_types import RecordContext
from queue_workflows.repositories.jobs.enqueue import current_limits
from queue_workflows.repositories.runs.labels import (
    CRAWL,
    CRAWL_DEPTH,
    MOST_LABELS,
    SETUP,
    TAG,
    TITLE,
    RunLabelRepository,
)
from queue_workflows.repositories.sql.checks import NAME_BYTES

_LONGEST_TITLE: Final = 1_000
_ENGINES: Final = frozenset({CRAWL, CRAWL_DEPTH, SETUP})
_NOTED: Final = "labels"
# By line: the type of its record, and the labels.
Noted: TypeAlias = dict[int, tuple[str, dict[str, Any]]]


def tag(record: dict[str, Any], ctx: RecordContext) -> None:
    """Note a tag, which has a name and may have a plain value."""
    name, value = record.get("name"), record.get("value", True)
    if not isinstance(name, str) or not name.strip():
        raise ValueError("a tag has a name")
    if len(name.encode()) > NAME_BYTES:
        raise ValueError(f"the name of a tag has at most {NAME_BYTES} bytes")
    if isinstance(value, dict | list):
        raise ValueError("the value of a tag is a text, a number, true or false")
    _note("Tag", {f"{TAG}{name.strip()}": value}, ctx)


def is_about_the_run(record: Mapping[str, Any], ctx: RecordContext) -> bool:
    """Whether a record is of the run's own type and has its id."""
    return record.get("id") == str(ctx.run_id) and record.get("type") == run_of(ctx).workflow_name


def update_run(record: dict[str, Any], ctx: RecordContext) -> None:
    """Note the title and the labels that a record gives to its run; what else it says is only stored."""
    title, labels = record.get("title"), record.get("labels", {})
    if title is not None and not isinstance(title, str):
        raise ValueError(f"the title of a run is a text, not {title!r:.80}")
    if not isinstance(labels, dict):
        raise ValueError("the `labels` of a run are an object")
    if taken := sorted(_ENGINES & labels.keys()):
        raise ValueError(f"the label {taken[0]} is the engine's own")
    for name, value in labels.items():
        if not name or len(name.encode()) > NAME_BYTES:
            raise ValueError(f"the name of a label has 1 to {NAME_BYTES} bytes")
        if value is None or isinstance(value, dict | list):
            raise ValueError(f"the label {name!r:.80} is no text, number, true or false")
    if title:
        labels = {**labels, TITLE: title[:_LONGEST_TITLE]}
    _note(str(record.get("type", "")), labels, ctx)


def take_noted(ctx: RecordContext) -> Noted:
    """The labels that were noted since this was asked last, by the line that had them."""
    noted: Noted = ctx.known.pop(_NOTED, {})
    return noted


def write_labels(noted: Noted, ctx: RecordContext) -> None:
    """Write the labels of these lines, the later over the earlier."""
    labels = {name: value for _, given in noted.values() for name, value in given.items()}
    repository = RunLabelRepository(ctx.conn, payload_limits=current_limits())
    if not repository.add(ctx.run_id, labels):
        raise PayloadError(f"the run would have more than {MOST_LABELS} labels", path="labels")


def one_by_one(noted: Noted) -> Iterator[Noted]:
    """These labels line by line, a title apart from what came with it."""
    for line_no, (kind, labels) in noted.items():
        own = {name: value for name, value in labels.items() if name == TITLE}
        rest = {name: value for name, value in labels.items() if name != TITLE}
        yield from ({line_no: (kind, part)} for part in (own, rest) if part)


def _note(kind: str, labels: dict[str, Any], ctx: RecordContext) -> None:
    if labels:
        ctx.known.setdefault(_NOTED, {})[ctx.line_no] = (kind, labels)
