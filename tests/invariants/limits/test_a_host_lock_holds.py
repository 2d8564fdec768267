"""Jobs that need a lock of their machine: one at a time there, nobody behind them waits, a kill frees it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from contextvars import copy_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.workers import patiently, running_worker
from support.rows.claim_sessions import CLEAR_LIMITS, Hand, cap, hand, holders
from support.rows.claimed_jobs import context
from support.rows.jobs import CLEAR_WITH_WORKERS, Jobs, ending

from queue_workflows.engine.limits.held_host_locks import LOOK_EVERY_S
from queue_workflows.engine.limits.held_slots import KeptSlots
from queue_workflows.engine.limits.wait_loop import DatabaseCalls
from queue_workflows.engine.limits.windows import Windows
from queue_workflows.host.locks.lock import Held, HostLock, lock_file_name, probe
from queue_workflows.repositories import IngestJobRepository, NewIngestJob
from queue_workflows.repositories.claims.by_host_lock import HostLockRepository
from queue_workflows.roles.worker.common.host_lock_checks import HostLockChecks

TASKS = {"QWF_APP": "support.tasks.limited_tasks", "QWF_MAX_CRASHES": "1000"}
HELD = ("scheduled", "host_lock")


@pytest.fixture(params=["node", "ingest"])
def jobs(qwf_dsn: str, request: pytest.FixtureRequest) -> Iterator[Jobs]:
    """Each family's jobs, and empty tables."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(f"{CLEAR_WITH_WORKERS}; {CLEAR_LIMITS}")
        yield Jobs(request.param, connection)


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """A connection in autocommit, and empty tables."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(f"{CLEAR_WITH_WORKERS}; {CLEAR_LIMITS}")
        yield connection


@pytest.fixture
def two(qwf_dsn: str, jobs: Jobs, tmp_path: Path) -> Iterator[tuple[Hand, Hand]]:
    """Two workers of one host."""
    with (
        hand(qwf_dsn, "here:q:1", jobs.family, lock_dir=tmp_path / "here") as one,
        hand(qwf_dsn, "here:q:2", jobs.family, lock_dir=tmp_path / "here") as two,
    ):
        yield one, two


@pytest.fixture
def there(qwf_dsn: str, jobs: Jobs, tmp_path: Path) -> Iterator[Hand]:
    """A worker of another host."""
    with hand(qwf_dsn, "there:q:1", jobs.family, lock_dir=tmp_path / "there") as found:
        yield found


def state(jobs: Jobs, job_id: int) -> tuple[str, str | None]:
    sql = f"SELECT status, hold_reason FROM {jobs.table} WHERE id = %s"
    found = jobs.connection.execute(sql, [job_id]).fetchone()
    assert found is not None
    return found


def looks(hand: Hand) -> bool:
    """What a worker does each two seconds between two jobs."""
    holdings: Any = SimpleNamespace(bounded=nullcontext)
    touch: Any = SimpleNamespace(
        repository=lambda: hand.claim_session.repository, connected=lambda: hand.connection
    )
    return HostLockChecks(hand.terms, holdings, touch).look(0.0)


def test_one_job_at_a_time_has_a_lock_and_nobody_waits_behind_the_others(
    jobs: Jobs, two: tuple[Hand, Hand]
) -> None:
    """In one worker or in two: who finds the lock held is put aside at its place, and the next one runs."""
    first, second, third = jobs.enqueue(3, host_lock="camera")
    (free,) = jobs.enqueue(1)
    assert [job.id for job in two[0].claim(2)] == [first]
    assert [job.id for job in two[1].claim(2)] == [free]
    sql = f"""
        SELECT hold_key, failures, position < (SELECT position FROM {jobs.table} WHERE id = {free})
        FROM {jobs.table}
    """
    for waiting in (second, third):
        assert state(jobs, waiting) == HELD
        assert jobs.connection.execute(f"{sql} WHERE id = {waiting}").fetchone() == ("camera", 0, True)


def test_the_end_of_a_job_frees_its_lock_for_the_next(jobs: Jobs, two: tuple[Hand, Hand]) -> None:
    """The end is stored, the lock is free, the next in line is in the queue; with a claim it is in hand."""
    first, second, third = jobs.enqueue(3, host_lock="camera", priorities=(5, 4, 7))
    assert [job.id for job in two[0].claim(3)] == [third]
    two[0].end()
    assert state(jobs, first) == ("queued", None)
    assert state(jobs, second) == HELD
    assert [job.id for job in two[1].claim(1)] == [first]
    assert [job.id for job in two[1].end_and_claim()] == [second]
    two[1].end()
    assert not two[1].terms.locks.held


def test_who_lost_its_lease_keeps_the_lock_until_its_work_has_stopped(
    jobs: Jobs, two: tuple[Hand, Hand]
) -> None:
    """The row is another's, and nobody on this host has the lock before the first one has let go of it."""
    jobs.enqueue(2, host_lock="camera")
    (job,) = two[0].claim(1)
    jobs.connection.execute(
        f"UPDATE {jobs.table} SET status = 'queued', claimed_by = NULL, lease_expires_at = NULL, attempt = 7"
    )
    assert two[1].claim(2) == []
    two[0].claim_session.abandon([job.fence])
    assert len(two[1].claim(2)) == 1


