"""What the hooks of a run have said."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from queue_workflows.errors import UnknownRun
from queue_workflows.repositories.hooks.records import HookRecordRepository
from queue_workflows.repositories.runs.runs import RunRepository
from queue_workflows.repositories.sql.connection import Handle
from queue_workflows.views.json_values import node_job

if TYPE_CHECKING:
    from queue_workflows.models import HookRecord

USUAL: Final = 50
_SHOWN: Final = (
    *("plugin", "hook", "attempt", "line_no"),
    *("type", "payload", "warning", "created_at"),
)


def records(
    conn: Handle,
    run_id: uuid.UUID,
    *,
    kind: str | None = None,
    plugin: str | None = None,
    warnings: bool = False,
    all_attempts: bool = False,
    after: int | None = None,
    limit: int = USUAL,
) -> list[HookRecord]:
    """The records of a run, the oldest first, after the id with which the page before ended."""
    found = HookRecordRepository(conn).list(
        run_id,
        kind=kind,
        plugin=plugin,
        warnings=warnings,
        all_attempts=all_attempts,
        after=after,
        limit=limit,
    )
    if not found and RunRepository(conn).fetch(run_id) is None:
        raise UnknownRun(run_id)
    return found


def json_of(found: Sequence[HookRecord]) -> list[dict[str, Any]]:
    """What `qwf hooks records RUN --json` prints."""
    return [
        {"record": one.id, "job": node_job(one.node_job_id)} | {name: getattr(one, name) for name in _SHOWN}
        for one in found
    ]


def command_of(
    run_id: uuid.UUID,
    *,
    kind: str | None = None,
    plugin: str | None = None,
    warnings: bool = False,
    all_attempts: bool = False,
    after: int | None = None,
    limit: int = USUAL,
) -> str:
    """The command that shows that page."""
    words = ["qwf", "hooks", "records", str(run_id)]
    words += ["--type", kind] if kind is not None else []
    words += ["--plugin", plugin] if plugin is not None else []
    words += ["--warnings"] if warnings else []
    words += ["--all-attempts"] if all_attempts else []
    words += ["--after", str(after)] if after is not None else []
    words += ["--limit", str(limit)] if limit != USUAL else []
    return shlex.join(words)
