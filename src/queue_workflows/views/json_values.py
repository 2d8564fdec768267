"""What every answer for machines has in common: what a thing is called, and what JSON has no type for.

One thing has one name: a run is `run`, a job is `job` (`ingest:7`, as commands take it), a node of a run is
`node`, and so on. docs/decisions/0060-one-name-in-json.md has the rule, docs/reference/json.md every key.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final

# What columns and fields are called, and what answers call it.
NAMES: Final = {
    "run_id": "run",
    "parent_run_id": "parent_run",
    "node_id": "node",
    "task_name": "task",
    "workflow_name": "workflow",
    "schedule_name": "schedule",
}


def named(row: Mapping[str, Any], *, without: Collection[str] = ()) -> dict[str, Any]:
    """A row under the names that all answers use; what is `without` is said in another way."""
    return {NAMES.get(name, name): value for name, value in row.items() if name not in without}


def node_job(job_id: int | None) -> str | None:
    """A node's job as commands take it."""
    return None if job_id is None else f"node:{job_id}"


def plain(value: Any) -> Any:
    """A value that `json.dumps` does not know: times in ISO 8601 with their zone, the rest as its text."""
    return value.isoformat() if isinstance(value, datetime) else str(value)