def test_what_a_function_left_held_promotes_as_its_jobs_own_lock_does(
    jobs: Jobs, two: tuple[Hand, Hand]
) -> None:
    """The end of the job frees it, and the next who needs it is in the queue."""
    (first,) = jobs.enqueue(1)
    (second,) = jobs.enqueue(1, host_lock="camera")
    (job,) = two[0].claim(1)
    assert job.id == first
    windows = Windows(
        DatabaseCalls(lambda job, ask: ask(jobs.connection)), KeptSlots(), two[0].terms.locks, lease_s=60
    )
    copy_context().run(context(job, windows=windows).host_lock("camera").__enter__)
    assert two[1].claim(1) == []
    assert state(jobs, second) == HELD
    assert [job.id for job in two[0].end_and_claim()] == [second]
    two[0].end()


def test_an_end_beside_a_running_function_keeps_the_lock(jobs: Jobs, two: tuple[Hand, Hand]) -> None:
    """Where the process has to end for the job to end, the lock goes with the process."""
    jobs.enqueue(1, host_lock="camera")
    (job,) = two[0].claim(1)
    two[0].claim_session.end([ending(job, "queued")], keeps_locks=True)
    assert two[1].claim(1) == []


def test_a_full_limit_takes_no_lock_and_a_held_lock_no_slot(jobs: Jobs, two: tuple[Hand, Hand]) -> None:
    """A job that needs both holds both, or neither."""
    cap(jobs.connection, "api", 1)
    first, second = jobs.enqueue(2, host_lock="camera", limit_key="api")
    (other,) = jobs.enqueue(1, host_lock="scanner", limit_key="api")
    assert [job.id for job in two[0].claim(1)] == [first]
    assert two[1].claim(2) == []
    assert [state(jobs, one)[1] for one in (second, other)] == ["host_lock", "limit_full"]
    assert holders(jobs.connection, "api") == [first]
    assert not two[1].terms.locks.held
    two[0].end()
    assert len(two[0].claim(2)) == 1
    two[0].end()


def test_a_release_promotes_the_first_of_each_queue(
    qwf_dsn: str, conn: psycopg.Connection, tmp_path: Path
) -> None:
    """Workers of other queues of a host wait for the same lock."""
    jobs = Jobs("ingest", conn)
    jobs.enqueue(1, host_lock="camera")
    others = jobs.enqueue(2, host_lock="camera", queue="load")
    with (
        hand(qwf_dsn, "here:fetch:1", lock_dir=tmp_path) as fetch,
        hand(qwf_dsn, "here:load:1", queue="load", lock_dir=tmp_path) as load,
    ):
        assert len(fetch.claim(1)) == 1
        assert load.claim(2) == []
        fetch.end()
        assert [state(jobs, one)[0] for one in others] == ["queued", "scheduled"]
        assert len(load.claim(2)) == 1


