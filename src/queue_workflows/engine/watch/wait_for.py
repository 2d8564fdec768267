"""Waiting for the result of one job or run, for callers that cannot do without it.

There is no NOTIFY at a job's end: every job would pay for the few that somebody waits for. So this looks, by
primary key: often at first, then after a tenth of what it has waited, and once a second at the least. The
answer comes at most that much late. What is waited for outlives an outage of the database, and so does the
wait.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg

from queue_workflows.db.connections.engine import Database
from queue_workflows.db.connections.failures import classify_failure, drivers_own
from queue_workflows.db.connections.snapshot_read import KeptConnection
from queue_workflows.errors import (
    DatabaseUnreachable,
    JobCancelled,
    JobFailed,
    PayloadError,
    QwfError,
    RunCancelled,
    RunFailed,
    UnknownJob,
    UnknownRun,
    WaitTimeout,
)
from queue_workflows.repositories.jobs.bulk_insert import Enqueued
from queue_workflows.repositories.runs.runs import StartedRun, named_run
from queue_workflows.repositories.sql.checks import seconds_or_none, whole
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.families import BY_NAME, LARGEST_ID, Family, named_job, per_family
from queue_workflows.states import JOB_TERMINAL, RUN_TERMINAL, JobFamily, JobStatus

if TYPE_CHECKING:
    from sqlalchemy import Engine

SOONEST_S: Final = 0.01
LATEST_S: Final = 1.0

LOOK: Final = per_family(
    "SELECT status, {result}::text, (errors -> -1)::text FROM {table} WHERE id = %(id)s::bigint"
)


LOOK_AT_RUN: Final = "SELECT status, outputs::text, error::text FROM workflow_runs WHERE id = %(id)s::uuid"


@dataclass(frozen=True, slots=True)
class _Awaited:
    """Something that ends: how to look at it, and what to raise if it has no result."""

    name: str
    id: int | uuid.UUID
    sql: str
    table: str
    over: frozenset[str]
    failed: Callable[[str, dict[str, Any] | None], QwfError]
    cancelled: Callable[[str, dict[str, Any] | None], QwfError]
    absent: Callable[[], QwfError]


@dataclass(frozen=True, slots=True)
class _Seen:
    status: str
    result: Any
    error: dict[str, Any] | None


def wait_for(
    job: Enqueued | StartedRun | uuid.UUID | int | str,
    timeout: float | None = None,
    *,
    family: str = JobFamily.INGEST,
    engine: Engine | None = None,
    db_url: str | None = None,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Any:
    """The result of a job, or the outputs of a run, as soon as it is over.

    Commit before you wait, or no worker can see it. `job` is what enqueueing or `start_run` returned, the id
    of a run or of a job of `family`, or a name such as `node:7`. With `engine` each look borrows a connection
    of yours for a moment; else one of our own is open meanwhile. Raises `JobFailed` or `RunFailed`,
    `JobCancelled` or `RunCancelled`, `WaitTimeout`, and `UnknownJob` or `UnknownRun`. A skipped job has no
    result, so that is None.
    """
    awaited = _awaited(job, family)
    patience = seconds_or_none("timeout", timeout, zero=True)
    started = now()
    with _looks(awaited, engine, db_url) as looking:
        look = _plainly(looking)
        seen: _Seen | None = look()
        while True:
            if seen is not None and seen.status in awaited.over:
                return _outcome(awaited, seen)
            waited = now() - started
            if patience is not None and waited >= patience:
                raise WaitTimeout(awaited.name, waited, seen.status if seen else None)
            pause = min(LATEST_S, max(SOONEST_S, waited / 10))
            sleep(pause if patience is None else min(pause, patience - waited))
            seen = _look_again(look)


def _look_again(look: Callable[[], _Seen]) -> _Seen | None:
    """None while the database is away; the first look, which finds out whether it can be had, raises."""
    try:
        return look()
    except DatabaseUnreachable:
        return None


def _plainly(look: Callable[[], _Seen]) -> Callable[[], _Seen]:
    """The look with an error of ours for each of the driver's; a lost connection is one that is away."""

    def seen() -> _Seen:
        try:
            return look()
        except Exception as error:
            cause = drivers_own(error)
            if cause is error and not isinstance(error, psycopg.Error):
                raise
            meaning = classify_failure(error, "")
            if isinstance(cause, psycopg.OperationalError) and not isinstance(meaning, DatabaseUnreachable):
                meaning = DatabaseUnreachable(meaning.message, advice=meaning.advice)
            raise meaning from error

    return seen


def _outcome(awaited: _Awaited, seen: _Seen) -> Any:
    # Runs and jobs have these words in common.
    if seen.status == JobStatus.FAILED:
        raise awaited.failed(awaited.name, seen.error)
    if seen.status == JobStatus.CANCELLED:
        raise awaited.cancelled(awaited.name, seen.error)
    return seen.result


def _awaited(job: Enqueued | StartedRun | uuid.UUID | int | str, family: str) -> _Awaited:
    if isinstance(job, StartedRun | uuid.UUID):
        return _run(job if isinstance(job, uuid.UUID) else job.id)
    if isinstance(job, str):
        run_id = named_run(job)
        if run_id is not None:
            return _run(run_id)
        where, job_id = named_job(job) or (None, 0)
        if where is None:
            advice = "write ingest:7, node:7, or a run's id"
            raise PayloadError(f"{job!r:.80} is no job and no run", path="job", advice=advice)
        return _job(where, job_id)
    if family not in BY_NAME:
        raise PayloadError(f"family {family!r:.80} is none of ingest, node", path="family")
    job_id = job.id if isinstance(job, Enqueued) else job
    return _job(BY_NAME[family], whole("job", job_id, 1, LARGEST_ID))


def _job(family: Family, job_id: int) -> _Awaited:
    name = f"{family.name}:{job_id}"
    sql, over = LOOK[family.name], frozenset[str](JOB_TERMINAL)
    return _Awaited(name, job_id, sql, family.table, over, JobFailed, JobCancelled, lambda: UnknownJob(name))


def _run(run_id: uuid.UUID) -> _Awaited:
    return _Awaited(
        f"run:{run_id}",
        run_id,
        LOOK_AT_RUN,
        "workflow_runs",
        frozenset[str](RUN_TERMINAL),
        RunFailed,
        RunCancelled,
        lambda: UnknownRun(run_id),
    )


@contextmanager
def _looks(awaited: _Awaited, engine: Engine | None, db_url: str | None) -> Iterator[Callable[[], _Seen]]:
    """How to look: each look is a transaction of its own, and holds nothing afterwards."""
    if engine is not None:

        def borrow() -> _Seen:
            with engine.connect() as connection:
                return _look(connection, awaited)

        yield borrow
        return
    with Database.open(db_url, role="waiter", pool_size=1) as database, KeptConnection(database) as kept:
        yield lambda: _look(kept.connection(), awaited)


def _look(handle: Handle, awaited: _Awaited) -> _Seen:
    rows = Statements(handle, awaited.table).rows(awaited.sql, {"id": awaited.id})
    if not rows:
        raise awaited.absent()
    status, result, error = rows[0]
    return _Seen(status, _loaded(result), _loaded(error))


def _loaded(text: str | None) -> Any:
    return None if text is None else json.loads(text)
