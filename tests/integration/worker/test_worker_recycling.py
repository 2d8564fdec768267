"""A worker that starts afresh after so many jobs or so much memory, under the same name and pid."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from support.processes.workers import TESTS, running_worker, until

from queue_workflows.repositories import HeartbeatRepository, IngestJobRepository

pytestmark = pytest.mark.usefixtures("cold_starts")

STOP_AT_START = TESTS / "support" / "stop_at_start"


def kept(jobs: IngestJobRepository, *ids: int) -> list[int]:
    return [jobs.fetch(job).result["kept"] for job in ids]


def test_after_so_many_jobs_nothing_of_them_is_left(qwf_dsn, jobs):
    """Two jobs a process; the worker's name, its pid and the count of --max-jobs go on."""
    ids = [jobs.enqueue("keep", queue="fetch").id for _ in range(6)]
    with running_worker(qwf_dsn, "--recycle-jobs", "2", "--max-jobs", "5") as worker:
        assert worker.wait(150) == 0
    assert kept(jobs, *ids[:5]) == [1, 2, 1, 2, 1]
    rows = [jobs.fetch(job) for job in ids]
    assert {row.result["pid"] for row in rows[:5]} == {worker.pid}
    assert len({row.claimed_by for row in rows[:5]}) == 1
    assert (rows[5].status, rows[5].attempt) == ("queued", 0)


@pytest.mark.slow
def test_after_so_much_memory_it_is_given_back(qwf_dsn, jobs):
    """The job that fills it ends; the next one runs in a process without it."""
    with running_worker(qwf_dsn, "--recycle-mb", "400") as worker:
        small = jobs.enqueue("keep", queue="fetch").id
        until(lambda: jobs.fetch(small).status == "completed")
        large = jobs.enqueue("keep", queue="fetch", args={"mb": 500}).id
        until(lambda: jobs.fetch(large).status == "completed")
        until(lambda: psutil.Process(worker.pid).memory_info().rss < 400 << 20)
        following = jobs.enqueue("keep", queue="fetch").id
        until(lambda: jobs.fetch(following).status == "completed")
        assert worker.poll() is None
    assert kept(jobs, small, large, following) == [1, 2, 1]


@pytest.mark.slow
def test_a_job_that_holds_signals_back_holds_none_back_from_what_follows(qwf_dsn, jobs):
    """A signal mask outlives an exec: the process that the worker becomes would hear no stop."""
    with running_worker(
        qwf_dsn, "--recycle-jobs", "1", "--concurrency", "1", QWF_APP="support.tasks.concurrent_tasks"
    ) as worker:
        ids = [jobs.enqueue(task, queue="fetch").id for task in ("holds signals back", "note")]
        until(lambda: all(jobs.fetch(job).status == "completed" for job in ids))
        worker.send_signal(signal.SIGTERM)
        # It may be just about to hear.
        assert worker.wait(150) in (0, 143, -signal.SIGTERM)


@pytest.mark.parametrize(
    ("number", "status"), [pytest.param("SIGINT", 130, marks=pytest.mark.slow), ("SIGTERM", 143)]
)
def test_a_stop_while_it_starts_afresh_is_a_stop(qwf_dsn, jobs, tmp_path: Path, number: str, status: int):
    """Also one that comes before the fresh interpreter can hear it: the status of a stop, and no trace."""
    job = jobs.enqueue("note", queue="fetch").id
    path = os.pathsep.join((str(STOP_AT_START), str(TESTS)))
    settings = {"PYTHONPATH": path, "STOPPED_AT_START": str(tmp_path / "pid"), "STOPPED_BY": number}
    with running_worker(qwf_dsn, "--recycle-jobs", "1", **settings) as worker:
        assert worker.wait(150) == status
        assert worker.stderr is not None
        said = worker.stderr.read()
    assert jobs.fetch(job).status == "completed"
    assert "Traceback" not in said


@pytest.mark.slow
def test_a_bound_below_what_it_starts_with_leaves_time_for_a_job(qwf_dsn, jobs):
    """It starts afresh after each job, and not before the first."""
    ids = [jobs.enqueue("keep", queue="fetch").id for _ in range(2)]
    with running_worker(qwf_dsn, "--recycle-mb", "1", "--max-jobs", "2", "--concurrency", "1") as worker:
        until(lambda: all(jobs.fetch(job).status == "completed" for job in ids))
        assert worker.wait(150) == 0
    assert kept(jobs, *ids) == [1, 1]


@pytest.mark.slow
def test_it_does_not_ask_for_the_schema_again(qwf_dsn, conn, jobs):
    """It goes on with what it worked with; a worker that starts now refuses a schema it does not know."""
    with running_worker(qwf_dsn, "--recycle-jobs", "1") as worker:
        until(lambda: HeartbeatRepository(conn).list(state="idle"))
        (version,) = conn.execute("SELECT version_num FROM queue_schema_version").fetchone()
        conn.execute("UPDATE queue_schema_version SET version_num = 'unknown'")
        try:
            ids = [jobs.enqueue("keep", queue="fetch").id for _ in range(2)]
            until(lambda: all(jobs.fetch(job).status == "completed" for job in ids))
            with running_worker(qwf_dsn) as another:
                assert another.wait(150) == 79
        finally:
            conn.execute("UPDATE queue_schema_version SET version_num = %s", [version])
        assert worker.poll() is None
    assert kept(jobs, *ids) == [1, 1]


@pytest.mark.slow
def test_a_stop_that_meets_a_fresh_start_is_not_lost(qwf_dsn, jobs):
    """Heard before, it ends the worker; in the midst of the exec and after it, as it ends any process."""
    for _ in range(3):
        with running_worker(qwf_dsn, "--recycle-jobs", "1") as worker:
            job = jobs.enqueue("keep", queue="fetch").id
            until(lambda job=job: jobs.fetch(job).status == "completed")
            worker.terminate()
            assert worker.wait(150) in (0, 143, -signal.SIGTERM)


@pytest.mark.slow
def test_what_a_job_starts_is_not_taken_for_its_worker(qwf_dsn, jobs):
    """A worker that a job starts would else claim, and clean up, under the name of the one around it."""
    ids = [jobs.enqueue("keep", queue="fetch").id for _ in range(2)]
    with running_worker(qwf_dsn, "--recycle-jobs", "1", "--drain", _QWF_INCARNATION="abc123") as worker:
        assert worker.wait(150) == 0
    assert [jobs.fetch(job).result["told"] for job in ids] == [[], []]
    assert {jobs.fetch(job).claimed_by for job in ids} == {"here:fetch:abc123"}


@pytest.mark.slow
def test_a_long_job_is_named_in_the_heartbeat_and_its_end_as_well(qwf_dsn, conn, jobs, tmp_path):
    """Within a second or two, whatever the beat between."""
    go = tmp_path / "go"
    job = jobs.enqueue("deaf", queue="fetch", args={"until": str(go)}).id
    with running_worker(qwf_dsn, QWF_STALE_HEARTBEAT_S="3600"):
        beats = HeartbeatRepository(conn)
        until(lambda: [beat.current_job_id for beat in beats.list(state="busy")] == [job])
        go.touch()
        until(lambda: [beat.current_job_id for beat in beats.list(state="idle")] == [None])
