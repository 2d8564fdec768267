"""Whatever a function returns, raises or reports, and however that misbehaves, is its own job's failure."""

from __future__ import annotations

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.workers import patiently, running_worker
from support.rows.jobs import CLEAR
from support.tasks.evil_tasks import EVIL

from queue_workflows.repositories import IngestJobRepository, NewIngestJob, NewNodeJob, NodeJobRepository
from queue_workflows.repositories.runs.runs import RunRepository

pytestmark = pytest.mark.slow

GOOD = 10
WIRED = {"QWF_APP": "support.tasks.evil_tasks"}


@pytest.fixture
def conn(qwf_dsn: str) -> psycopg.Connection:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR)
    return psycopg.connect(qwf_dsn, autocommit=True)


@pytest.mark.parametrize(("queue", "concurrency"), [("fetch", "1"), ("fetch", "8"), ("cpu", "1")])
def test_it_fails_its_job_once_and_nobody_else_s(
    qwf_dsn: str, conn: psycopg.Connection, queue: str, concurrency: str
) -> None:
    """Each fails at its only attempt with an error that can be read, in the process that was started."""
    wanted = ["pid"] * GOOD
    names = [f"{how} {what}" for how in ("returns", "raises", "reports") for what in EVIL]
    is_ingest = queue == "fetch"
    table = "ingest_jobs" if is_ingest else "workflow_node_jobs"
    result = "result" if is_ingest else "context_delta"
    with conn:
        if queue == "fetch":
            made = IngestJobRepository(conn).enqueue_many(
                NewIngestJob(task_name=name, queue=queue, max_attempts=1) for name in [*names, *wanted]
            )
        else:
            run = RunRepository(conn).insert("film", spec={}, spec_hash="h").id
            made = NodeJobRepository(conn).insert_many(
                NewNodeJob(run_id=run, node_id=f"n{n}", queue=queue, node_module=name, max_attempts=1)
                for n, name in enumerate([*names, *wanted])
            )
    ids = [one.id for one in made]
    options = ("--queue", queue) + (("--concurrency", concurrency) if queue == "fetch" else ())
    with psycopg.connect(qwf_dsn, autocommit=True) as eyes:
        with running_worker(qwf_dsn, *options, "--log-level", "critical", **WIRED) as worker:
            over = f"SELECT count(*) FROM {table} WHERE finished_at IS NOT NULL"
            patiently(lambda: worker.poll() is not None or eyes.execute(over).fetchone() == (len(ids),))
            assert worker.poll() is None, worker.stderr and worker.stderr.read()[-3500:]
            worker.terminate()
            assert worker.wait(150) == 0
            assert worker.stderr is not None
            assert "Traceback" not in worker.stderr.read()
            pid = str(worker.pid)
        rows = eyes.execute(
            f"SELECT id, status, failures, crash_count, jsonb_array_length(errors),"
            f" errors -> 0 ->> 'message' <> '', {result} ->> 'pid' FROM {table}"
        )
        seen = {row[0]: row[1:] for row in rows}
    assert [seen[each] for each in ids[len(names) :]] == [("completed", 0, 0, 0, None, pid)] * GOOD
    wrong = {
        name: seen[each]
        for name, each in zip(names, ids, strict=False)
        if seen[each][:5] != ("failed", 1, 0, 1, True) and seen[each][0] != "completed"
    }
    assert wrong == {}
    completed = {name for name, each in zip(names, ids, strict=False) if seen[each][0] == "completed"}
    assert not {name for name in completed if name.startswith("raises")}


@pytest.mark.parametrize("module", ["stumbles", "stumbles_over_a_file"])
def test_what_the_host_app_raises_before_a_job_begins_is_tried_again(
    qwf_dsn: str, conn: psycopg.Connection, module: str
) -> None:
    """It is a failed attempt like any other: counted, and with another to come; no outage, and no crash."""
    with conn:
        run = RunRepository(conn).insert("film", spec={}, spec_hash="h").id
        node = NewNodeJob(run_id=run, node_id="n", queue="cpu", node_module=module, backoff_s=0.1)
        (job,) = NodeJobRepository(conn).insert_many([node])
        with running_worker(qwf_dsn, "--queue", "cpu", **WIRED):
            seen = "SELECT status, failures, errors -> 0 ->> 'message' FROM workflow_node_jobs WHERE id = %s"
            over = "SELECT finished_at IS NOT NULL FROM workflow_node_jobs WHERE id = %s"
            patiently(lambda: conn.execute(over, [job.id]).fetchone() == (True,))
        assert conn.execute(seen, [job.id]).fetchone() == ("completed", 1, "not yet")
