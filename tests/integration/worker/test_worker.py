"""`qwf worker` as shipped: real processes, real signals, and what becomes of the jobs."""

from __future__ import annotations

import os
import signal

import psutil
import pytest
from support.processes.programs import UNKNOWN_ACCOUNT, UNSHARE, gone, mount_namespace, pid_namespace
from support.processes.workers import SHORT_LEASE, running_worker, until
from support.rows.jobs import jobs_of

from queue_workflows.repositories import HeartbeatRepository, WorkerControlRepository

cold = pytest.mark.usefixtures("cold_starts")

# Where a test speaks of the one job and of what waits behind it.
SOLO = ("--concurrency", "1")


def enqueue(jobs, task, args=None, **options):
    return jobs.enqueue(task, queue="fetch", args=args or {}, **options).id


def is_in(jobs, job_id, status):
    return lambda: jobs.fetch(job_id).status == status


def begin(jobs, tmp_path, **options):
    """A job that goes on until `go` appears, and a look at whether its attempt, the first or another, runs.

    That its row is claimed does not say so: a stop may come before its worker has begun it.
    """
    begun = tmp_path / "begun"
    job = enqueue(jobs, "deaf", {"until": str(tmp_path / "go"), "begun": str(begun)}, **options)
    return job, lambda attempt=1: begun.exists() and begun.read_text() == str(attempt)


def a_worker_is(conn, state):
    return lambda: HeartbeatRepository(conn).list(state=state)


@cold
def test_it_works_until_the_queue_is_empty(qwf_dsn, jobs):
    """--drain: every claimable job ends, by priority and age, and the worker ends with 0 and no heartbeat."""
    ids = [enqueue(jobs, "note", priority=priority) for priority in (5, 9, 5)]
    with running_worker(qwf_dsn, "--drain", *SOLO) as worker:
        assert worker.wait(150) == 0
    done = [jobs.fetch(job_id) for job_id in ids]
    assert [job.status for job in done] == ["completed"] * 3
    assert sorted(range(3), key=lambda at: done[at].started_at) == [1, 0, 2]
    assert {job.result["pid"] for job in done} == {worker.pid}
    assert jobs.list(status="running") == []