def test_a_crowd_for_a_held_lock_is_passed_at_once(
    jobs: Jobs, two: tuple[Hand, Hand], tmp_path: Path
) -> None:
    """The first that misses the lock takes all behind it along, and one alone comes back when it is due."""
    crowd = jobs.enqueue(300, host_lock="camera")
    (free,) = jobs.enqueue(1)
    (tmp_path / "here").mkdir()
    with HostLock("camera", directory=tmp_path / "here"):
        assert [job.id for job in two[1].claim(2)] == [free]
    sql = f"""
        SELECT array_agg(id) FILTER (WHERE run_at < now() + interval '1 hour'), sum(attempt), count(*)
        FROM {jobs.table} WHERE hold_key = 'camera' AND hold_reason = 'host_lock' AND status = 'scheduled'
    """
    assert jobs.connection.execute(sql).fetchone() == ([crowd[0]], 2, 300)
    assert HostLockRepository(jobs.connection).promote(["camera"], host="here") == 1
    assert [job.id for job in two[0].claim(2)] == [crowd[0]]
    assert [job.id for job in two[0].end_and_claim(2)] == [crowd[1]]
    two[0].end()
    two[1].end()


def test_a_crowd_put_aside_by_one_host_is_taken_by_another(
    jobs: Jobs, two: tuple[Hand, Hand], there: Hand, tmp_path: Path
) -> None:
    """Where the lock is free the first of them is claimed from its hold, but for who was claimed before."""
    crowd = jobs.enqueue(3, host_lock="camera")
    (tmp_path / "here").mkdir()
    with HostLock("camera", directory=tmp_path / "here"):
        assert two[0].claim(1) == []
        assert looks(there)
        assert [job.id for job in there.claim(1)] == crowd[1:2]
        there.end()


def test_a_crowd_of_hooks_is_passed_at_once(conn: psycopg.Connection, qwf_dsn: str, tmp_path: Path) -> None:
    """Those that this host may run, of the background too; another host has its own, whatever waits here."""
    jobs = Jobs("node", conn)

    def runs(count: int, host: str | None, **fields: Any) -> list[int]:
        made = [jobs.enqueue(1, queue="hooks", **fields)[0] for _ in range(count)]
        for table, column in (("workflow_node_jobs", "id"), ("workflow_runs", "id")):
            of = "SELECT run_id FROM workflow_node_jobs WHERE id = ANY (%s)" if "runs" in table else "%s"
            what = f"IN ({of})" if "runs" in table else f"= ANY ({of})"
            conn.execute(f"UPDATE {table} SET pinned_host = %s WHERE {column} {what}", [host, made])
        return made

    theirs = runs(3, "there", host_lock="camera")
    crowd = runs(200, "here", host_lock="camera") + runs(100, None, host_lock="camera")
    crowd += runs(10, "here", host_lock="camera", background=True)
    (free,) = runs(1, "here")
    (tmp_path / "here").mkdir()
    with (
        hand(qwf_dsn, "here:hooks:1", "node", queue="hooks", lock_dir=tmp_path / "here") as here,
        hand(qwf_dsn, "here:hooks:2", "node", queue="hooks", lock_dir=tmp_path / "here") as beside,
        hand(qwf_dsn, "there:hooks:1", "node", queue="hooks", lock_dir=tmp_path / "there") as there,
    ):
        with HostLock("camera", directory=tmp_path / "here"):
            assert [job.id for job in here.claim(2)] == [free]
            sql = """
                SELECT array_agg(id ORDER BY id), sum(attempt) FROM workflow_node_jobs
                WHERE hold_key = 'camera'
            """
            assert conn.execute(sql).fetchone() == (sorted(crowd), 2)
            assert [state(jobs, one)[0] for one in theirs] == ["queued"] * 3
            # Nothing comes out of its hold where the lock is held.
            looks(here)
            assert conn.execute(sql).fetchone() == (sorted(crowd), 2)
        (tmp_path / "there").mkdir()
        with HostLock("camera", directory=tmp_path / "there"):
            assert there.claim(1) == []
        assert [state(jobs, one)[0] for one in theirs] == ["scheduled"] * 3
        here.end()
        # One at a time comes back, by who was never refused too, and not another host's, which stands before.
        looks(beside)
        assert [job.id for job in here.claim(2)] == crowd[:1]
        assert [job.id for job in here.end_and_claim(2)] == crowd[1:2]
        looks(there)
        assert [job.id for job in there.claim(1)] == theirs[:1]
        here.end()
        there.end()


