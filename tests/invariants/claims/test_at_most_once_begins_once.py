"""A job that is at_most_once begins once: killed anywhere, stopped, or let go of, it ends, and says why."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.processes.supervised import supervisor_of
from support.processes.workers import until
from support.servers.cluster import Cluster
from support.servers.statement_proxy import Moment, StatementProxy
from support.stages.floor import CLAIMS, ENDS, Floor
from support.stages.ledger import Ledger

from queue_workflows.db import bootstrap
from queue_workflows.repositories import WorkerControlRepository
from queue_workflows.repositories.claims.begins import BEGIN

BEGINS = (BEGIN["ingest"],)
STATEMENTS = {"claim": CLAIMS, "begin": BEGINS, "end": ENDS}
LONG_LEASE = {"QWF_LEASE_S": "300"}
LOST = "its worker was lost after it had begun, and it begins at most once"


@dataclass(frozen=True)
class Kill:
    """Where a worker is killed, which attempts of its job have begun in the end, and how that ends."""

    statement: str
    moment: Moment | None
    begun: list[int]
    ends: str


IN_THE_TASK = Kill("task", None, [1], "failed")
BEGUN_UNREAD = Kill("begin", Moment.UNREAD, [], "failed")
KILLS = [
    Kill("claim", Moment.UNREAD, [2], "completed"),
    Kill("begin", Moment.UNSENT, [2], "completed"),
    Kill("begin", Moment.UNCOMMITTED, [2], "completed"),
    BEGUN_UNREAD,
    IN_THE_TASK,
    Kill("end", Moment.UNSENT, [1], "failed"),
    Kill("end", Moment.UNCOMMITTED, [1], "failed"),
    Kill("end", Moment.UNREAD, [1], "completed"),
    # The last: it leaves its job to whoever comes next.
    Kill("claim", Moment.UNCOMMITTED, [1], "completed"),
]


def enqueue(floor: Floor, *, gated: bool = False, task: str | None = None, **options: Any) -> int:
    """A job that writes down outside of the database that it begins."""
    if task is None:
        return floor.enqueue(gated=gated, at_most_once=True, **options)
    args = {"ledger": str(floor.ledger.directory), "gated": gated, "stuck": False}
    return floor.repository.enqueue(task, queue="fetch", args=args, **options).id


def killed_at(floor: Floor, proxy: StatementProxy, kill: Kill, concurrency: str) -> int:
    """The job of a worker that was killed there."""
    job = enqueue(floor, gated=kill.moment is None)
    trap = None if kill.moment is None else proxy.trap(*STATEMENTS[kill.statement], moment=kill.moment)
    options = ("--concurrency", concurrency)
    with floor.worker(*options, dsn=proxy.dsn, **LONG_LEASE) as victim:
        if trap is None:
            floor.until_begun(job, 1)
        else:
            trap.sprung()
        victim.kill()
        victim.wait()
    if trap is not None:
        trap.drop()
    return job


def lapse_all(floor: Floor) -> None:
    """Let the leases of the dead be over."""
    floor.jobs.lapse(*(row["id"] for row in floor.jobs.rows() if row["status"] == "running"))


def check_end(floor: Floor, job: int, ends: str) -> None:
    """How it ended, and what it says where its worker was lost."""
    row = floor.jobs.row(job)
    assert row["status"] == ends
    if ends == "failed":
        assert row["errors"][-1]["kind"] == "worker_lost"
        assert row["errors"][-1]["message"].startswith(LOST)
        assert row["max_attempts"] == 1


@pytest.mark.parametrize(
    ("concurrency", "kills"),
    [
        pytest.param("1", [BEGUN_UNREAD, IN_THE_TASK], id="short"),
        pytest.param("1", KILLS, id="one at a time", marks=pytest.mark.slow),
        pytest.param("4", KILLS[2:6], id="four at a time", marks=pytest.mark.slow),
    ],
)
def test_killed_anywhere(floor: Floor, proxy: StatementProxy, concurrency: str, kills: list[Kill]) -> None:
    """Not begun it is the next worker's; begun it has failed, unless its end is stored."""
    killed = [(kill, killed_at(floor, proxy, kill, concurrency)) for kill in kills]
    lapse_all(floor)
    with floor.worker("--drain"):
        until(lambda: all(row["finished_at"] is not None for row in floor.jobs.rows()))
    for kill, job in killed:
        print(kill)
        assert floor.ledger.attempts(job) == kill.begun
        check_end(floor, job, kill.ends)


