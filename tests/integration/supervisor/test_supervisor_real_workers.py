"""`qwf supervisor` over `qwf worker`, as shipped: what the two promise together."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
from support.processes.programs import UNSHARE, gone, pid_namespace
from support.processes.supervised import HOST, enqueue, holder, idle, supervisor_of
from support.processes.workers import until

from queue_workflows.repositories import HeartbeatRepository, WorkerControlRepository

pytestmark = pytest.mark.slow


def test_workers_work_and_stop(qwf_dsn, conn, jobs):
    """Two workers of one queue share its jobs; SIGTERM ends them, and the supervisor with 0."""
    with supervisor_of(qwf_dsn, "--worker", "fetch:2") as supervisor:
        idle(conn, 2)
        done = [enqueue(jobs, "note") for _ in range(20)]
        until(lambda: all(jobs.fetch(job).status == "completed" for job in done))
        beats = HeartbeatRepository(conn).list()
        for beat in beats:
            supervisor.until(f"started, pid {beat.pid}, as {beat.worker_id}$")
        assert supervisor.stop() == 0
    assert HeartbeatRepository(conn).list() == []


def test_a_kill_minus_nine_does_not_wait_for_the_lease(qwf_dsn, conn, jobs):
    """With another worker idle, the job runs there at once, its crash counted."""
    with supervisor_of(qwf_dsn, "--worker", "fetch:2", env={"QWF_LEASE_S": "3600"}) as supervisor:
        idle(conn, 2)
        job = enqueue(jobs, "deaf")
        pid = until(lambda: holder(conn, job))
        os.kill(pid, signal.SIGKILL)
        until(lambda: jobs.fetch(job).attempt == 2)
        assert jobs.fetch(job).crash_count == 1
        assert holder(conn, job) != pid
        supervisor.until(f"pid {pid} killed by SIGKILL .*again at once")


def test_a_job_that_kills_its_workers_ends_as_failed(qwf_dsn, conn, jobs):
    """Three crashes alone, and the reason says so; the workers go on."""
    job = enqueue(jobs, "suicide")
    with supervisor_of(qwf_dsn, "--worker", "fetch:3") as supervisor:
        until(lambda: jobs.fetch(job).status == "failed")
        row = jobs.fetch(job)
        assert (row.attempt, row.crash_count, row.failures) == (3, 3, 0)
        verdict = "it killed its worker 3 times, each time running alone: killed by SIGKILL"
        assert row.errors[-1]["message"] == verdict
        assert supervisor.stop() == 0


def test_a_stopped_worker_is_bounced(qwf_dsn, conn, jobs):
    """SIGSTOP in the middle of a job, the kernel timer off: the frozen heartbeat is enough."""
    env = {"QWF_STALE_HEARTBEAT_S": "5", "QWF_DEADMAN": "off"}
    job = enqueue(jobs, "deaf")
    with supervisor_of(qwf_dsn, "--worker", "fetch", env=env) as supervisor:
        pid = until(lambda: holder(conn, job))
        os.kill(pid, signal.SIGSTOP)
        supervisor.until(f"killing pid {pid}: no heartbeat for")
        until(lambda: holder(conn, job) not in (None, pid))
        assert gone(pid)


def test_a_worker_deep_in_c_code_is_replaced_when_its_timer_kills_it(qwf_dsn, conn, jobs):
    """The kernel's timer ends it before its lease can lapse; the supervisor does the rest."""
    with supervisor_of(qwf_dsn, "--worker", "fetch:2", env={"QWF_LEASE_S": "2"}) as supervisor:
        idle(conn, 2)
        job = enqueue(jobs, "hog", s=60)
        pid = until(lambda: holder(conn, job))
        supervisor.until(f"pid {pid} killed by SIGKILL")
        until(lambda: jobs.fetch(job).attempt >= 2)


@pytest.mark.parametrize(
    "case", [("deaf", "timeout_s", 75, "wall_clock"), ("silent", "stall_timeout_s", 76, "stall")]
)
def test_a_watchdog_counts_a_failure_and_no_crash(qwf_dsn, conn, jobs, case):
    """The worker wrote the end of its job before its own; the supervisor has nothing to take back."""
    task, bound, status, kind = case
    job = jobs.enqueue(task, queue="fetch", **{bound: 0.5}).id
    with supervisor_of(qwf_dsn, "--worker", "fetch") as supervisor:
        supervisor.until(f"ended with {status} .*again at once")
        idle(conn, 1)
        row = jobs.fetch(job)
        assert (row.status, row.failures, row.crash_count) == ("scheduled", 1, 0)
        assert [error["kind"] for error in row.errors] == [kind]