@pytest.mark.parametrize("alone", [False, True])
def test_an_offer_lets_no_suspect_stand_in_front(jobs: Jobs, two: tuple[Hand, Hand], alone: bool) -> None:
    """A queued suspect is claimed last, so what waits for a free lock is offered beside it."""
    suspect, waits = jobs.enqueue(2)
    suspected(jobs, suspect)
    put_on_hold(jobs, waits)
    assert [job.id for job in taken(jobs, two[0], alone=alone)] == [waits]


def test_a_suspect_on_hold_is_offered_after_all_others(jobs: Jobs, two: tuple[Hand, Hand]) -> None:
    """After what is queued, and after what waits for the same lock; by a worker that is alone."""
    suspect, waits, queued = jobs.enqueue(3)
    suspected(jobs, suspect)
    put_on_hold(jobs, suspect, waits)
    assert [job.id for job in taken(jobs, two[0], alone=True)] == [waits]
    assert taken(jobs, two[0], alone=True) == []
    (job,) = jobs.claim("x")
    assert job.id == queued
    assert taken(jobs, two[0], alone=False) == []
    assert [job.id for job in taken(jobs, two[0], alone=True)] == [suspect]


def test_a_freed_lock_promotes_a_suspect_after_all_others(jobs: Jobs) -> None:
    """Else the lock would stand free until somebody has nothing else to do."""
    suspect, waits = jobs.enqueue(2)
    suspected(jobs, suspect)
    put_on_hold(jobs, suspect, waits)
    locks = HostLockRepository(jobs.connection)
    for job in (waits, suspect):
        assert locks.promote(["camera"], host="here") == 1
        assert state(jobs, job) == ("queued", None)


def suspected(jobs: Jobs, *ids: int) -> None:
    jobs.connection.execute(f"UPDATE {jobs.table} SET suspect = true WHERE id = ANY(%s)", [list(ids)])


def put_on_hold(jobs: Jobs, *ids: int) -> None:
    """For a lock that any host may have."""
    jobs.connection.execute(
        f"UPDATE {jobs.table} SET status = 'scheduled', hold_reason = 'host_lock', hold_key = 'camera',"
        " run_at = now() + interval '2 hours' WHERE id = ANY(%s)",
        [list(ids)],
    )


def taken(jobs: Jobs, hand: Hand, *, alone: bool) -> list[Any]:
    """What a worker gets that offers the lock."""
    family = hand.claim_session.repository.family
    return HostLockRepository(jobs.connection).take(
        family, ["camera"], queue=jobs.queue, worker_id="w", lease_s=30, limit=1, alone=alone
    )


def test_another_host_has_a_lock_of_its_own(jobs: Jobs, two: tuple[Hand, Hand], there: Hand) -> None:
    """The lock is a machine's: elsewhere a job of the same lock runs at the same time."""
    first, second = jobs.enqueue(2, host_lock="camera")
    assert [job.id for job in two[0].claim(1)] == [first]
    assert [job.id for job in there.claim(1)] == [second]


def test_what_is_left_to_other_hosts_is_promoted_where_the_lock_is_free(
    jobs: Jobs, two: tuple[Hand, Hand], there: Hand
) -> None:
    """This host leaves it alone while the lock is held here; one where it is free takes it at once."""
    (first,) = jobs.enqueue(1, host_lock="camera")
    (second,) = jobs.enqueue(1, host_lock="elsewhere:camera")
    assert [job.id for job in two[0].claim(1)] == [first]
    assert two[1].claim(1) == []
    assert state(jobs, second) == HELD
    keys = there.claim_session.repository.held_keys("host_lock", queue=jobs.queue)
    assert keys == ["elsewhere:camera"]
    assert not two[1].terms.locks.is_free(keys[0])
    assert there.terms.locks.is_free(keys[0])
    assert HostLockRepository(there.connection).promote(keys, host="there") == 1
    assert [job.id for job in there.claim(1)] == [second]


