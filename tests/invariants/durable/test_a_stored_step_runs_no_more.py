"""Kill -9 before, within and after every statement of a durable function: no stored step runs again, none is
lost, and what a step writes to this database is there once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from support.stages.durable_kills import (
    MOMENTS,
    RESULT,
    STEPS,
    Kill,
    Processes,
    noted,
    ten_steps,
    ten_steps_async,
)

from queue_workflows.engine.registry.ingest_task import IngestTask
from queue_workflows.repositories import IngestJobRepository
from queue_workflows.repositories.durable.steps import StepRepository


@pytest.fixture
def conn(qwf_configured: str) -> Iterator[psycopg.Connection]:
    """An empty queue, and a table that steps write to."""
    with psycopg.connect(qwf_configured, autocommit=True) as connection:
        connection.execute("TRUNCATE ingest_jobs, durable_steps, durable_events")
        connection.execute("CREATE TABLE IF NOT EXISTS effects (job bigint, step int); TRUNCATE effects")
        yield connection


def check(conn: psycopg.Connection, processes: Processes, task: IngestTask, ledger: Path, kill: Kill) -> None:
    """One job that is killed once, and then runs to its end in another process."""
    ledger.unlink(missing_ok=True)
    job = task.enqueue({"ledger": str(ledger)}, conn=conn).id
    processes.run(kill)
    stored = {row.name for row in StepRepository(conn, "ingest").stored(job)}
    before = noted(ledger)
    processes.run()
    row = IngestJobRepository(conn).fetch(job)
    assert row is not None
    assert (row.status, row.result) == ("completed", RESULT), kill
    after = [step for _, step in noted(ledger)[len(before) :]]
    assert not stored & set(after), kill
    done = Counter(step for _, step in noted(ledger))
    assert set(done) == set(STEPS), kill
    # Only what ran, and was not stored yet, may have run twice.
    assert sum(count - 1 for count in done.values()) <= 1, kill
    effects = conn.execute("SELECT step FROM effects WHERE job = %s ORDER BY step", [job]).fetchall()
    assert effects == [(2,), (5,), (8,)], kill


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "moment"),
    [
        pytest.param(ten_steps, "before", id="before-sync"),
        pytest.param(ten_steps, "at", id="at-sync"),
        pytest.param(ten_steps_async, "at", id="at-async"),
        # A few statements of it are among those of the job that is killed again and again.
        pytest.param(ten_steps_async, "before", id="before-async", marks=pytest.mark.nightly),
        # What is killed after one statement leaves what is killed before the next one does.
        pytest.param(ten_steps, "after", id="after-sync", marks=pytest.mark.nightly),
        pytest.param(ten_steps_async, "after", id="after-async", marks=pytest.mark.nightly),
    ],
)
def test_at_every_statement(
    conn: psycopg.Connection, qwf_configured: str, tmp_path: Path, task: IngestTask, moment: str
):
    """Each of them once, for a job of its own."""
    processes = Processes(qwf_configured)
    task.enqueue({"ledger": str(tmp_path / "whole")}, conn=conn)
    statements = processes.run()
    assert statements > 2 * len(STEPS)
    for statement in range(1, statements + 1):
        check(conn, processes, task, tmp_path / "ledger", Kill(statement, moment))


@pytest.mark.parametrize("task", [ten_steps, ten_steps_async], ids=["sync", "async"])
def test_one_job_that_is_killed_again_and_again(
    conn: psycopg.Connection, qwf_configured: str, tmp_path: Path, task: IngestTask
):
    """Each attempt comes a little further, and in the end it has done what it was to do."""
    processes, ledger = Processes(qwf_configured), tmp_path / "ledger"
    job = task.enqueue({"ledger": str(ledger)}, conn=conn).id
    steps = StepRepository(conn, "ingest")
    for turn in range(12):
        seen, stored = len(noted(ledger)), {row.name for row in steps.stored(job)}
        processes.run(Kill(8 + turn % 4, MOMENTS[turn % 3]))
        assert not stored & {step for _, step in noted(ledger)[seen:]}
    processes.run()
    row = IngestJobRepository(conn).fetch(job)
    assert row is not None
    assert (row.status, row.result) == ("completed", RESULT)
    effects = conn.execute("SELECT step FROM effects ORDER BY step").fetchall()
    assert effects == [(2,), (5,), (8,)]