def test_a_supervisor_that_is_killed_leaves_no_orphan(qwf_dsn, conn, jobs):
    """Neither its workers nor what their jobs started; the job is given back uncounted."""
    with supervisor_of(qwf_dsn, "--worker", "fetch", "--grace", "0.5") as supervisor:
        job = enqueue(jobs, "deaf")
        pid = until(lambda: holder(conn, job))
        os.kill(supervisor.pid, signal.SIGKILL)
        until(lambda: gone(pid))
        until(lambda: jobs.fetch(job).status == "queued")
        assert (jobs.fetch(job).crash_count, jobs.fetch(job).failures) == (0, 0)


def test_a_supervisor_that_is_killed_leaves_its_jobs_the_grace(qwf_dsn, conn, jobs, tmp_path: Path):
    """However many threads it had: the kernel tells its workers of the end of each."""
    go, begun = tmp_path / "go", tmp_path / "begun"
    job = enqueue(jobs, "deaf", until=str(go), begun=str(begun))
    with supervisor_of(qwf_dsn, "--worker", "fetch", "--grace", "300") as supervisor:
        until(begun.exists)
        os.kill(supervisor.pid, signal.SIGKILL)
        supervisor.process.wait()
        until(lambda: [beat for beat in HeartbeatRepository(conn).list() if beat.state == "stopping"])
        go.touch()
        until(lambda: jobs.fetch(job).status == "completed")
        assert jobs.fetch(job).attempt == 1


def test_a_stop_within_the_grace_lets_the_job_finish(qwf_dsn, conn, jobs, tmp_path: Path):
    """The supervisor waits for as long as its workers may take."""
    go, begun = tmp_path / "go", tmp_path / "begun"
    job = enqueue(jobs, "deaf", until=str(go), begun=str(begun))
    with supervisor_of(qwf_dsn, "--worker", "fetch", "--grace", "300") as supervisor:
        until(begun.exists)
        supervisor.signal(signal.SIGTERM)
        until(lambda: [beat for beat in HeartbeatRepository(conn).list() if beat.state == "stopping"])
        go.touch()
        assert supervisor.status() == 0
    assert jobs.fetch(job).status == "completed"


def test_three_deploys_in_a_row_use_up_nothing(qwf_dsn, conn, jobs):
    """Also with jobs that do not stop in time."""
    job = enqueue(jobs, "deaf")
    for attempt in (1, 2, 3):
        with supervisor_of(qwf_dsn, "--worker", "fetch", "--grace", "0") as supervisor:
            until(lambda: holder(conn, job))
            assert supervisor.stop() == 0
        row = jobs.fetch(job)
        assert (row.status, row.attempt, row.crash_count, row.failures) == ("queued", attempt, 0, 0)


def test_workers_that_drain_end_with_their_supervisor(qwf_dsn, conn, jobs):
    """Options of the worker go through; when all are through, so is the supervisor."""
    done = [enqueue(jobs, "note") for _ in range(10)]
    with supervisor_of(qwf_dsn, "--worker", "fetch:2 --drain") as supervisor:
        assert supervisor.status() == 0
    assert {jobs.fetch(job).status for job in done} == {"completed"}


def test_a_worker_that_ends_when_off_is_started_when_on(qwf_dsn, conn, jobs):
    """`--exit-when-off` frees all its memory, and the supervisor obeys what the operator says next."""
    control = WorkerControlRepository(conn)
    with supervisor_of(qwf_dsn, "--worker", "fetch --exit-when-off") as supervisor:
        idle(conn, 1)
        control.set("*", "fetch", "off", actor="ann", reason="maintenance")
        supervisor.until("ended with 77 .*starts when it is switched on")
        assert HeartbeatRepository(conn).list() == []
        control.clear("*", "fetch", actor="ann")
        supervisor.until("switched on again")
        idle(conn, 1)


def test_a_schema_that_does_not_fit_is_named(qwf_new_database):
    """What the worker says is on the same stderr, the supervisor adds when it tries again."""
    env = {"QWF_MIGRATION_WAIT_S": "0"}
    with supervisor_of(qwf_new_database(template=False), "--worker", "fetch", env=env) as supervisor:
        supervisor.until("workers cannot be watched: .*run `qwf db upgrade`")
        assert supervisor.stop() == 0


@pid_namespace
def test_as_the_one_process_of_a_container(qwf_dsn, conn, jobs):
    """As PID 1, where the kernel would drop the timer's signal and orphans are ours to wait for."""
    with supervisor_of(
        qwf_dsn, "--worker", "fetch:2", prefix=UNSHARE, env={"QWF_LEASE_S": "2"}
    ) as supervisor:
        idle(conn, 2)
        job = enqueue(jobs, "hog", s=60)
        row = until(lambda: (row := jobs.fetch(job)).attempt >= 2 and row)
        assert row.crash_count == row.attempt - 1
        (launcher,) = psutil.Process(supervisor.pid).children()
        launcher.send_signal(signal.SIGTERM)
        assert supervisor.status() == 0
    assert HOST in "".join(supervisor.said)
