"""The story of the demo: commit, roll back, refuse a late result, and make a film with real processes.

Each step is what a host app would write, on the public verbs, against a real database.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.orm import Session

from queue_workflows.db.connections.engine import Database
from queue_workflows.db.migrations import bootstrap
from queue_workflows.demo import processes
from queue_workflows.demo.films import Film, check_ours, prepare
from queue_workflows.demo.outcome import Outcome, Row
from queue_workflows.demo.ticking import QUEUE, TICK, begin_ticking, schedule_of
from queue_workflows.engine.runs.verbs import asked_node, cancel_run, start_run, submit_input
from queue_workflows.engine.watch.follow import watch_run
from queue_workflows.engine.watch.run_view import NodeOverview, RunOverview
from queue_workflows.errors import LeaseLost, RunRefused
from queue_workflows.models import IngestJob, Schedule, WorkflowNodeJob
from queue_workflows.repositories import (
    ClaimedIngestJob,
    IngestJobRepository,
    InputSubmissionRepository,
    ScheduleRepository,
    StartedRun,
)
from queue_workflows.states import JOB_TERMINAL, JobStatus, SubmissionStatus
from queue_workflows.workflow.document.nodes import InputNode

FILM: Final = Path(__file__).with_name("film.yaml")
BRIEF: Final = "a night train through the mountains"
LEASE_S: Final = 30.0
# For what takes seconds; the time in which somebody is asked is not counted.
PATIENCE_S: Final = 120.0
LOOK_EVERY_S: Final = 0.1


@dataclass(frozen=True)
class Stage:
    """Where the story is told: a line, the run as it is at the moment, and a question to the viewer.

    `ask` gets the node, the seconds until it expires, and whether somebody has answered it elsewhere
    meanwhile; None is no answer from here.
    """

    say: Callable[[str], None]
    show: Callable[[RunOverview], None]
    ask: Callable[[InputNode, float, Callable[[], bool]], Mapping[str, Any] | None]
    # What is open beside the story, from when its database is there until it is told.
    beside: Callable[[Database], AbstractContextManager[object]] = nullcontext


@dataclass(frozen=True)
class _Made:
    """The film's row and what was started with it."""

    film: int
    run: StartedRun


def run_demo(dsn: str | None, stage: Stage) -> Outcome:
    """Run the whole story on the database that the settings name, or on the embedded server."""
    with Database.open(dsn, role="demo", lingers=False) as database:
        server = _version(database)
        stage.say(f"database  {server}, {database.redacted} ({database.source})")
        with database.engine.begin() as connection:
            check_ours(connection)
        applied = _migrate(dsn, stage)
        with stage.beside(database):
            made = _commit(database, stage)
            left = _roll_back(database, stage)
            refused = _lose_a_lease(database, f"demo:{os.getpid()}", stage)
            run = _make(database, dsn, made, stage)
        return Outcome(
            database=database.redacted,
            source=database.source,
            server=server,
            data_directory=str(database.data_dir) if database.data_dir else None,
            revisions_applied=applied,
            film=made.film,
            left_by_rollback=left,
            late_results_refused=refused,
            run=run,
            jobs=_jobs(database, made),
        )


def _version(database: Database) -> str:
    """What answers."""
    with database.engine.connect() as connection:
        version = connection.execute(sa.text("SHOW server_version")).scalar_one().split()[0]
    return f"PostgreSQL {version}"


def _migrate(dsn: str | None, stage: Stage) -> int:
    applied = bootstrap(dsn)
    if applied:
        stage.say(f"schema    {len(applied)} revisions applied, up to {applied[-1].revision}")
    else:
        stage.say("schema    up to date")
    return len(applied)


def _commit(database: Database, stage: Stage) -> _Made:
    """The promise itself: the film, its run, a schedule and its first job become visible in one commit."""
    with database.engine.begin() as connection:
        prepare(connection)
    with Session(database.engine) as session, session.begin():
        made = _film_and_run(session)
    stage.say(f"commit    film {made.film}, its run and a schedule that ticks beside it, in one transaction")
    return made


