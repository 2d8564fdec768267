"""Jobs of both families that match a filter, the newest first."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import Any, Final

import psycopg

from queue_workflows.repositories.reports.job_listing import JobFilter
from queue_workflows.repositories.reports.job_search import JobPage, JobSearch
from queue_workflows.views.filters.jobs import text_of
from queue_workflows.views.json_values import named

LINES: Final = 50


def job_page(
    connection: psycopg.Connection[Any],
    wanted: JobFilter,
    *,
    limit: int = LINES,
    before: str | None = None,
    within_s: float | None = None,
    narrow: bool = False,
) -> JobPage:
    """The newest jobs that match, or the next ones from the cursor of a page on."""
    return JobSearch(connection, within_s=within_s, narrow=narrow).page(wanted, limit=limit, before=before)


def json_of(page: JobPage) -> list[dict[str, Any]]:
    """What `qwf job list --json` prints."""
    return [{"job": line.name} | named(asdict(line), without=("id",)) for line in page.lines]


def command_of(wanted: JobFilter, *, limit: int = LINES, before: str | None = None) -> str:
    """The command that shows the page."""
    words = ["qwf", "job", "list"]
    if text := text_of(wanted):
        words += ["--where", text]
    if limit != LINES:
        words += ["--limit", str(limit)]
    return shlex.join(words if before is None else [*words, "--before", before])