def test_what_is_left_to_another_host_is_never_claimed_twice_where_the_lock_is_held(
    jobs: Jobs, two: tuple[Hand, Hand], there: Hand, tmp_path: Path
) -> None:
    """The other host takes one after the other from their hold, in the order of the queue."""
    (tmp_path / "here").mkdir()
    with HostLock("camera", directory=tmp_path / "here"):
        waiting = jobs.enqueue(3, host_lock="elsewhere:camera")
        assert two[0].claim(3) == []
        (urgent,) = jobs.enqueue(1, priorities=(9,))
        offers = there.terms.offers
        offers.waited_for(["elsewhere:camera"])
        offers.offer(["elsewhere:camera"])
        # What stands before it is not passed, and it is not tried again before the next look.
        assert [job.id for job in there.claim(1)] == [urgent]
        assert not offers.offered
        offers.offer(["elsewhere:camera"])
        there.end()
        for job_id in waiting:
            assert [job.id for job in there.claim(1)] == [job_id]
            assert two[1].claim(1) == []
            there.end()
    sql = f"SELECT attempt, past_holds -> 0 ->> 'reason' FROM {jobs.table} WHERE id = ANY (%s)"
    assert jobs.connection.execute(sql, [waiting]).fetchall() == [(2, "host_lock")] * 3


def test_what_a_stranger_frees_is_seen_by_who_missed_it(
    jobs: Jobs, two: tuple[Hand, Hand], tmp_path: Path
) -> None:
    """A program of this machine holds the lock and tells nobody when it lets go."""
    (job_id,) = jobs.enqueue(1, host_lock="camera")
    (tmp_path / "here").mkdir()
    lock = HostLock("camera", directory=tmp_path / "here")
    lock.acquire()
    assert two[0].claim(1) == []
    locks = two[0].terms.locks
    assert locks.missed
    assert locks.freed() == []
    lock.release()
    assert locks.freed() == ["camera"]
    assert not locks.missed
    HostLockRepository(jobs.connection).promote(["camera"], host="here")
    assert state(jobs, job_id) == ("queued", None)


