"""Jobs of both families that match a filter, the newest first."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import psycopg

from queue_workflows.repositories.reports.job_listing import JobFilter, JobLine, SelectingRepository
from queue_workflows.views.filters.jobs import text_of

LINES: Final = 50


@dataclass(frozen=True, slots=True)
class JobList:
    """A page of jobs, the newest first."""

    lines: Sequence[JobLine]


def job_list(connection: psycopg.Connection[Any], wanted: JobFilter, *, limit: int = LINES) -> JobList:
    """The newest jobs that match."""
    return JobList(SelectingRepository(connection).lines(wanted, limit=limit))


def json_of(found: JobList) -> list[dict[str, Any]]:
    """What `qwf job list --json` prints."""
    return [{"job": line.name} | asdict(line) for line in found.lines]


def command_of(wanted: JobFilter, *, limit: int = LINES) -> str:
    """The command that shows the list."""
    words = ["qwf", "job", "list"]
    if text := text_of(wanted):
        words += ["--where", text]
    return shlex.join(words if limit == LINES else [*words, "--limit", str(limit)])
