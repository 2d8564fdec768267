"""Kill -9 around statements of a run with a durable node: no stored step runs again, and none is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from support.stages.durable_kills import DOCUMENT, MOMENTS, RESULT, STEPS, Kill, Processes, noted

from queue_workflows import start_run
from queue_workflows.engine.watch.run_reader import RunReader
from queue_workflows.repositories.durable.steps import StepRepository


@pytest.fixture
def conn(qwf_configured: str) -> Iterator[psycopg.Connection]:
    """No run, and a table that steps write to."""
    with psycopg.connect(qwf_configured, autocommit=True) as connection:
        connection.execute("TRUNCATE workflow_runs, ingest_jobs, durable_steps, durable_events CASCADE")
        connection.execute("CREATE TABLE IF NOT EXISTS effects (job bigint, step int); TRUNCATE effects")
        yield connection


def stored(conn: psycopg.Connection) -> set[str]:
    """The steps of the one node job."""
    jobs = conn.execute("SELECT id FROM workflow_node_jobs").fetchall()
    return {row.name for (job,) in jobs for row in StepRepository(conn, "node").stored(job)}


def killed(conn: psycopg.Connection, processes: Processes, ledger: Path, kills: list[Kill]) -> int:
    """A run of which the processes are killed at these moments, and then left alone; how many statements."""
    ledger.unlink(missing_ok=True)
    conn.execute("TRUNCATE workflow_runs, durable_steps, effects CASCADE")
    run = start_run(DOCUMENT, {"ledger": str(ledger)}, conn=conn)
    for kill in kills:
        seen, had = len(noted(ledger)), stored(conn)
        processes.run(kill)
        assert not had & {step for _, step in noted(ledger)[seen:]}, kill
    seen, had = len(noted(ledger)), stored(conn)
    statements = processes.run()
    assert not had & {step for _, step in noted(ledger)[seen:]}, kills
    ended = RunReader(run.id).look(conn)
    assert (ended.status, ended.outputs) == ("completed", {"done": RESULT}), kills
    done = Counter(step for _, step in noted(ledger))
    assert set(done) == set(STEPS)
    assert sum(count - 1 for count in done.values()) <= len(kills)
    assert conn.execute("SELECT step FROM effects ORDER BY step").fetchall() == [(2,), (5,), (8,)]
    return statements


def test_one_run_that_is_killed_again_and_again(
    conn: psycopg.Connection, qwf_configured: str, tmp_path: Path
):
    """Each process comes a little further."""
    kills = [Kill(14 + turn % 4, MOMENTS[turn % 3]) for turn in range(9)]
    killed(conn, Processes(qwf_configured), tmp_path / "ledger", kills)


@pytest.mark.slow
def test_at_statements(conn: psycopg.Connection, qwf_configured: str, tmp_path: Path):
    """Each second one, at one of the three moments, for a run of its own."""
    processes = Processes(qwf_configured)
    statements = killed(conn, processes, tmp_path / "ledger", [])
    assert statements > 2 * len(STEPS)
    for statement in range(1, statements + 1, 2):
        killed(conn, processes, tmp_path / "ledger", [Kill(statement, MOMENTS[statement % 3])])