def test_a_lock_that_cannot_be_taken_is_a_hold(
    jobs: Jobs, qwf_dsn: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that may not lock here runs nothing without the lock, and says why."""
    jobs.enqueue(1, host_lock="camera")
    (tmp_path / "file").touch()
    with hand(qwf_dsn, "here:q:1", jobs.family, lock_dir=tmp_path / "file") as blocked:
        assert blocked.claim(1) == []
    assert "locks cannot live in" in caplog.text


# Real workers.


def enqueue(conn: psycopg.Connection, place: Path, count: int) -> None:
    """Jobs that check from inside that they are alone, by the kernel's own lock on another file."""
    IngestJobRepository(conn).enqueue_many(
        NewIngestJob(
            task_name="inside",
            queue="fetch",
            host_lock="camera",
            args={"place": str(place), "key": "camera", "cap": 1, "s": 0.005},
        )
        for _ in range(count)
    )


def statuses(conn: psycopg.Connection) -> dict[str, int]:
    return dict(conn.execute("SELECT status, count(*) FROM ingest_jobs GROUP BY 1").fetchall())


@pytest.mark.slow
def test_two_workers_of_a_host_are_never_inside_at_once_and_a_kill_frees_the_lock(
    conn: psycopg.Connection, qwf_dsn: str, tmp_path: Path
) -> None:
    """One with one job, one with eight threads, which is killed; the other does all that is left."""
    settings = TASKS | {"QWF_LOCK_DIR": str(tmp_path / "locks"), "QWF_LEASE_S": "2"}
    enqueue(conn, tmp_path, 60)
    with ExitStack() as stack:
        one = stack.enter_context(running_worker(qwf_dsn, "--concurrency", "8", **settings))
        stack.enter_context(running_worker(qwf_dsn, "--concurrency", "1", **settings))
        patiently(lambda: statuses(conn).get("completed", 0) >= 10)
        os.killpg(one.pid, signal.SIGKILL)
        one.wait()
        patiently(lambda: statuses(conn) == {"completed": 60})
    assert not (tmp_path / "too-many").exists()


def test_the_threads_of_a_worker_take_turns_and_a_stranger_is_waited_for(
    conn: psycopg.Connection, qwf_dsn: str, tmp_path: Path
) -> None:
    """Eight threads of a real worker share a lock, once a program of the machine has let go of it."""
    (tmp_path / "locks").mkdir()
    enqueue(conn, tmp_path, 20)
    lock = HostLock("camera", directory=tmp_path / "locks")
    lock.acquire()
    with running_worker(
        qwf_dsn, "--concurrency", "8", "--max-jobs", "20", QWF_LOCK_DIR=str(tmp_path / "locks"), **TASKS
    ) as worker:
        patiently(lambda: statuses(conn) == {"scheduled": 20})
        lock.release()
        assert worker.wait(300) == 0
    assert statuses(conn) == {"completed": 20}
    assert not (tmp_path / "too-many").exists()
    assert conn.execute("SELECT count(*) FROM ingest_jobs WHERE failures > 0").fetchone() == (0,)


@pytest.mark.parametrize("leaves", [False, True])
def test_a_lock_that_a_function_takes_is_everybodys(
    conn: psycopg.Connection, qwf_dsn: str, tmp_path: Path, leaves: bool
) -> None:
    """Jobs of that lock and programs of the machine wait for it, and it ends with its job at the latest."""
    args = {"lock": "camera", "place": str(tmp_path), "leaves": leaves}
    jobs = IngestJobRepository(conn)
    jobs.enqueue_many([NewIngestJob(task_name="inside host lock", queue="fetch", args=args)])
    settings = TASKS | {"QWF_LOCK_DIR": str(tmp_path / "locks")}
    with running_worker(qwf_dsn, "--concurrency", "4", "--max-jobs", "2", **settings) as worker:
        patiently((tmp_path / "inside").exists)
        lock = HostLock("camera", directory=tmp_path / "locks")
        assert not lock.try_acquire()
        jobs.enqueue_many([NewIngestJob(task_name="quick", queue="fetch", host_lock="camera")])
        patiently(lambda: statuses(conn) == {"running": 1, "scheduled": 1})
        (tmp_path / "let-go").touch()
        assert worker.wait(300) == 0
    assert statuses(conn) == {"completed": 2}


@pytest.mark.slow
def test_a_crowd_for_a_held_lock_keeps_nobody_waiting(
    conn: psycopg.Connection, qwf_dsn: str, tmp_path: Path
) -> None:
    """Forty thousand are put aside by a few claims of a real worker, and go on when the lock is free."""
    jobs = IngestJobRepository(conn)
    for _ in range(8):
        jobs.enqueue_many(
            NewIngestJob(task_name="quick", queue="fetch", host_lock="camera") for _ in range(5000)
        )
    jobs.enqueue_many([NewIngestJob(task_name="quick", queue="fetch")])
    (tmp_path / "locks").mkdir()
    lock = HostLock("camera", directory=tmp_path / "locks")
    settings = TASKS | {"QWF_LOCK_DIR": str(tmp_path / "locks")}
    with lock, running_worker(qwf_dsn, "--concurrency", "1", **settings):
        patiently(lambda: statuses(conn).get("completed"))
        assert statuses(conn) == {"completed": 1, "scheduled": 40_000}
        (attempts,) = conn.execute("SELECT sum(attempt) FROM ingest_jobs").fetchone() or (0,)
        assert attempts < 200
        lock.release()
        patiently(lambda: statuses(conn)["completed"] > 10)


@pytest.mark.slow
def test_a_real_worker_of_another_host_takes_what_is_left_to_it(
    conn: psycopg.Connection, qwf_dsn: str, tmp_path: Path
) -> None:
    """Two hosts, a lock directory each: where somebody holds the lock nothing runs, on the other all does."""
    IngestJobRepository(conn).enqueue_many(
        NewIngestJob(task_name="quick", queue="fetch", host_lock="elsewhere:camera") for _ in range(5)
    )
    (tmp_path / "here").mkdir()
    here = TASKS | {"QWF_LOCK_DIR": str(tmp_path / "here")}
    there = TASKS | {"QWF_LOCK_DIR": str(tmp_path / "there"), "QWF_HOST_LABEL": "there"}
    with HostLock("camera", directory=tmp_path / "here"), ExitStack() as stack:
        stack.enter_context(running_worker(qwf_dsn, "--concurrency", "8", **here))
        patiently(lambda: statuses(conn) == {"scheduled": 5})
        stack.enter_context(running_worker(qwf_dsn, "--concurrency", "1", **there))
        patiently(lambda: statuses(conn) == {"completed": 5})
    hosts = conn.execute("SELECT DISTINCT split_part(claimed_by, ':', 1) FROM ingest_jobs").fetchall()
    assert hosts == [("there",)]


@pytest.mark.slow
@pytest.mark.parametrize("at_once", ["1", "8"])
def test_a_suspect_that_is_left_to_other_hosts_gets_its_turn(
    conn: psycopg.Connection, qwf_dsn: str, tmp_path: Path, at_once: str
) -> None:
    """Where its lock is free and nothing else waits, a real worker takes it; not hours later."""
    jobs = Jobs("ingest", conn)
    settings = TASKS | {"QWF_LOCK_DIR": str(tmp_path / "locks")}
    with running_worker(qwf_dsn, "--concurrency", at_once, **settings):
        later = {"host_lock": "elsewhere:camera", "delay": 3600.0}
        made = [IngestJobRepository(conn).enqueue("quick", queue="fetch", **later).id for _ in range(2)]
        conn.execute(
            "UPDATE ingest_jobs SET suspect = true, status = 'scheduled', hold_reason = 'host_lock',"
            " hold_key = host_lock, run_at = now() + interval '2 hours' WHERE id = ANY(%s)",
            [made],
        )
        patiently(lambda: statuses(conn) == {"completed": 2})
    assert {jobs.row(job)["crash_count"] for job in made} == {0}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["timeout", "kill"])
