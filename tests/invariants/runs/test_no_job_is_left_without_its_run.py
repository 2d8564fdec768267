"""An operator's retry opens no node of a run that nobody would go on with."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from support.rows.jobs import Jobs, ending, jobs_of
from support.rows.schemas import blocked, until

from queue_workflows.repositories import NodeJobRepository

OVER = {
    "completed": "status = 'completed', finished_at = now()",
    "failed": "status = 'failed', finished_at = now()",
    "cancelled": "status = 'cancelled', finished_at = now()",
    "being cancelled": "cancel_requested_at = now()",
}


@pytest.fixture
def nodes(qwf_dsn: str) -> Iterator[Jobs]:
    """No run but the test's own."""
    with jobs_of("node", qwf_dsn) as jobs:
        yield jobs


def failed(nodes: Jobs) -> int:
    """A failed node of a run of its own."""
    (job_id,) = nodes.enqueue(max_attempts=1)
    nodes.repository.end(ending(nodes.one(), "failed", error={"kind": "exception"}, counts=True))
    return job_id


@pytest.mark.parametrize("change", OVER.values(), ids=OVER.keys())
def test_a_node_of_a_run_that_is_over_stays_as_it_is(nodes: Jobs, change: str) -> None:
    """Its neighbour, whose run goes on, is retried; opened again, its own run takes it too."""
    lost = failed(nodes)
    nodes.connection.execute(f"UPDATE workflow_runs SET {change}")
    kept, before = failed(nodes), nodes.row(lost)
    assert nodes.repository.retry_many([lost, kept], actor="ann") == {kept: 2}
    assert nodes.row(lost) == before
    assert nodes.connection.execute("SELECT subject_id FROM audit_log").fetchall() == [(str(kept),)]
    nodes.connection.execute(
        "UPDATE workflow_runs SET status = 'running', finished_at = NULL, cancel_requested_at = NULL"
    )
    assert nodes.repository.retry_many([lost], actor="ann") == {lost: 2}


@pytest.mark.parametrize("ends", [True, False])
def test_it_waits_for_who_is_about_to_end_the_run(nodes: Jobs, qwf_dsn: str, ends: bool) -> None:
    """Whoever holds the run decides first; the retry then sees what became of it."""
    job_id = failed(nodes)
    change = OVER["completed"] if ends else "current_step = 7"
    with (
        psycopg.connect(qwf_dsn) as orchestrator,
        psycopg.connect(qwf_dsn, autocommit=True) as operator,
        ThreadPoolExecutor(1) as pool,
    ):
        orchestrator.execute(f"UPDATE workflow_runs SET {change}")
        retrying = pool.submit(NodeJobRepository(operator).retry_many, [job_id], actor="ann")
        waiting = operator.info.backend_pid
        until(lambda: waiting in blocked(qwf_dsn, orchestrator.info.backend_pid), "the wait for the run")
        orchestrator.commit()
        assert retrying.result(150) == ({} if ends else {job_id: 2})


def test_who_ends_the_run_waits_for_a_retry(nodes: Jobs, qwf_dsn: str) -> None:
    """And then finds a job that is to run."""
    job_id = failed(nodes)
    with (
        psycopg.connect(qwf_dsn, autocommit=True) as orchestrator,
        psycopg.connect(qwf_dsn) as operator,
        ThreadPoolExecutor(1) as pool,
    ):
        assert NodeJobRepository(operator).retry_many([job_id], actor="ann") == {job_id: 2}
        locking = pool.submit(orchestrator.execute, "SELECT FROM workflow_runs FOR NO KEY UPDATE")
        waiting = orchestrator.info.backend_pid
        until(lambda: waiting in blocked(qwf_dsn, operator.info.backend_pid), "the wait for the run")
        operator.commit()
        locking.result(150)
        assert orchestrator.execute("SELECT status FROM workflow_node_jobs").fetchall() == [("queued",)]


# Nodes that an orchestrator plans: it counts their jobs' ends, each once.


def planned(nodes: Jobs, job_id: int) -> None:
    """As the orchestrator has it when a node's only job runs."""
    nodes.connection.execute(
        "INSERT INTO workflow_nodes (run_id, node_id, state, jobs_total, jobs_left)"
        " SELECT run_id, node_id, 'active', 1, 1 FROM workflow_node_jobs WHERE id = %s",
        [job_id],
    )


TAKE = "DELETE FROM workflow_dispatch_events WHERE node_job_id = %s"


def test_an_end_is_counted_once(nodes: Jobs) -> None:
    """What the orchestrator has not acted upon is retried; what it has counted, only with the run."""
    job_id = failed(nodes)
    planned(nodes, job_id)
    assert nodes.repository.counted([job_id]) == set()
    assert nodes.repository.retry_many([job_id], actor="ann") == {job_id: 2}
    nodes.repository.end(ending(nodes.one(), "failed", error={"kind": "exception"}, counts=True))
    nodes.connection.execute(TAKE + " AND generation = 2", [job_id])
    before = nodes.row(job_id)
    assert nodes.repository.counted([job_id]) == {job_id}
    assert nodes.repository.retry_many([job_id], actor="ann") == {}
    assert nodes.row(job_id) == before


@pytest.mark.parametrize("first", ["orchestrator", "operator"])
def test_who_is_first_has_the_end(nodes: Jobs, qwf_dsn: str, first: str) -> None:
    """Taken at the same moment, an end is either counted or retried, never both."""
    job_id = failed(nodes)
    planned(nodes, job_id)
    with (
        psycopg.connect(qwf_dsn) as holder,
        psycopg.connect(qwf_dsn, autocommit=True) as waiter,
        ThreadPoolExecutor(1) as pool,
    ):
        if first == "orchestrator":
            holder.execute("SELECT FROM workflow_runs FOR NO KEY UPDATE")
            holder.execute(TAKE, [job_id])
            second = pool.submit(NodeJobRepository(waiter).retry_many, [job_id], actor="ann")
        else:
            assert NodeJobRepository(holder).retry_many([job_id], actor="ann") == {job_id: 2}
            second = pool.submit(waiter.execute, TAKE, [job_id])
        until(lambda: waiter.info.backend_pid in blocked(qwf_dsn, holder.info.backend_pid), "the wait")
        holder.commit()
        done = second.result(150)
    if first == "orchestrator":
        assert done == {}
        assert nodes.seen(job_id, "status", "generation") == ("failed", 1)
    else:
        assert nodes.seen(job_id, "status", "generation") == ("queued", 2)
