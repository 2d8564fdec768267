"""The newest runs that match a filter."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from queue_workflows.drawing.words import say_labels
from queue_workflows.repositories.runs.listing import RunFilter, RunLine, RunLinesRepository
from queue_workflows.repositories.sql.connection import Handle

USUAL: Final = 50


def runs(conn: Handle, wanted: RunFilter, *, limit: int = USUAL) -> list[RunLine]:
    """The newest runs that match."""
    return RunLinesRepository(conn).lines(wanted, limit=limit)


def json_of(lines: Sequence[RunLine]) -> list[dict[str, Any]]:
    """What `qwf run list --json` prints."""
    return [asdict(line) for line in lines]


def command_of(wanted: RunFilter, *, limit: int = USUAL) -> str:
    """The `qwf run list` that shows them."""
    words = ["qwf", "run", "list"]
    words += ["--workflow", wanted.workflow] if wanted.workflow is not None else []
    for label in say_labels(wanted.labels or {}):
        words += ["--label", label]
    for status in wanted.status or ():
        words += ["--status", status]
    words += ["--poisoned"] if wanted.poisoned else []
    ages = ("--older-than", wanted.older_than_s), ("--newer-than", wanted.newer_than_s)
    for option, seconds in ages:
        words += [option, f"{seconds:.0f}s"] if seconds is not None else []
    words += ["--limit", str(limit)] if limit != USUAL else []
    return shlex.join(words)