def test_the_end_of_a_process_frees_what_its_job_held(
    conn: psycopg.Connection, qwf_dsn: str, tmp_path: Path, how: str
) -> None:
    """A function that hears nothing is ended with its process, or killed: the lock is free with that."""
    begun = tmp_path / "begun"
    IngestJobRepository(conn).enqueue_many(
        [
            NewIngestJob(
                task_name="deaf inside",
                queue="fetch",
                host_lock="camera",
                max_attempts=1,
                timeout_s=1.0 if how == "timeout" else None,
                args={"begun": str(begun)},
            )
        ]
    )
    # Its lease is long, lest the end of that comes first where the machine is busy.
    settings = TASKS | {"QWF_LOCK_DIR": str(tmp_path / "locks"), "QWF_LEASE_S": "60"}
    with running_worker(qwf_dsn, "--concurrency", "1", **settings) as worker:
        patiently(begun.exists)
        lock = HostLock("camera", directory=tmp_path / "locks")
        assert how == "timeout" or not lock.try_acquire()
        if how == "kill":
            os.killpg(worker.pid, signal.SIGKILL)
        assert worker.wait(300) == (75 if how == "timeout" else -signal.SIGKILL)
        assert lock.try_acquire()
        lock.release()
    if how == "timeout":
        assert statuses(conn) == {"failed": 1}


@pytest.mark.slow
def test_a_busy_worker_holds_its_lock_where_the_directory_was_replaced(
    conn: psycopg.Connection, qwf_dsn: str, tmp_path: Path
) -> None:
    """Without an end of its job: who comes to the new directory meets the lock there."""
    begun, locks = tmp_path / "begun", tmp_path / "locks"
    IngestJobRepository(conn).enqueue_many(
        [NewIngestJob(task_name="deaf inside", queue="fetch", host_lock="camera", args={"begun": str(begun)})]
    )
    settings = TASKS | {"QWF_LOCK_DIR": str(locks)}
    with running_worker(qwf_dsn, "--concurrency", "1", **settings) as worker:
        patiently(begun.exists)
        locks.rename(tmp_path / "former")
        locks.mkdir()
        patiently(lambda: isinstance(probe(locks, lock_file_name("camera")), Held))
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait(300)


def test_what_a_killed_worker_missed_is_looked_for_by_the_next(
    two: tuple[Hand, Hand], jobs: Jobs, tmp_path: Path
) -> None:
    """Without a delay: a worker that starts looks at what is on hold on its host, and goes on looking."""
    one, other = two
    (tmp_path / "here").mkdir(exist_ok=True)
    with HostLock("camera", directory=tmp_path / "here"):
        (waits,) = jobs.enqueue(1, host_lock="camera")
        assert one.claim(1) == []
        assert state(jobs, waits) == HELD
        # `one` is killed here, and `other` takes its place while the lock is still held.
        holdings: Any = SimpleNamespace(bounded=nullcontext)
        touch: Any = SimpleNamespace(
            repository=lambda: other.claim_session.repository, connected=lambda: other.connection
        )
        look = HostLockChecks(other.terms, holdings, touch)
        look.look(0.0)
        assert state(jobs, waits) == HELD
    assert look.is_due(LOOK_EVERY_S)
    look.look(LOOK_EVERY_S)
    assert state(jobs, waits) == ("queued", None)