@pytest.mark.slow
def test_killed_below_a_supervisor(floor: Floor, proxy: StatementProxy) -> None:
    """What sees the death takes the jobs back at once; what was only claimed ahead runs later."""
    first = [enqueue(floor, gated=True) for _ in range(6)]
    with supervisor_of(proxy.dsn, "--worker", "fetch --concurrency 2", env=LONG_LEASE) as supervisor:
        until(lambda: len(floor.ledger.begun()) == 2)
        begun = {each.job_id: each.pid for each in floor.ledger.begun()}
        for job in set(first) - begun.keys():
            floor.ledger.open_gate(job, 1)
            floor.ledger.open_gate(job, 2)
        kill_each(*begun.values())
        until(lambda: all(row["finished_at"] is not None for row in floor.jobs.rows()))
        trap = proxy.trap(*BEGINS, moment=Moment.UNREAD)
        job = enqueue(floor)
        trap.sprung()
        kill_each(worker_pid(floor, job))
        trap.drop()
        until(lambda: floor.jobs.seen(job, "status") == ("failed",))
        assert supervisor.stop() == 0
    for each in first:
        assert len(floor.ledger.attempts(each)) == 1
        check_end(floor, each, "failed" if each in begun else "completed")
    assert floor.ledger.attempts(job) == []
    check_end(floor, job, "failed")


def kill_each(*pids: int) -> None:
    """Kill -9, each process once."""
    for pid in set(pids):
        os.kill(pid, signal.SIGKILL)


def worker_pid(floor: Floor, job: int) -> int:
    """The process of the worker that holds a job."""
    sql = "SELECT pid FROM worker_heartbeats JOIN ingest_jobs ON worker_id = claimed_by WHERE id = %s"
    return int(until(lambda: floor.connection.execute(sql, [job]).fetchone())[0])


Refusing = Callable[[str], None]