def _film_and_run(session: Session) -> _Made:
    run = start_run(FILM, {"brief": BRIEF}, conn=session)
    film = Film(brief=BRIEF, run_id=run.id)
    session.add(film)
    session.flush()
    begin_ticking(run.id, conn=session)
    return _Made(film.id, run)


def _roll_back(database: Database, stage: Stage) -> int:
    """The other side of the promise: a transaction that fails leaves neither film nor run nor schedule."""
    with Session(database.engine) as session:
        made = _film_and_run(session)
        session.rollback()
    with Session(database.engine) as session:
        left: int = sum(
            session.execute(sa.text(sql), {"id": value}).scalar_one()
            for sql, value in (
                ("SELECT count(*) FROM qwf_demo.films WHERE id = :id", made.film),
                ("SELECT count(*) FROM workflow_runs WHERE id = :id", made.run.id),
                ("SELECT count(*) FROM ingest_jobs WHERE schedule_name = :id", schedule_of(made.run.id)),
                ("SELECT count(*) FROM schedules WHERE name = :id", schedule_of(made.run.id)),
            )
        )
    stage.say(f"rollback  film {made.film}, its run and its schedule, given up: {left} of them left")
    return left


# The fence.


def _lose_a_lease(database: Database, worker: str, stage: Stage) -> int:
    """A worker that lost its job, and does not know it yet, cannot write a result; how many were refused."""
    with _held(database, worker) as jobs:
        for job in jobs:
            _give_back(database, job)
            stage.say(f"fence     job {job.id} went back into the queue while {worker} was not looking;")
        return sum(_is_refused(database, job, stage) for job in jobs)


@contextmanager
def _held(database: Database, worker: str) -> Iterator[list[ClaimedIngestJob]]:
    """A claimed job; whatever ends the block, an interruption too, it does not stay claimed."""
    jobs: list[ClaimedIngestJob] = []
    try:
        with Session(database.engine) as session:
            jobs = IngestJobRepository(session).claim(QUEUE, worker_id=worker, lease_s=LEASE_S, limit=1)
            session.commit()
        yield jobs
    finally:
        for job in jobs:
            _give_back(database, job)


def _give_back(database: Database, job: ClaimedIngestJob) -> None:
    """Release a job unless it is not ours any more."""
    with Session(database.engine) as session:
        try:
            IngestJobRepository(session).release(job)
        except LeaseLost:
            return
        session.commit()


def _is_refused(database: Database, job: ClaimedIngestJob, stage: Stage) -> bool:
    with Session(database.engine) as session:
        try:
            IngestJobRepository(session).complete(job, "too late")
        except LeaseLost as refusal:
            stage.say(f"          its late result is refused: {refusal}")
            return True
        session.commit()
        return False


# The film.


def _make(database: Database, dsn: str | None, made: _Made, stage: Stage) -> RunOverview:
    """Have real processes make the film, and wait for the ticks beside it."""
    stage.say(f"work      {processes.shown()}")
    with processes.at_work(dsn) as workers:
        try:
            run = _watch(database, made, workers, stage)
            _await_ticks(database, made, workers)
        except BaseException:
            # Nobody waits for it any more; what its orchestrator does not manage to end, the next one will.
            with database.engine.begin() as connection:
                ScheduleRepository(connection).delete(schedule_of(made.run.id))
                cancel_run(made.run, conn=connection, reason="the demo was interrupted")
            raise
        return run


