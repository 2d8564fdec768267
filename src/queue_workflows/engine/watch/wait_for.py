"""Waiting for the result of one job or run, for callers that cannot do without it.

`wait_for` looks by primary key: often at first, then after a tenth of what it has waited, and once a second
at the least, so that the answer comes at most that much late. What is waited for outlives an outage of the
database, and so does the wait. `await_for` does it for any number of callers at once, and is told of ends.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

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
    UnusableConnection,
    WaitTimeout,
)
from queue_workflows.repositories.jobs.bulk_insert import Enqueued
from queue_workflows.repositories.reports.ends import RUN, EndOf, EndRepository, SeenEnd
from queue_workflows.repositories.runs.runs import StartedRun, named_run
from queue_workflows.repositories.sql.checks import seconds_or_none, whole
from queue_workflows.repositories.sql.connection import Handle
from queue_workflows.repositories.sql.families import BY_NAME, LARGEST_ID, named_job
from queue_workflows.states import JobFamily, JobStatus

if TYPE_CHECKING:
    from sqlalchemy import Engine

SOONEST_S: Final = 0.01
LATEST_S: Final = 1.0

Waitable: TypeAlias = Enqueued | StartedRun | uuid.UUID | int | str


def wait_for(
    job: Waitable,
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
    wanted = named_end(job, family)
    patience = seconds_or_none("timeout", timeout, zero=True)
    _check_engine(engine)
    started = now()
    with _looks(wanted, engine, db_url) as looking:

        def look() -> SeenEnd:
            with plain_errors():
                return looking()

        seen: SeenEnd | None = look()
        while True:
            if seen is not None and seen.is_over:
                return outcome(wanted, seen)
            waited = now() - started
            if patience is not None and waited >= patience:
                raise WaitTimeout(wanted.name, waited, seen.status if seen else None)
            pause = pause_after(waited)
            sleep(pause if patience is None else min(pause, patience - waited))
            seen = _look_again(look)


def pause_after(waited: float) -> float:
    """How long until the next look, after so many seconds of waiting."""
    return min(LATEST_S, max(SOONEST_S, waited / 10))


def outcome(wanted: EndOf, seen: SeenEnd) -> Any:
    """The result of what is over, or what is raised instead."""
    failed, cancelled = (RunFailed, RunCancelled) if wanted.kind == RUN else (JobFailed, JobCancelled)
    # Runs and jobs have these words in common.
    if seen.status == JobStatus.FAILED:
        raise failed(wanted.name, seen.error)
    if seen.status == JobStatus.CANCELLED:
        raise cancelled(wanted.name, seen.error)
    return seen.result


def absent(wanted: EndOf) -> QwfError:
    """What to say of what is not there."""
    return UnknownRun(wanted.id) if isinstance(wanted.id, uuid.UUID) else UnknownJob(wanted.name)


def named_end(job: Waitable, family: str) -> EndOf:
    """What a caller waits for; `PayloadError` if it is no job and no run."""
    if isinstance(job, StartedRun | uuid.UUID):
        return EndOf(RUN, job if isinstance(job, uuid.UUID) else job.id)
    if isinstance(job, str):
        run_id = named_run(job)
        if run_id is not None:
            return EndOf(RUN, run_id)
        where, job_id = named_job(job) or (None, 0)
        if where is None:
            advice = "write ingest:7, node:7, or a run's id"
            raise PayloadError(f"{job!r:.80} is no job and no run", path="job", advice=advice)
        return EndOf(where.name, job_id)
    if family not in BY_NAME:
        raise PayloadError(f"family {family!r:.80} is none of ingest, node", path="family")
    job_id = job.id if isinstance(job, Enqueued) else job
    return EndOf(BY_NAME[family].name, whole("job", job_id, 1, LARGEST_ID))


@contextmanager
def plain_errors() -> Iterator[None]:
    """An error of ours for each of the driver's; a lost connection is a database that is away."""
    try:
        yield
    except Exception as error:
        cause = drivers_own(error)
        if cause is error and not isinstance(error, psycopg.Error):
            raise
        meaning = classify_failure(error, "")
        if isinstance(cause, psycopg.OperationalError) and not isinstance(meaning, DatabaseUnreachable):
            meaning = DatabaseUnreachable(meaning.message, advice=meaning.advice)
        raise meaning from error


def _look_again(look: Callable[[], SeenEnd]) -> SeenEnd | None:
    """None while the database is away; the first look, which finds out whether it can be had, raises."""
    try:
        return look()
    except DatabaseUnreachable:
        return None


def _check_engine(engine: object) -> None:
    if hasattr(engine, "sync_engine"):
        raise UnusableConnection(
            f"{type(engine).__module__}.{type(engine).__qualname__}",
            "asynchronous",
            wanted="this verb takes a synchronous engine",
            advice="`await await_for(…)`, which needs no engine",
        )


@contextmanager
def _looks(wanted: EndOf, engine: Engine | None, db_url: str | None) -> Iterator[Callable[[], SeenEnd]]:
    """How to look: each look is a transaction of its own, and holds nothing afterwards."""
    if engine is not None:

        def borrow() -> SeenEnd:
            with engine.connect() as connection:
                return _look(connection, wanted)

        yield borrow
        return
    with Database.open(db_url, role="waiter", pool_size=1) as database, KeptConnection(database) as kept:
        yield lambda: _look(kept.connection(), wanted)


def _look(handle: Handle, wanted: EndOf) -> SeenEnd:
    seen = EndRepository(handle).look([wanted]).get(wanted)
    if seen is None:
        raise absent(wanted)
    return seen
