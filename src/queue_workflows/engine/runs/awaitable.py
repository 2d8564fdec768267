"""The verbs of runs, awaited, on an asynchronous connection: each is the verb of its name without the `a`."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypedDict, Unpack

from queue_workflows.engine.runs.retry import RunRetry, retry_run
from queue_workflows.engine.runs.verbs import (
    RunName,
    cancel_node,
    cancel_run,
    cancel_runs,
    start_run,
    submit_input,
)
from queue_workflows.repositories.runs.runs import StartedRun
from queue_workflows.repositories.sql.connection import AsyncHandle, awaited
from queue_workflows.states import RunStatus
from queue_workflows.workflow.document.load import Document


class RunOptions(TypedDict, total=False):
    """What may be said of a run beside its workflow and its inputs."""

    priority: int | None
    dedupe_key: str | None
    labels: Mapping[str, Any] | None
    parcel_id: str | None
    traceparent: str | None
    max_open_runs: int | None
    durability: str | None


async def astart_run(
    workflow: str | Document | Mapping[str, Any] | Path,
    inputs: Mapping[str, Any] | None = None,
    *,
    conn: AsyncHandle | None = None,
    **options: Unpack[RunOptions],
) -> StartedRun:
    """`start_run`, awaited."""
    return await awaited(conn, lambda usable: start_run(workflow, inputs, conn=usable, **options))


async def acancel_run(
    run: RunName, *, conn: AsyncHandle | None = None, reason: str | None = None, actor: str | None = None
) -> bool:
    """`cancel_run`, awaited."""
    return await awaited(conn, lambda usable: cancel_run(run, conn=usable, reason=reason, actor=actor))


async def acancel_runs(
    runs: Collection[RunName],
    *,
    conn: AsyncHandle | None = None,
    reason: str | None = None,
    actor: str | None = None,
) -> dict[uuid.UUID, RunStatus]:
    """`cancel_runs`, awaited."""
    return await awaited(conn, lambda usable: cancel_runs(runs, conn=usable, reason=reason, actor=actor))


async def acancel_node(
    run: RunName,
    node: str,
    *,
    conn: AsyncHandle | None = None,
    reason: str | None = None,
    actor: str | None = None,
) -> bool:
    """`cancel_node`, awaited."""
    return await awaited(conn, lambda usable: cancel_node(run, node, conn=usable, reason=reason, actor=actor))


async def asubmit_input(
    run: RunName,
    node: str,
    payload: Mapping[str, Any],
    *,
    conn: AsyncHandle | None = None,
    submitted_by: str | None = None,
) -> int:
    """`submit_input`, awaited."""
    return await awaited(
        conn, lambda usable: submit_input(run, node, payload, conn=usable, submitted_by=submitted_by)
    )


async def aretry_run(
    run: RunName,
    *,
    conn: AsyncHandle | None = None,
    from_node: str | None = None,
    document: Document | Mapping[str, Any] | Path | None = None,
    latest: bool = False,
    dry_run: bool = False,
    actor: str | None = None,
    reason: str | None = None,
) -> RunRetry:
    """`retry_run`, awaited."""
    return await awaited(
        conn,
        lambda usable: retry_run(
            run,
            conn=usable,
            from_node=from_node,
            document=document,
            latest=latest,
            dry_run=dry_run,
            actor=actor,
            reason=reason,
        ),
    )