def _watch(database: Database, made: _Made, workers: processes.DemoProcesses, stage: Stage) -> RunOverview:
    """Show the run until it is over, and have its question answered."""
    is_asked = False
    deadline = time.monotonic() + PATIENCE_S
    for seen in watch_run(database, made.run.id):
        if seen is not None:
            stage.show(seen)
            if seen.is_over:
                return seen
            waiting = [node for node in seen.nodes if node.state == JobStatus.AWAITING_INPUT]
            if waiting and not is_asked:
                is_asked, began = True, time.monotonic()
                _ask(database, made, seen, waiting[0], stage)
                deadline += time.monotonic() - began
        workers.check()
        if time.monotonic() > deadline:
            break
    raise workers.failed("has not made the film")


def _ask(database: Database, made: _Made, seen: RunOverview, node: NodeOverview, stage: Stage) -> None:
    """Have the node answered; a question not answered in time shows in how the run ends."""
    left_s = (node.due_at - seen.at).total_seconds() if node.due_at else PATIENCE_S
    with database.engine.connect() as connection:
        asked = asked_node(made.run, node.id, conn=connection)
    answer = stage.ask(asked, left_s, lambda: _is_answered(database, made, node.id))
    if answer is None and _is_answered(database, made, node.id):
        stage.say("approve   answered on the operator's page")
        return
    if answer is None:
        stage.say("approve   no answer in time: the node expires, and the film fails")
        return
    with database.engine.begin() as connection:
        try:
            submit_input(made.run, node.id, answer, conn=connection, submitted_by="qwf demo")
        except RunRefused as late:
            stage.say(f"approve   too late: {late}")


def _is_answered(database: Database, made: _Made, node_id: str) -> bool:
    """Whether an answer is there that nobody has refused."""
    taken = [SubmissionStatus.PENDING, SubmissionStatus.ACCEPTED]
    with Session(database.engine) as session:
        answers = InputSubmissionRepository(session).list(
            run_id=made.run.id, node_id=node_id, status=taken, limit=1
        )
    return bool(answers)


def _await_ticks(database: Database, made: _Made, workers: processes.DemoProcesses) -> None:
    """The tick that ends the schedule may come after the film."""
    deadline = time.monotonic() + PATIENCE_S
    is_scheduled = sa.select(Schedule.name).where(Schedule.name == schedule_of(made.run.id))
    unfinished = sa.select(IngestJob.id).where(_is_tick(made), IngestJob.status.not_in(JOB_TERMINAL))
    while True:
        with Session(database.engine) as session:
            if session.execute(is_scheduled).first() is None and session.execute(unfinished).first() is None:
                return
        workers.check()
        if time.monotonic() > deadline:
            raise workers.failed("has not run the ticks")
        time.sleep(LOOK_EVERY_S)


def _is_tick(made: _Made) -> sa.ColumnElement[bool]:
    return IngestJob.schedule_name == schedule_of(made.run.id)


# What happened.


def _jobs(database: Database, made: _Made) -> tuple[Row, ...]:
    of_run = sa.select(WorkflowNodeJob).where(WorkflowNodeJob.run_id == made.run.id)
    ticks = sa.select(IngestJob).where(_is_tick(made)).order_by(IngestJob.tick_at)
    with Session(database.engine) as session:
        rows = [_node_row(job) for job in session.execute(of_run).scalars()]
        rows += [
            _row(job, f"ingest:{job.id}", f"{TICK} {number}", job.result)
            for number, job in enumerate(session.execute(ticks).scalars(), 1)
        ]
    return tuple(sorted(rows, key=lambda row: (row.started_at or row.created_at, row.created_at, row.name)))


def _node_row(job: WorkflowNodeJob) -> Row:
    name = job.node_id if job.map_index < 0 else f"{job.node_id}[{job.map_index}]"
    return _row(job, f"node:{job.id}", name, job.context_delta)


def _row(job: WorkflowNodeJob | IngestJob, name: str, shown: str, result: Any) -> Row:
    return Row(
        job=name,
        name=shown,
        status=job.status,
        worker=job.claimed_by,
        attempt=job.attempt,
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        result=result,
    )
