"""A worker with many jobs at once, as shipped and killed at bad moments: what it promises of each of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.workers import SHORT_LEASE, running_worker, until
from support.rows.jobs import CLEAR_WITH_WORKERS

from queue_workflows.repositories import (
    HeartbeatRepository,
    IngestJobRepository,
    NewIngestJob,
    WorkerControlRepository,
)

CREW = {"QWF_APP": "support.tasks.concurrent_tasks"}


@pytest.fixture
def jobs(qwf_dsn: str) -> Any:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        yield IngestJobRepository(connection)


def enqueue(jobs: IngestJobRepository, task: str, count: int = 1, **options: Any) -> list[int]:
    new = [NewIngestJob(task_name=task, queue="fetch", **options) for _ in range(count)]
    return [made.id for made in jobs.enqueue_many(new)]


def statuses(jobs: IngestJobRepository, ids: list[int]) -> set[str]:
    return {jobs.fetch(each).status for each in ids}


def begun(ledger: Path, count: int) -> Callable[[], bool]:
    return lambda: ledger.exists() and ledger.read_text().count("in ") >= count


def most_inside(ledger: Path) -> int:
    inside = most = 0
    for line in ledger.read_text().splitlines():
        inside += 1 if line.startswith("in ") else -1
        most = max(most, inside)
    assert inside == 0
    return most


def test_sync_and_async_jobs_share_the_number(
    qwf_dsn: str, jobs: IngestJobRepository, tmp_path: Path
) -> None:
    """Never more inside than asked for, measured from inside, and as many as that; all end."""
    ledger, go = tmp_path / "ledger", tmp_path / "go"
    args = {"ledger": str(ledger), "until": str(go)}
    ids = enqueue(jobs, "counted", 2, args=args) + enqueue(jobs, "async counted", 2, args=args)
    more = {"ledger": str(ledger)}
    ids += enqueue(jobs, "counted", 30, args=more) + enqueue(jobs, "async counted", 30, args=more)
    with running_worker(qwf_dsn, "--concurrency", "4", "--drain", **CREW) as worker:
        until(begun(ledger, 4))
        # Slow ones are not claimed ahead.
        assert len(jobs.list(status="running")) == 4
        go.touch()
        assert worker.wait(150) == 0
    assert statuses(jobs, ids) == {"completed"}
    assert most_inside(ledger) == 4


@pytest.mark.slow
def test_draining_leaves_nothing(qwf_dsn: str, jobs: IngestJobRepository) -> None:
    """--drain of many short ones: nothing queued, nothing running, each run once."""
    ids = enqueue(jobs, "noop", 3000)
    with running_worker(qwf_dsn, "--drain", **CREW) as worker:
        assert worker.wait(150) == 0
    assert jobs.list(status="queued") == jobs.list(status="running") == []
    assert {(jobs.fetch(each).status, jobs.fetch(each).attempt) for each in ids[::50]} == {("completed", 1)}


@pytest.mark.parametrize(
    ("option", "done"), [("--max-jobs=37", 37), pytest.param("--once", 1, marks=pytest.mark.slow)]
)
def test_it_does_no_more_than_its_share(
    qwf_dsn: str, jobs: IngestJobRepository, option: str, done: int
) -> None:
    """Exactly so many, and none left in its hands."""
    ids = enqueue(jobs, "noop", 60)
    with running_worker(qwf_dsn, option, **CREW) as worker:
        assert worker.wait(150) == 0
    rows = [jobs.fetch(each) for each in ids]
    assert sorted(row.status for row in rows) == ["completed"] * done + ["queued"] * (60 - done)


@pytest.mark.slow
def test_killed_in_mid_batch_it_loses_and_doubles_nothing(
    qwf_dsn: str, jobs: IngestJobRepository, tmp_path: Path
) -> None:
    """kill -9 among thousands of short jobs: each ends once, and is blamed for nothing if it had siblings."""
    ids = enqueue(jobs, "noop", 6000)
    with running_worker(qwf_dsn, **CREW, **SHORT_LEASE) as first:
        until(lambda: jobs.list(status="completed", limit=1))
        first.kill()
        first.wait()
    # What was on its way from it may still have claimed some.
    of_worker = (
        "SELECT 1 FROM pg_stat_activity"
        " WHERE application_name LIKE 'qwf:worker%' AND datname = current_database()"
    )
    until(lambda: jobs._sql._handle.execute(of_worker).fetchone() is None)
    left = len(jobs.list(status="running", limit=1000))
    with running_worker(qwf_dsn, **CREW):
        until(lambda: not jobs.list(status="running", limit=1) and not jobs.list(status="queued", limit=1))
    rows = [jobs.fetch(each) for each in ids]
    assert {row.status for row in rows} == {"completed"}
    lost = [row for row in rows if any(entry["kind"] == "worker_lost" for entry in row.errors)]
    assert len(lost) == left <= 408
    assert {row.crash_count for row in rows} <= ({0} if left > 1 else {0, 1})


@pytest.mark.parametrize("kind", ["counted", pytest.param("async counted", marks=pytest.mark.slow)])
def test_one_that_is_stuck_releases_the_others(
    qwf_dsn: str, jobs: IngestJobRepository, tmp_path: Path, kind: str
) -> None:
    """Its wall clock ends the process with 75; its siblings go back uncounted and unsuspected."""
    ledger = tmp_path / "ledger"
    args = {"ledger": str(ledger), "until": str(tmp_path / "never")}
    siblings = enqueue(jobs, kind, 3, args=args)
    with running_worker(qwf_dsn, QWF_CANCEL_GRACE_S="0.2", **CREW) as worker:
        until(begun(ledger, 3))
        (stuck,) = enqueue(jobs, "deaf", timeout_s=0.5)
        assert worker.wait(150) == 75
    row = jobs.fetch(stuck)
    assert (row.status, row.failures, row.errors[-1]["kind"]) == ("scheduled", 1, "wall_clock")
    for sibling in siblings:
        row = jobs.fetch(sibling)
        assert (row.status, row.failures, row.crash_count, row.suspect, row.errors) == (
            "queued",
            0,
            0,
            False,
            [],
        )


@pytest.mark.slow
def test_one_that_is_stuck_among_thousands_leaves_none_behind(
    qwf_dsn: str, jobs: IngestJobRepository, tmp_path: Path
) -> None:
    """While the worker asks for the next batch before it looks at the last: all it was given goes back."""
    (stuck,) = enqueue(jobs, "deaf", timeout_s=0.5, priority=9)
    flood = enqueue(jobs, "noop", 10_000) + enqueue(jobs, "noop", 10_000)
    with running_worker(qwf_dsn, QWF_CANCEL_GRACE_S="0.2", **CREW) as worker:
        assert worker.wait(150) == 75
    assert jobs.fetch(stuck).errors[-1]["kind"] == "wall_clock"
    assert jobs.list(status="running") == []
    kinds = "SELECT DISTINCT status, failures, crash_count FROM ingest_jobs WHERE id = ANY (%s)"
    seen = set(jobs._sql._handle.execute(kinds, [flood]).fetchall())
    assert seen <= {("completed", 0, 0), ("queued", 0, 0)}


@pytest.mark.slow
def test_what_was_claimed_ahead_of_slow_jobs_goes_back(qwf_dsn: str, jobs: IngestJobRepository) -> None:
    """Others may have it: who is busy holds no more than it is at."""
    enqueue(jobs, "noop", 500)
    busy = enqueue(jobs, "wait", 2, args={"s": 600})
    ahead = enqueue(jobs, "noop", 500)
    with running_worker(qwf_dsn, "--concurrency", "2", **CREW):
        until(lambda: statuses(jobs, busy) == {"running"})
        until(lambda: len(jobs.list(status="running", limit=1000)) == 2)
        assert statuses(jobs, ahead[:20]) == {"queued"}


@pytest.mark.slow
@pytest.mark.parametrize("task", ["wait", "async patient"])
def test_one_that_hears_its_end_ends_alone(
    qwf_dsn: str, jobs: IngestJobRepository, tmp_path: Path, task: str
) -> None:
    """A task on the loop is cancelled, a polite function told: a counted failure, and the worker goes on."""
    ledger, go = tmp_path / "ledger", tmp_path / "go"
    (sibling,) = enqueue(jobs, "counted", args={"ledger": str(ledger), "until": str(go)})
    with running_worker(qwf_dsn, QWF_CANCEL_GRACE_S="600", **CREW) as worker:
        until(begun(ledger, 1))
        (job,) = enqueue(jobs, task, args={"s": 600, "begun": str(tmp_path / "begun")}, timeout_s=0.3)
        until(lambda: jobs.fetch(job).status == "scheduled")
        assert (jobs.fetch(sibling).status, worker.poll()) == ("running", None)
        go.touch()
        until(lambda: jobs.fetch(sibling).status == "completed")
    row = jobs.fetch(job)
    assert (row.failures, row.errors[-1]["kind"]) == (1, "wall_clock")


@pytest.mark.slow
def test_a_task_that_will_not_be_cancelled_ends_the_process(
    qwf_dsn: str, jobs: IngestJobRepository, tmp_path: Path
) -> None:
    """After its grace."""
    (job,) = enqueue(jobs, "async stubborn", args={"begun": str(tmp_path / "begun")}, timeout_s=0.3)
    with running_worker(qwf_dsn, QWF_CANCEL_GRACE_S="0.2", **CREW) as worker:
        assert worker.wait(150) == 75
    assert (jobs.fetch(job).status, jobs.fetch(job).failures) == ("scheduled", 1)


@pytest.mark.slow
def test_who_blocks_the_loop_is_blamed_and_no_sibling(
    qwf_dsn: str, jobs: IngestJobRepository, tmp_path: Path
) -> None:
    """A sibling whose time passes meanwhile is not to blame; the wall clock of the blocker ends all."""
    (sibling,) = enqueue(jobs, "async patient", args={"begun": str(tmp_path / "sibling")}, timeout_s=1.0)
    with running_worker(qwf_dsn, QWF_CANCEL_GRACE_S="0.2", **CREW) as worker:
        until((tmp_path / "sibling").exists)
        (blocker,) = enqueue(jobs, "blocks the loop", args={"begun": str(tmp_path / "blocks")}, timeout_s=3.0)
        assert worker.wait(150) == 75
    assert (jobs.fetch(blocker).status, jobs.fetch(blocker).failures) == ("scheduled", 1)
    # It may have been over before the blocker began, on a slow machine; else it was given back.
    if (tmp_path / "blocks").exists() and jobs.fetch(sibling).failures == 0:
        assert jobs.fetch(sibling).status == "queued"


def test_what_leaves_or_interrupts_is_that_jobs_failure(qwf_dsn: str, jobs: IngestJobRepository) -> None:
    """sys.exit() and KeyboardInterrupt, on a thread and on the loop: the worker works on."""
    ids = [enqueue(jobs, task, max_attempts=1)[0] for task in ("leaves", "interrupts", "noop", "async noop")]
    with running_worker(qwf_dsn, "--drain", **CREW) as worker:
        assert worker.wait(150) == 0
    assert [jobs.fetch(each).status for each in ids] == ["failed", "failed", "completed", "completed"]
    assert "sys.exit(3)" in jobs.fetch(ids[0]).errors[-1]["message"]


@pytest.mark.slow
def test_a_stop_lets_what_runs_finish(qwf_dsn: str, jobs: IngestJobRepository, tmp_path: Path) -> None:
    """SIGTERM: nothing more is claimed, what runs ends as it would have, and the status is 0."""
    ledger, go = tmp_path / "ledger", tmp_path / "go"
    args = {"ledger": str(ledger), "until": str(go)}
    ids = enqueue(jobs, "counted", 4, args=args) + enqueue(jobs, "async counted", 4, args=args)
    waiting = enqueue(jobs, "noop", 5)
    with running_worker(qwf_dsn, **CREW) as worker:
        until(begun(ledger, 8))
        worker.terminate()
        until(lambda: HeartbeatRepository(jobs._sql._handle).list(state="stopping"))
        go.touch()
        assert worker.wait(150) == 0
    assert statuses(jobs, ids) == {"completed"}
    assert {(jobs.fetch(each).status, jobs.fetch(each).attempt) for each in waiting} == {("queued", 0)}


@pytest.mark.slow
def test_a_second_stop_gives_all_back(qwf_dsn: str, jobs: IngestJobRepository, tmp_path: Path) -> None:
    """At once, uncounted, all of them."""
    ledger = tmp_path / "ledger"
    args = {"ledger": str(ledger), "until": str(tmp_path / "never")}
    ids = enqueue(jobs, "counted", 3, args=args) + enqueue(jobs, "async counted", 3, args=args)
    with running_worker(qwf_dsn, "--grace", "600", **CREW) as worker:
        until(begun(ledger, 6))
        worker.send_signal(signal.SIGTERM)
        until(lambda: HeartbeatRepository(jobs._sql._handle).list(state="stopping"))
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(150) == 143
    rows = [jobs.fetch(each) for each in ids]
    assert {(row.status, row.failures, row.crash_count, row.suspect) for row in rows} == {
        ("queued", 0, 0, False)
    }


@pytest.mark.slow
def test_off_gives_all_back_and_on_goes_on(qwf_dsn: str, jobs: IngestJobRepository, tmp_path: Path) -> None:
    """What does not hear goes with the process, which starts anew and parks."""
    ledger, control = tmp_path / "ledger", WorkerControlRepository(jobs._sql._handle)
    ids = enqueue(jobs, "counted", 3, args={"ledger": str(ledger), "until": str(tmp_path / "go")})
    with running_worker(qwf_dsn, **CREW) as worker:
        until(begun(ledger, 3))
        control.set("*", "fetch", "off", actor="test")
        until(lambda: statuses(jobs, ids) == {"queued"})
        until(lambda: HeartbeatRepository(jobs._sql._handle).list(state="parked"))
        (tmp_path / "go").touch()
        control.clear("*", "fetch", actor="test")
        until(lambda: statuses(jobs, ids) == {"completed"})
        assert worker.poll() is None
    assert {jobs.fetch(each).failures for each in ids} == {0}


def test_a_suspect_runs_alone_and_is_not_starved(
    qwf_dsn: str, jobs: IngestJobRepository, tmp_path: Path
) -> None:
    """A worker with enough to do empties its hands for it; beside it nobody is inside."""
    ledger = tmp_path / "ledger"
    (suspect,) = enqueue(jobs, "counted", args={"ledger": str(ledger), "s": 0.2})
    jobs._sql._handle.execute("UPDATE ingest_jobs SET suspect = true")
    others = enqueue(jobs, "counted", 60, args={"ledger": str(ledger), "s": 0.1})
    with running_worker(qwf_dsn, "--concurrency", "4", "--drain", **CREW) as worker:
        assert worker.wait(150) == 0
    assert statuses(jobs, [suspect, *others]) == {"completed"}
    inside: set[str] = set()
    for line in ledger.read_text().splitlines():
        what, job = line.split()
        if what == "out":
            inside.discard(job)
        else:
            assert not inside or str(suspect) not in (inside | {job})
            inside.add(job)


def test_a_suspect_has_its_turn_while_there_is_other_work(
    qwf_dsn: str, jobs: IngestJobRepository, tmp_path: Path
) -> None:
    """It is claimed after all others, but not only when there are none left."""
    ledger = tmp_path / "ledger"
    (suspect,) = enqueue(jobs, "counted", args={"ledger": str(ledger), "s": 0})
    jobs._sql._handle.execute("UPDATE ingest_jobs SET suspect = true")
    others = enqueue(jobs, "counted", 400, args={"ledger": str(ledger), "s": 0.05})
    with running_worker(qwf_dsn, "--concurrency", "4", "--drain", QWF_POLL_S="0.05", **CREW) as worker:
        assert worker.wait(150) == 0
    ended = [line.split()[1] for line in ledger.read_text().splitlines() if line.startswith("out ")]
    assert sorted(map(int, ended)) == sorted([suspect, *others])
    assert ended[-1] != str(suspect)


@pytest.mark.slow
def test_a_crash_with_several_marks_them_and_counts_none(
    qwf_dsn: str, jobs: IngestJobRepository, tmp_path: Path
) -> None:
    """The one that kills its worker is found alone afterwards; its siblings are never blamed."""
    ledger, go = tmp_path / "ledger", tmp_path / "go"
    ids = enqueue(jobs, "counted", 3, args={"ledger": str(ledger), "until": str(go)})
    with running_worker(qwf_dsn, **CREW, **SHORT_LEASE) as worker:
        until(begun(ledger, 3))
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
    (tmp_path / "go").touch()
    with running_worker(qwf_dsn, **CREW):
        until(lambda: statuses(jobs, ids) == {"completed"})
    rows = [jobs.fetch(each) for each in ids]
    assert {(row.attempt, row.crash_count, row.failures, row.suspect) for row in rows} == {(2, 0, 0, True)}


@pytest.mark.slow
def test_a_lost_connection_among_many_jobs_costs_none_of_them(
    qwf_dsn: str, jobs: IngestJobRepository
) -> None:
    """Every backend of the worker is terminated again and again while it drains: each job ends once."""
    ids = enqueue(jobs, "noop", 4000)
    conn = jobs._sql._handle
    cut = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE application_name LIKE 'qwf:worker%' AND datname = current_database()"
    )
    with running_worker(qwf_dsn, "--drain", **CREW) as worker:
        for done in (1, 1500, 3000):
            until(lambda done=done: worker.poll() is not None or count(conn, "completed") >= done)
            conn.execute(cut)
        assert worker.wait(150) == 0
    rows = [jobs.fetch(each) for each in ids]
    assert {(row.status, row.failures, row.crash_count, row.suspect) for row in rows} == {
        ("completed", 0, 0, False)
    }


def count(conn: psycopg.Connection, status: str) -> int:
    row = conn.execute("SELECT count(*) FROM ingest_jobs WHERE status = %s", [status]).fetchone()
    assert row is not None
    return int(row[0])


def test_all_jobs_of_a_task_nobody_knows_are_put_aside_at_once(
    qwf_dsn: str, jobs: IngestJobRepository
) -> None:
    """In statements of some thousand, unclaimed but for the first ones; who knows it gets them all."""
    ids = enqueue(jobs, "noop", 5000)
    (behind,) = enqueue(jobs, "nobody knows")
    with running_worker(qwf_dsn, "--drain", QWF_APP="support.processes.programs") as worker:
        assert worker.wait(150) == 0
    conn = jobs._sql._handle
    held = "SELECT count(*), count(*) FILTER (WHERE attempt > 0) FROM ingest_jobs WHERE hold_key = 'noop'"
    on_hold, claimed = conn.execute(held).fetchone()
    assert (on_hold, jobs.fetch(behind).hold_key) == (5000, "nobody knows")
    assert claimed < 1000
    with running_worker(qwf_dsn, **CREW):
        until(lambda: count(conn, "completed") == 5000, within_s=120)
    assert len(ids) == 5000


@pytest.mark.slow
def test_a_worker_that_is_refused_its_claims_lets_go_first(
    qwf_dsn: str, jobs: IngestJobRepository, tmp_path: Path
) -> None:
    """No job in hand is blamed for a failure of its worker: it is queued again, uncounted and no suspect."""
    ledger, go = tmp_path / "ledger", tmp_path / "go"
    (job,) = enqueue(jobs, "counted", args={"ledger": str(ledger), "until": str(go)})
    with psycopg.connect(qwf_dsn, autocommit=True) as connection, running_worker(qwf_dsn, **CREW) as worker:
        until(begun(ledger, 1))
        connection.execute("ALTER TABLE ingest_jobs RENAME COLUMN host_lock TO elsewhere")
        try:
            assert worker.wait(150) not in (0, None)
        finally:
            connection.execute("ALTER TABLE ingest_jobs RENAME COLUMN elsewhere TO host_lock")
    left = jobs.fetch(job)
    assert (left.status, left.failures, left.crash_count, left.suspect) == ("queued", 0, 0, False)
