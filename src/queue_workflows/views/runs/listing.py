"""Runs that match a filter, the newest first."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import Any, Final

from queue_workflows.repositories.reports.run_search import RunLine, RunPage, RunSearch
from queue_workflows.repositories.runs.listing import RunFilter
from queue_workflows.repositories.sql.connection import Handle
from queue_workflows.views.filters.runs import text_of
from queue_workflows.views.json_values import named

USUAL: Final = 50


def run_page(conn: Handle, wanted: RunFilter, *, limit: int = USUAL, before: str | None = None) -> RunPage:
    """The newest runs that match, or the next ones from the cursor of a page on."""
    return RunSearch(conn).page(wanted, limit=limit, before=before)


def json_of(page: RunPage) -> list[dict[str, Any]]:
    """What `qwf run list --json` prints."""
    return [
        {"run": line.id} | named(asdict(line), without=("id",)) | {"error": error_of(line)}
        for line in page.lines
    ]


def error_of(line: RunLine) -> str | None:
    """Why it failed, as a text."""
    return None if line.error is None else str(line.error.get("message") or line.error.get("kind") or "")


def command_of(wanted: RunFilter, *, limit: int = USUAL, before: str | None = None) -> str:
    """The command that shows the page."""
    words = ["qwf", "run", "list"]
    words += ["--where", text] if (text := text_of(wanted)) else []
    words += ["--limit", str(limit)] if limit != USUAL else []
    words += ["--before", before] if before is not None else []
    return shlex.join(words)