@pytest.fixture
def refusing(floor: Floor) -> Iterator[Refusing]:
    """A server that takes no job for completed, and says why in the words that are given."""

    def refuse(state: str) -> None:
        floor.connection.execute(f"""
            CREATE OR REPLACE FUNCTION refuse_ends() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN RAISE EXCEPTION 'not this one' USING ERRCODE = '{state}'; END $$;
            CREATE OR REPLACE TRIGGER refuse_ends BEFORE UPDATE ON ingest_jobs
            FOR EACH ROW WHEN (NEW.status = 'completed') EXECUTE FUNCTION refuse_ends()
        """)

    yield refuse
    floor.connection.execute("DROP FUNCTION IF EXISTS refuse_ends() CASCADE")


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A migrated server that puts nothing on disk by itself for as long as a test lasts."""
    with Cluster.primary({"synchronous_commit": "off", "wal_writer_delay": "10s"}) as cluster:
        bootstrap(cluster.dsn())
        yield cluster


@pytest.mark.slow
def test_a_server_that_is_killed_forgets_no_begin(cluster: Cluster, tmp_path: Path) -> None:
    """A claim may be forgotten, a begin may not: with its worker alive the job ends well."""
    with ExitStack() as stack:
        before = stack.enter_context(cluster.connect())
        before.execute("SET synchronous_commit = on")
        floor = Floor(cluster.dsn(), before, Ledger(tmp_path))
        lives, dies = enqueue(floor, gated=True), enqueue(floor, gated=True)
        survivor, victim = (stack.enter_context(floor.worker(**LONG_LEASE)) for _ in range(2))
        pids = {floor.until_begun(job, 1): job for job in (lives, dies)}
        lives, dies = pids[survivor.pid], pids[victim.pid]
        cluster.crash()
        victim.kill()
        victim.wait()
        floor = Floor(cluster.dsn(), stack.enter_context(cluster.connect()), floor.ledger)
        assert [floor.jobs.seen(job, "status", "attempt") for job in (lives, dies)] == [("running", 1)] * 2
        floor.ledger.open_gate(lives, 1)
        floor.until_completed(lives)
        floor.jobs.lapse(dies)
        floor.until_in("failed", dies)
        assert [floor.ledger.attempts(job) for job in (lives, dies)] == [[1], [1]]
        check_end(floor, dies, "failed")


@pytest.mark.slow
def test_a_worker_that_lets_go_begins_nothing_again(floor: Floor) -> None:
    """Stopped, switched off, or asked for another time: each is an end that says what it would have been."""
    later = enqueue(floor, task="later once")
    stopped = enqueue(floor, gated=True)
    with floor.worker(QWF_GRACE_S="0.1") as worker:
        floor.until_begun(stopped, 1)
        worker.terminate()
        worker.wait(150)
    with floor.worker() as worker:
        off = enqueue(floor, gated=True)
        floor.until_begun(off, 1)
        control = WorkerControlRepository(floor.connection)
        control.set("here", "fetch", "off", actor="test", reason="enough")
        floor.until_in("failed", off)
        control.clear("here", "fetch", actor="test")
        behind = floor.enqueue()
        floor.until_completed(behind)
    for job, why in (
        (later, "it asked to be run again in 0 s (busy)"),
        (stopped, "its worker let go"),
        (off, "test"),
    ):
        (entry,) = floor.jobs.row(job)["errors"]
        assert floor.standing(job)[:2] == ("failed", 1)
        assert entry["kind"] == "at_most_once"
        assert why in entry["message"]
        assert floor.ledger.attempts(job) == [1]


def test_an_operators_retry_begins_it_again(floor: Floor) -> None:
    """A new generation, and only that."""
    job = enqueue(floor, task="recorded once")
    with floor.worker("--drain"):
        floor.until_completed(job)
    assert floor.jobs.seen(job, "at_most_once", "begun_generation", "max_attempts") == (True, 1, 1)
    assert floor.repository.retry_many([job], actor="test") == {job: 2}
    with floor.worker("--drain"):
        floor.until_completed(job)
    assert floor.ledger.attempts(job) == [1, 2]
    assert floor.jobs.seen(job, "begun_generation") == (2,)


def test_what_the_task_says_holds_for_jobs_of_producers_that_do_not_know_it(floor: Floor) -> None:
    """Its worker writes it down before it begins, for whoever takes the job back."""
    job = enqueue(floor, gated=True, task="recorded once")
    frail = floor.repository.enqueue("frail", queue="fetch", priority=1).id
    assert floor.jobs.seen(job, "at_most_once", "max_attempts") == (False, 3)
    for each in (job, frail):
        with floor.worker(**LONG_LEASE) as victim:
            if each == job:
                floor.until_begun(job, 1)
                victim.kill()
            victim.wait(150)
        lapse_all(floor)
        floor.repository.reclaim(max_crashes=3, lease_s=300)
    check_end(floor, job, "failed")
    assert floor.jobs.seen(frail, "status", "crash_count", "max_crashes") == ("failed", 1, 1)


def test_the_table_lets_nothing_that_has_begun_wait(floor: Floor) -> None:
    """Whoever writes it: a statement that forgets what has begun ends it, and is told so."""
    job = enqueue(floor)
    (held,) = floor.repository.claim("fetch", worker_id="w", lease_s=30)
    floor.connection.execute("UPDATE ingest_jobs SET begun_generation = generation WHERE id = %s", [job])
    floor.repository.release(held)
    assert floor.standing(job) == ("failed", 1, 0, 0)
    assert floor.jobs.row(job)["errors"][-1]["kind"] == "at_most_once"


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("at_most_once", "at_most_once, max_attempts) VALUES ('t', 'fetch', true, 3"),
        ("max_crashes", "max_crashes) VALUES ('t', 'fetch', 0"),
        ("begun_generation", "begun_generation) VALUES ('t', 'fetch', 0"),
    ],
)
def test_the_table_takes_no_contradiction(floor: Floor, column: str, words: str) -> None:
    """Nor what only workers write; one begins as often as it is tried."""
    with pytest.raises(psycopg.errors.CheckViolation, match=f"{column} cannot be so"):
        floor.connection.execute(f"INSERT INTO ingest_jobs (task_name, queue, {words})")


@dataclass(frozen=True)
class Refusal:
    """What a server says to an end, and what has to become of the job then."""

    state: str
    at_most_once: bool
    ends: str


REFUSALS = [
    Refusal("insufficient_privilege", True, "failed"),
    Refusal("insufficient_privilege", False, "scheduled"),
    Refusal("check_violation", False, "failed"),
]


@pytest.mark.parametrize("concurrency", ["1", "4"])
def test_an_end_that_the_server_refuses(floor: Floor, refusing: Refusing, concurrency: str) -> None:
    """For a reason that is not in the job: another would be tried again later, and this one has failed."""
    with floor.worker("--concurrency", concurrency):
        for refusal in REFUSALS:
            refusing(refusal.state)
            job = floor.enqueue(at_most_once=refusal.at_most_once)
            floor.until_in(refusal.ends, job)
            assert floor.jobs.row(job)["errors"][-1]["message"].startswith("not this one")
            assert floor.ledger.attempts(job) == [1]