def test_an_idle_worker_is_woken_and_said_to_be_idle(qwf_dsn, conn, jobs):
    """A job enqueued while a worker idles starts by the wake, long before its poll."""
    with running_worker(qwf_dsn, QWF_POLL_S="600") as worker:
        until(a_worker_is(conn, "idle"))
        until(
            lambda: conn.execute(
                "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND classid = 7714"
                " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            ).fetchone()
        )
        job = enqueue(jobs, "note")
        until(is_in(jobs, job, "completed"))
        assert worker.poll() is None


def test_once_and_max_jobs(qwf_dsn, jobs):
    """--once ends after one job, --max-jobs after so many; what is left stays queued and unclaimed."""
    for _ in range(4):
        enqueue(jobs, "note")
    for option, left in ((("--once",), 3), (("--max-jobs", "2"), 1)):
        with running_worker(qwf_dsn, *option) as worker:
            assert worker.wait(150) == 0
        waiting = jobs.list(status="queued")
        assert [job.claimed_by for job in waiting] == [None] * left


def test_a_failure_is_counted_and_tried_again_later(qwf_dsn, jobs):
    """An exception costs one of max_attempts; the last one ends the job as failed, with every error kept."""
    job = enqueue(jobs, "fails", reason="first", max_attempts=2, backoff_s=0.0)
    with running_worker(qwf_dsn, QWF_BACKOFF_JITTER="0"):
        until(is_in(jobs, job, "failed"))
    row = jobs.fetch(job)
    assert (row.failures, row.attempt) == (2, 2)
    assert [entry["message"] for entry in row.errors] == ["no use: first"] * 2


@cold
@pytest.mark.slow
def test_the_wall_clock_ends_the_process_with_75(qwf_dsn, jobs):
    """A job beyond its budget is counted as a failure and its worker ends, though the job hears nothing."""
    job = enqueue(jobs, "deaf", timeout_s=0.5)
    with running_worker(qwf_dsn) as worker:
        assert worker.wait(150) == 75
    row = jobs.fetch(job)
    assert (row.status, row.failures, row.errors[-1]["kind"]) == ("scheduled", 1, "wall_clock")


@cold
@pytest.mark.slow
def test_silence_after_a_beat_ends_the_process_with_76(qwf_dsn, jobs):
    """The stall watchdog is armed by the first beat; a job that never beat is left alone."""
    quiet = enqueue(jobs, "wait", {"s": 0})
    job = enqueue(jobs, "silent", stall_timeout_s=0.5)
    with running_worker(qwf_dsn) as worker:
        assert worker.wait(150) == 76
    assert jobs.fetch(quiet).status == "completed"
    row = jobs.fetch(job)
    assert (row.status, row.failures, row.errors[-1]["kind"]) == ("scheduled", 1, "stall")
    assert row.progress == {"fraction": 0.1}


@cold
def test_a_stop_lets_the_job_finish(qwf_dsn, conn, jobs, tmp_path):
    """SIGTERM: nothing more is claimed, the current job ends as it would have, and the status is 0."""
    job, has_begun = begin(jobs, tmp_path)
    other = enqueue(jobs, "note")
    with running_worker(qwf_dsn, *SOLO) as worker:
        until(has_begun)
        worker.terminate()
        until(a_worker_is(conn, "stopping"))
        (tmp_path / "go").touch()
        assert worker.wait(150) == 0
    assert jobs.fetch(job).status == "completed"
    assert (jobs.fetch(other).status, jobs.fetch(other).attempt) == ("queued", 0)


@cold
@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_beyond_the_grace_the_job_is_given_back_uncounted(qwf_dsn, jobs, tmp_path, number, status):
    """A job that does not end in time goes back to its place: no failure, no crash, no error."""
    job, has_begun = begin(jobs, tmp_path)
    place = jobs.fetch(job).position
    with running_worker(qwf_dsn, "--grace", "0.3") as worker:
        until(has_begun)
        worker.send_signal(number)
        assert worker.wait(150) == status
    row = jobs.fetch(job)
    assert (row.status, row.failures, row.crash_count, row.suspect) == ("queued", 0, 0, False)
    assert (row.position, row.errors, row.claimed_by) == (place, [], None)


def test_a_second_signal_does_not_wait(qwf_dsn, conn, jobs, tmp_path):
    """Whoever asks twice means now."""
    job, has_begun = begin(jobs, tmp_path)
    with running_worker(qwf_dsn, "--grace", "600") as worker:
        until(has_begun)
        worker.terminate()
        until(a_worker_is(conn, "stopping"))
        worker.terminate()
        assert worker.wait(150) == 143
    assert jobs.fetch(job).status == "queued"


@cold
@pytest.mark.slow
def test_three_deploys_in_a_row_use_up_nothing(qwf_dsn, jobs, tmp_path):
    """Stops are not the job's fault, however many there are."""
    job, has_begun = begin(jobs, tmp_path, max_attempts=1)
    for attempt in (1, 2, 3):
        with running_worker(qwf_dsn, "--grace", "0") as worker:
            until(lambda attempt=attempt: has_begun(attempt))
            worker.terminate()
            assert worker.wait(150) == 143
    row = jobs.fetch(job)
    assert (row.status, row.attempt, row.failures, row.crash_count) == ("queued", 3, 0, 0)


@cold
@pytest.mark.slow
def test_off_gives_the_job_back_and_parks_and_on_brings_it_back(qwf_dsn, conn, jobs):
    """The same process goes on: parked it beats and claims nothing, and says which version it obeys."""
    control = WorkerControlRepository(conn)
    job = enqueue(jobs, "deaf")
    with running_worker(qwf_dsn) as worker:
        until(is_in(jobs, job, "running"))
        row = control.set("*", "fetch", "off", actor="test", reason="maintenance")
        until(is_in(jobs, job, "queued"))
        (beat,) = until(a_worker_is(conn, "parked"))
        assert (beat.pid, beat.control_version, beat.state_reason) == (worker.pid, row.version, "maintenance")
        assert (jobs.fetch(job).status, jobs.fetch(job).failures) == ("queued", 0)
        control.clear("*", "fetch", actor="test")
        until(is_in(jobs, job, "running"))
        assert worker.poll() is None


def test_exit_when_off_ends_with_77(qwf_dsn, conn):
    """For a service manager that should see it."""
    with running_worker(qwf_dsn, "--exit-when-off") as worker:
        WorkerControlRepository(conn).set("here", "fetch", "off", actor="test")
        assert worker.wait(150) == 77


@cold
@pytest.mark.slow
def test_a_pause_waits_for_the_job(qwf_dsn, conn, jobs, tmp_path):
    """Pause: the current job ends by itself, the next is not claimed until on."""
    control, beats = WorkerControlRepository(conn), HeartbeatRepository(conn)
    job, has_begun = begin(jobs, tmp_path)
    following = enqueue(jobs, "note")
    with running_worker(qwf_dsn, *SOLO):
        until(has_begun)
        row = control.set("here", "*", "pause", actor="test")
        until(lambda: [beat for beat in beats.list() if beat.control_version == row.version])
        (tmp_path / "go").touch()
        until(a_worker_is(conn, "paused"))
        assert jobs.fetch(job).status == "completed"
        assert jobs.fetch(following).status == "queued"
        control.clear("here", "*", actor="test")
        until(is_in(jobs, following, "completed"))


def test_a_running_job_learns_of_its_cancel(qwf_dsn, jobs):
    """Within two seconds, and its worker goes on to the next job."""
    job = enqueue(jobs, "wait", {"s": 600})
    with running_worker(qwf_dsn) as worker:
        until(is_in(jobs, job, "running"))
        assert jobs.cancel(job, actor="test") == "running"
        until(is_in(jobs, job, "cancelled"))
        following = enqueue(jobs, "note")
        until(is_in(jobs, following, "completed"))
        assert worker.poll() is None


@cold
def test_a_cancelled_job_that_hears_nothing_is_ended(qwf_dsn, jobs):
    """After its grace the process is replaced by a fresh one, which works on."""
    job = enqueue(jobs, "deaf")
    with running_worker(qwf_dsn, QWF_CANCEL_GRACE_S="0.2") as worker:
        until(is_in(jobs, job, "running"))
        jobs.cancel(job, actor="test")
        until(is_in(jobs, job, "cancelled"))
        following = enqueue(jobs, "note")
        until(is_in(jobs, following, "completed"))
        assert jobs.fetch(following).result["pid"] == worker.pid


@cold
@pytest.mark.slow
def test_what_a_job_started_ends_with_it(qwf_dsn, jobs, tmp_path):
    """A watchdog's end takes the job's own processes along."""
    pid_file = tmp_path / "pid"
    job = enqueue(jobs, "parent", {"pid_file": str(pid_file)}, stall_timeout_s=5)
    with running_worker(qwf_dsn) as worker:
        assert worker.wait(150) == 76
        until(lambda: gone(int(pid_file.read_text())))
    assert jobs.fetch(job).failures == 1


def test_a_killed_worker_is_succeeded_after_its_lease(qwf_dsn, jobs):
    """kill -9: another worker, and nobody else, takes the job back when the lease has lapsed."""
    job = enqueue(jobs, "deaf")
    with running_worker(qwf_dsn, **SHORT_LEASE) as first:
        until(is_in(jobs, job, "running"))
        holder = jobs.fetch(job).claimed_by
        first.kill()
        first.wait()
        with running_worker(qwf_dsn):
            row = until(lambda: (row := jobs.fetch(job)).attempt == 2 and row)
    assert row.claimed_by != holder
    assert (row.crash_count, row.failures, row.errors[-1]["kind"]) == (1, 0, "worker_lost")


@cold
@pytest.mark.slow
def test_a_job_that_kills_its_workers_ends_as_failed(qwf_dsn, jobs, tmp_path):
    """Poison: after max_crashes it is over, and says why."""
    begun = tmp_path / "begun"
    begun.touch()
    job = enqueue(jobs, "deaf", {"begun": str(begun)})
    for crash in range(1, 3):
        with running_worker(qwf_dsn, QWF_MAX_CRASHES="2", **SHORT_LEASE) as worker:
            # A suspect that is killed before it has begun is excused.
            until(lambda crash=crash: begun.read_text() == str(crash))
            worker.kill()
            worker.wait()
    with running_worker(qwf_dsn, QWF_MAX_CRASHES="2"):
        until(is_in(jobs, job, "failed"))
    assert "killed its worker 2 times" in jobs.fetch(job).errors[-1]["message"]


@cold
@pytest.mark.slow
@pytest.mark.parametrize("how", ["GIL", "SIGSTOP"])
def test_a_process_that_cannot_renew_is_dead_before_its_lease(qwf_dsn, conn, jobs, how):
    """The kernel's timer: C code that holds the GIL, or a stopped process, never meets its successor."""
    job = enqueue(jobs, "hog", {"s": 60}) if how == "GIL" else enqueue(jobs, "deaf")
    lapsed = "SELECT lease_expires_at <= clock_timestamp() FROM ingest_jobs"
    # The timer strikes a tenth of the lease before its end: long enough for a busy machine to strike in.
    with running_worker(qwf_dsn, QWF_LEASE_S="20") as worker:
        until(is_in(jobs, job, "running"))
        if how == "SIGSTOP":
            os.kill(worker.pid, signal.SIGSTOP)
        is_alive = True
        while is_alive:
            # Asked in this order: a worker seen alive after its lease was seen lapsed has outlived it.
            is_lapsed = conn.execute(lapsed).fetchone() == (True,)
            is_alive = worker.poll() is None
            assert not (is_lapsed and is_alive)
        assert worker.poll() == -signal.SIGKILL


@mount_namespace
@pytest.mark.parametrize("at_once", ["1", "4"])
def test_an_account_without_a_name_or_a_home(qwf_dsn, conn, jobs, at_once):
    """As a cluster runs a container: a number that no file of accounts knows; it idles first."""
    options = ("--max-jobs", "1", "--concurrency", at_once)
    with running_worker(qwf_dsn, *options, prefix=UNKNOWN_ACCOUNT) as worker:
        until(lambda: a_worker_is(conn, "idle")() or worker.poll() is not None)
        job = enqueue(jobs, "note")
        status, said = worker.wait(150), worker.stderr.read()
    assert (status, jobs.fetch(job).status) == (0, "completed"), said


@cold
@pytest.mark.slow
@pid_namespace
def test_as_pid_1_the_guards_hold_too(qwf_dsn, jobs):
    """In a PID namespace the kernel ignores the timer of PID 1: the worker is that one's child there."""
    job = enqueue(jobs, "hog", {"s": 60})
    with running_worker(qwf_dsn, prefix=UNSHARE, **SHORT_LEASE) as worker:
        until(is_in(jobs, job, "running"))
        assert worker.wait(150) == 128 + signal.SIGKILL


@cold
@pytest.mark.slow
@pid_namespace
def test_as_pid_1_a_stop_is_graceful(qwf_dsn, conn, jobs):
    """The launcher passes signals on, and ends with its worker's status."""
    with running_worker(qwf_dsn, prefix=UNSHARE) as outer:
        until(lambda: HeartbeatRepository(conn).list())
        (launcher,) = psutil.Process(outer.pid).children()
        launcher.terminate()
        assert outer.wait(150) == 0


def test_an_unknown_task_waits_for_a_worker_that_knows_it(qwf_dsn, jobs):
    """It is put aside with the reason, costs nothing of its budget, and who knows it fetches it at once."""
    job, behind = enqueue(jobs, "note"), enqueue(jobs, "note")
    with running_worker(qwf_dsn, "--drain", QWF_APP="support.processes.programs") as worker:
        assert worker.wait(150) == 0
    row = jobs.fetch(job)
    assert (row.status, row.hold_reason, row.hold_key, row.failures) == (
        "scheduled",
        "unknown_task",
        "note",
        0,
    )
    with running_worker(qwf_dsn):
        until(lambda: jobs.fetch(job).status == jobs.fetch(behind).status == "completed")


def test_unknown_tasks_are_put_aside_together(qwf_dsn, jobs):
    """A worker of one job claims one of them to find out; the others wait without an attempt."""
    ids = [enqueue(jobs, "note") for _ in range(20)]
    with running_worker(qwf_dsn, "--drain", *SOLO, QWF_APP="support.processes.programs") as worker:
        assert worker.wait(150) == 0
    rows = [jobs.fetch(job_id) for job_id in ids]
    assert {(row.status, row.hold_reason, row.hold_key) for row in rows} == {
        ("scheduled", "unknown_task", "note")
    }
    assert sum(row.attempt for row in rows) == 1


def test_a_worker_goes_on_where_it_cannot_be_told_what_others_know(qwf_dsn, conn, jobs):
    """As while a revision is taken back under it: what it does not know is put aside as it comes."""
    with running_worker(qwf_dsn, *SOLO, QWF_APP="support.processes.programs") as worker:
        until(lambda: [beat.state for beat in HeartbeatRepository(conn).list()] == ["idle"])
        conn.execute("ALTER TABLE worker_code RENAME TO worker_code_away")
        try:
            for name in ("note", "wait"):
                job = enqueue(jobs, name)
                until(
                    lambda job=job: jobs.fetch(job).hold_reason == "unknown_task" or worker.poll() is not None
                )
                assert (jobs.fetch(job).hold_reason, worker.poll()) == ("unknown_task", None)
        finally:
            conn.execute("ALTER TABLE worker_code_away RENAME TO worker_code")


@cold
@pytest.mark.slow
def test_an_unknown_module_waits_for_a_worker_that_knows_it(qwf_dsn):
    """A starting worker fetches the node jobs whose module it knows, and no others."""
    with jobs_of("node", qwf_dsn) as nodes:
        (job,) = nodes.enqueue(1, node_module="echo")
        (other,) = nodes.enqueue(1, node_module="missing")
        with running_worker(
            qwf_dsn, "--queue", "cpu", "--drain", QWF_APP="support.processes.programs"
        ) as worker:
            assert worker.wait(150) == 0
        held = ("scheduled", "unknown_module", 1)
        assert nodes.seen(job, "status", "hold_reason", "attempt") == held
        assert nodes.seen(other, "status", "hold_reason", "attempt") == held
        nodes.connection.execute("UPDATE workflow_node_jobs SET run_at = run_at + interval '1 day'")
        with running_worker(qwf_dsn, "--queue", "cpu", "--drain") as worker:
            assert worker.wait(150) == 0
        assert nodes.seen(job, "status", "attempt") == ("completed", 2)
        assert nodes.seen(other, "status", "hold_reason", "attempt") == held


def test_why_a_job_asked_for_another_time_is_kept(qwf_dsn, jobs):
    """What a task says with RetryAfter is in the job's history, and counts nothing."""
    job = enqueue(jobs, "later", reason="429 of the host")
    with running_worker(qwf_dsn, "--drain") as worker:
        assert worker.wait(150) == 0
    row = jobs.fetch(job)
    assert (row.status, row.failures) == ("scheduled", 0)
    assert (row.errors[-1]["kind"], row.errors[-1]["message"]) == ("retry_after", "429 of the host")


def test_a_lost_connection_in_mid_job_costs_nothing(qwf_dsn, conn, jobs, tmp_path):
    """Every backend of the worker is terminated: the result is stored all the same, by the same attempt."""
    job, has_begun = begin(jobs, tmp_path)
    with running_worker(qwf_dsn) as worker:
        until(has_begun)
        conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name LIKE 'qwf:worker%' AND datname = current_database()"
        )
        (tmp_path / "go").touch()
        until(is_in(jobs, job, "completed"))
        following = enqueue(jobs, "note")
        until(is_in(jobs, following, "completed"))
        assert worker.poll() is None
    assert (jobs.fetch(job).attempt, jobs.fetch(job).failures) == (1, 0)


@cold
@pytest.mark.slow
def test_an_unmigrated_database_is_refused_with_79(qwf_new_database):
    """A worker waits for its schema and then says what is missing, in one line."""
    with running_worker(qwf_new_database(template=False), "--schema-wait", "1", QWF_APP="") as worker:
        assert worker.wait(150) == 79
        assert worker.stderr.read().count("\n") == 1
