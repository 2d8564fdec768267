"""Failed jobs in groups of queue, task and last error."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

import psycopg

from queue_workflows.drawing.words import COUNTED
from queue_workflows.repositories.reports.job_listing import (
    FAILURES_READ,
    Failures,
    JobFilter,
    SelectingRepository,
)
from queue_workflows.repositories.sql.families import INGEST
from queue_workflows.states import JobStatus
from queue_workflows.views.filters import spans

LOOK_BACK_S: Final = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class FailureGroups:
    """The groups of the last while, the most frequent first; of the latest `most` failures of each family.

    `cursor` is where a further look begins, None if nothing follows; `looked_back_to` is how far this one
    came, if it met its bound, and `failed` how many there are in all that time, counted up to `COUNTED`.
    """

    groups: Sequence[Failures]
    since_s: float
    queue: str | None
    most: int
    before: str | None = None
    cursor: str | None = None
    looked_back_to: datetime | None = None
    failed: int | None = None

    @property
    def is_cut(self) -> bool:
        """Whether more may have failed than was looked at."""
        return self.cursor is not None or self.before is not None


def failure_groups(
    connection: psycopg.Connection[Any],
    *,
    since_s: float = LOOK_BACK_S,
    queue: str | None = None,
    most: int = FAILURES_READ,
    before: str | None = None,
) -> FailureGroups:
    """What failed in the last so many seconds, alike errors together, the latest or from a cursor on."""
    selecting = SelectingRepository(connection)
    found = selecting.failures(since_s=since_s, queue=queue, most=most, before=before)
    failed = None
    if found.cursor is not None:
        failed = selecting.count_failed(since_s=since_s, at_most=COUNTED)
    return FailureGroups(
        found.groups, since_s, queue, most, before, found.cursor, found.looked_back_to, failed
    )


def filter_of(group: Failures, *, newer_than_s: float | None = None) -> JobFilter:
    """The filter that finds a group's jobs, for the commands and buttons that look at, retry or cancel them.

    Jobs are found by when they were enqueued, so a filter of what failed lately is left to the caller.
    """
    is_ingest = group.family == INGEST.name
    return JobFilter(
        family=group.family,
        queue=group.queue,
        status=(JobStatus.FAILED.value,),
        task=group.title if is_ingest else None,
        # A title may name an element, `node[3]`, where the filter is about its node.
        node=None if is_ingest else group.title.partition("[")[0],
        error=group.error or None,
        newer_than_s=newer_than_s,
    )


def json_of(found: FailureGroups) -> list[dict[str, Any]]:
    """What `qwf job failures --json` prints; a count is of what was looked at."""
    return [asdict(group) for group in found.groups]


def command_of(
    *,
    since_s: float = LOOK_BACK_S,
    queue: str | None = None,
    most: int = FAILURES_READ,
    before: str | None = None,
) -> str:
    """The command that shows the groups."""
    words = ["qwf", "job", "failures"]
    words += ["--since", spans.text_of(since_s)] if since_s != LOOK_BACK_S else []
    words += ["--queue", queue] if queue is not None else []
    words += ["--limit", str(most)] if most != FAILURES_READ else []
    words += ["--before", before] if before is not None else []
    return shlex.join(words)
