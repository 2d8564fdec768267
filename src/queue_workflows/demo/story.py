"""The story of the demo: migrate, enqueue, roll back, work, refuse a late result, show what happened.

Each step is what a host app would write, on the public verbs, against a real database.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.orm import Session

from queue_workflows.db.engine import Database
from queue_workflows.db.migrations import Progress, bootstrap
from queue_workflows.demo import crew
from queue_workflows.demo.orders import CATALOGUE, QUEUE, ROLLED_BACK, TASK, Order, next_batch, prepare
from queue_workflows.errors import LeaseLost
from queue_workflows.models import IngestJob
from queue_workflows.repositories import ClaimedIngestJob, IngestJobRepository, NewIngestJob
from queue_workflows.repositories.bulk import Enqueued
from queue_workflows.states import JOB_TERMINAL, JobStatus

LEASE_S: Final = 30.0
PATIENCE_S: Final = 10.0
ALONE_S: Final = 0.05

# One claim starts several jobs at the same moment, in the order in which it takes them.
AS_STARTED: Final = (IngestJob.started_at, IngestJob.priority.desc(), IngestJob.position)

Say = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """What became of one job."""

    job: int
    task: str
    priority: int
    status: str
    claimed_by: str | None
    attempt: int
    wait_ms: int | None
    result: Any


@dataclass(frozen=True)
class Outcome:
    """What happened, for the table and for --json."""

    database: str
    source: str
    server: str
    data_directory: str | None
    revisions_applied: int
    batch: int
    enqueued: int
    enqueued_again: int
    left_by_rollback: int
    late_results_refused: int
    jobs: tuple[Row, ...]
    counts: dict[str, int]

    @property
    def complete(self) -> bool:
        """Whether every job of the batch came to its end."""
        return all(row.status == JobStatus.COMPLETED for row in self.jobs)


def run_demo(dsn: str | None, say: Say, *, sleep: Callable[[float], None] = time.sleep) -> Outcome:
    """Run the whole story on the database that the settings name, or on the embedded server."""
    with Database.open(dsn, role="demo") as database:
        server = _version(database)
        say(f"database  {server}, {database.redacted} ({database.source})")
        applied = _migrate(dsn, say)
        batch, made, again = _enqueue(database, say)
        left = _roll_back(database, say)
        refused = _work(database, dsn, {one.id for one in made}, say, sleep)
        rows, counts = _what_happened(database, [one.id for one in made])
        return Outcome(
            database.redacted,
            database.source,
            server,
            str(database.data_dir) if database.data_dir else None,
            applied,
            batch,
            sum(one.created for one in made),
            sum(one.created for one in again),
            left,
            refused,
            rows,
            counts,
        )


def _version(database: Database) -> str:
    """What answers."""
    with database.engine.connect() as connection:
        version = connection.execute(sa.text("SHOW server_version")).scalar_one().split()[0]
    return f"PostgreSQL {version}"


def _migrate(dsn: str | None, say: Say) -> int:
    def report(step: Progress) -> None:
        if step.done:
            say(f"schema    {step.chain} {step.revision} {step.subject}")

    applied = len(bootstrap(dsn, report=report))
    if not applied:
        say("schema    up to date")
    return applied


def _enqueue(database: Database, say: Say) -> tuple[int, list[Enqueued], list[Enqueued]]:
    """The promise itself: the orders and their jobs become visible in one commit."""
    with database.engine.begin() as connection:
        prepare(connection)
    with Session(database.engine) as session:
        batch = next_batch(session.connection())
        jobs = _orders_and_jobs(session, batch, CATALOGUE)
        made = IngestJobRepository(session).enqueue_many(jobs)
        session.commit()
    say(f"enqueue   batch {batch}: {len(made)} orders and their {len(made)} jobs, committed together")
    with Session(database.engine) as session:
        again = IngestJobRepository(session).enqueue_many(jobs)
        session.commit()
    new = sum(one.created for one in again)
    say(f"          the same {len(jobs)} jobs once more: {new} new, because their dedupe keys are taken")
    return batch, made, again


def _orders_and_jobs(session: Session, batch: int, lines: tuple[tuple[str, int], ...]) -> list[NewIngestJob]:
    orders = [Order(batch=batch, text=text) for text, _ in lines]
    session.add_all(orders)
    session.flush()
    return [
        NewIngestJob(
            task_name=TASK,
            queue=QUEUE,
            reason=f"demo batch {batch}",
            args={"order": order.id, "text": order.text},
            dedupe_key=f"order-{order.id}",
            priority=priority,
        )
        for order, (_, priority) in zip(orders, lines, strict=True)
    ]


def _roll_back(database: Database, say: Say) -> int:
    """The other side of the promise: a transaction that fails leaves neither orders nor jobs."""
    with Session(database.engine) as session:
        batch = next_batch(session.connection())
        jobs = IngestJobRepository(session).enqueue_many(_orders_and_jobs(session, batch, ROLLED_BACK))
        session.rollback()
    with Session(database.engine) as session:
        orders = session.execute(sa.select(sa.func.count()).where(Order.batch == batch)).scalar_one()
        left = orders + sum(IngestJobRepository(session).fetch(job.id) is not None for job in jobs)
    say(f"rollback  batch {batch}: {len(jobs)} orders and {len(jobs)} jobs rolled back, {left} of them left")
    return left


def _work(
    database: Database, dsn: str | None, ours: set[int], say: Say, sleep: Callable[[float], None]
) -> int:
    """Lose a lease, then let real workers empty the queue; returns how many late results were refused.

    The queue is shared with demos that run beside this one or were interrupted: any may do another's jobs.
    """
    refused = _lose_a_lease(database, f"demo:{os.getpid()}", say)
    say(f"work      {crew.shown()}")
    crew.work_until_empty(dsn)
    deadline = time.monotonic() + PATIENCE_S
    while _unfinished(database, ours) and time.monotonic() < deadline:
        sleep(ALONE_S)
    return refused


@contextmanager
def _held(database: Database, worker: str, *, limit: int) -> Iterator[list[ClaimedIngestJob]]:
    """Claimed jobs; whatever ends the block, an interruption too, none of them stays claimed."""
    jobs: list[ClaimedIngestJob] = []
    try:
        with Session(database.engine) as session:
            jobs = IngestJobRepository(session).claim(QUEUE, worker_id=worker, lease_s=LEASE_S, limit=limit)
            session.commit()
        yield jobs
    finally:
        for job in jobs:
            _give_back(database, job)


def _give_back(database: Database, job: ClaimedIngestJob) -> bool:
    """Release a job unless it is not ours any more, as when it is done."""
    with Session(database.engine) as session:
        try:
            IngestJobRepository(session).release(job)
        except LeaseLost:
            return False
        session.commit()
        return True


def _lose_a_lease(database: Database, worker: str, say: Say) -> int:
    """The fence: a worker that lost its job, and does not know it yet, cannot write a result."""
    with _held(database, worker, limit=1) as jobs:
        for job in jobs:
            _give_back(database, job)
            say(f"fence     job {job.id} went back into the queue while {worker} was not looking;")
        return sum(_is_refused(database, job, say) for job in jobs)


def _is_refused(database: Database, job: ClaimedIngestJob, say: Say) -> bool:
    with Session(database.engine) as session:
        try:
            IngestJobRepository(session).complete(job, "too late")
        except LeaseLost as refusal:
            say(f"          its late result is refused: {refusal}")
            return True
        session.commit()
        return False


def _unfinished(database: Database, ours: set[int]) -> bool:
    with Session(database.engine) as session:
        unfinished = sa.select(sa.func.count()).where(
            IngestJob.id.in_(ours), IngestJob.status.not_in(JOB_TERMINAL)
        )
        return session.execute(unfinished).scalar_one() > 0


def _what_happened(database: Database, ours: list[int]) -> tuple[tuple[Row, ...], dict[str, int]]:
    with Session(database.engine) as session:
        statement = sa.select(IngestJob).where(IngestJob.id.in_(ours))
        jobs = session.execute(statement.order_by(*AS_STARTED)).scalars().all()
        return tuple(map(_row, jobs)), IngestJobRepository(session).counts().get(QUEUE, {})


def _row(job: IngestJob) -> Row:
    wait = job.started_at - job.created_at if job.started_at else None
    return Row(
        job.id,
        job.task_name,
        job.priority,
        job.status,
        job.claimed_by,
        job.attempt,
        None if wait is None else round(wait.total_seconds() * 1000),
        job.result,
    )
