"""Hundreds of async jobs of one worker take no thread each, and every guard holds for each of them."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.workers import running_worker, until
from support.rows.jobs import CLEAR_WITH_WORKERS

from queue_workflows.repositories import (
    HeartbeatRepository,
    IngestJobRepository,
    NewIngestJob,
    WorkerControlRepository,
)

MANY = 500
CREW = {"QWF_APP": "support.tasks.concurrent_tasks"}
# Its own threads, the loop's, and the one on which async code asks.
FEW_THREADS = 12


class Crowd:
    """The jobs of a test, and the ledger in which they write down that they are inside."""

    def __init__(self, dsn: str, connection: psycopg.Connection[Any], place: Path) -> None:
        self.dsn = dsn
        self.connection = connection
        self.jobs = IngestJobRepository(connection)
        self.ledger, self.go = place / "ledger", place / "go"

    def enqueue(self, task: str = "async many", count: int = MANY, **options: Any) -> list[int]:
        args = {"ledger": str(self.ledger), "until": str(self.go), **options.pop("args", {})}
        new = [NewIngestJob(task_name=task, queue="fetch", args=args, **options) for _ in range(count)]
        return [made.id for made in self.jobs.enqueue_many(new)]

    def begun(self) -> list[int]:
        return self._written("in")

    def ended(self) -> list[int]:
        return self._written("out")

    def until_begun(self, count: int) -> None:
        until(lambda: len(self.begun()) >= count)

    def columns(self, ids: list[int], *names: str) -> Counter[tuple[Any, ...]]:
        """How often each combination of these columns occurs."""
        asked = f"SELECT {', '.join(names)} FROM ingest_jobs WHERE id = ANY (%s)"
        return Counter(self.connection.execute(asked, [ids]).fetchall())

    def until_all(self, ids: list[int], status: str) -> None:
        until(lambda: self.columns(ids, "status") == {(status,): len(ids)})

    def _written(self, what: str) -> list[int]:
        lines = self.ledger.read_text().splitlines() if self.ledger.exists() else []
        return [int(line.split()[1]) for line in lines if line.startswith(f"{what} ")]


@pytest.fixture
def crowd(qwf_dsn: str, tmp_path: Path) -> Any:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        yield Crowd(qwf_dsn, connection, tmp_path)


def threads_of(worker: subprocess.Popen[str]) -> int:
    return len(list(Path(f"/proc/{worker.pid}/task").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted by /proc")
def test_hundreds_at_once_are_a_few_threads(crowd: Crowd) -> None:
    """All inside at one moment, on a loop of one thread; each has one result, of one attempt."""
    ids = crowd.enqueue()
    with running_worker(crowd.dsn, "--concurrency", str(MANY), "--drain", **CREW) as worker:
        crowd.until_begun(MANY)
        assert crowd.ended() == []
        assert threads_of(worker) <= FEW_THREADS
        crowd.go.touch()
        assert worker.wait(150) == 0
    assert sorted(crowd.begun()) == sorted(crowd.ended()) == sorted(ids)
    assert crowd.columns(ids, "status", "attempt", "result->>'attempt'") == {("completed", 1, "1"): MANY}


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted by /proc")
def test_only_sync_jobs_take_threads(crowd: Crowd) -> None:
    """Both kinds in one worker: never more than its number, as many threads as sync jobs, and none waits."""
    sync = crowd.enqueue("counted", 10)
    on_loop = crowd.enqueue("async many", 190)
    more = crowd.enqueue("async counted", 100, args={"s": 0}) + crowd.enqueue("counted", 100, args={"s": 0})
    with running_worker(crowd.dsn, "--concurrency", "200", "--drain", **CREW) as worker:
        crowd.until_begun(200)
        assert sorted(crowd.begun()) == sorted(sync + on_loop)
        assert threads_of(worker) <= FEW_THREADS + 10
        crowd.go.touch()
        assert worker.wait(150) == 0
    assert crowd.columns(sync + on_loop + more, "status", "attempt") == {("completed", 1): 400}


def test_each_is_cancelled(crowd: Crowd) -> None:
    """Its task alone: the siblings and the worker go on."""
    ids = crowd.enqueue()
    cancelled, siblings = ids[: MANY // 2], ids[MANY // 2 :]
    with running_worker(crowd.dsn, "--concurrency", str(MANY), QWF_CANCEL_GRACE_S="600", **CREW) as worker:
        crowd.until_begun(MANY)
        crowd.jobs.cancel_many(cancelled, actor="test")
        crowd.until_all(cancelled, "cancelled")
        assert crowd.columns(siblings, "status") == {("running",): len(siblings)}
        crowd.go.touch()
        crowd.until_all(siblings, "completed")
        assert worker.poll() is None
    assert sorted(crowd.ended()) == sorted(siblings)


def test_each_has_its_time_limit(crowd: Crowd) -> None:
    """A counted failure of each, of the same worker; the sibling with more time goes on."""
    (sibling,) = crowd.enqueue(count=1)
    ids = crowd.enqueue(timeout_s=3.0, max_attempts=1)
    most = str(MANY + 1)
    with running_worker(crowd.dsn, "--concurrency", most, QWF_CANCEL_GRACE_S="600", **CREW) as worker:
        crowd.until_all(ids, "failed")
        assert crowd.columns([sibling], "status") == {("running",): 1}
        assert worker.poll() is None
    kinds = crowd.columns(ids, "failures", "errors->-1->>'kind'", "crash_count")
    assert kinds == {(1, "wall_clock", 0): MANY}


@pytest.mark.slow
def test_a_stop_lets_all_finish(crowd: Crowd) -> None:
    """SIGTERM: nothing more is claimed, what runs ends as it would have, and the status is 0."""
    ids, waiting = crowd.enqueue(), crowd.enqueue(count=20)
    with running_worker(crowd.dsn, "--concurrency", str(MANY), **CREW) as worker:
        crowd.until_begun(MANY)
        worker.terminate()
        until(lambda: HeartbeatRepository(crowd.connection).list(state="stopping"))
        crowd.go.touch()
        assert worker.wait(150) == 0
    assert crowd.columns(ids, "status", "attempt") == {("completed", 1): MANY}
    assert crowd.columns(waiting, "status", "attempt") == {("queued", 0): 20}


@pytest.mark.slow
@pytest.mark.parametrize("task", ["async many", "async deaf"])
def test_a_second_stop_gives_all_back(crowd: Crowd, task: str) -> None:
    """At once, uncounted, also those that will not be cancelled."""
    ids = crowd.enqueue(task)
    with running_worker(crowd.dsn, "--concurrency", str(MANY), "--grace", "600", **CREW) as worker:
        crowd.until_begun(MANY)
        worker.send_signal(signal.SIGTERM)
        until(lambda: HeartbeatRepository(crowd.connection).list(state="stopping"))
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(150) == 143
    # The process may be gone before the server has read its last message.
    crowd.until_all(ids, "queued")
    given_back = crowd.columns(ids, "status", "failures", "crash_count", "suspect")
    assert given_back == {("queued", 0, 0, False): MANY}


@pytest.mark.slow
def test_off_gives_all_back_and_on_goes_on(crowd: Crowd) -> None:
    """Every task is cancelled, so the process need not end; each is begun once more."""
    ids, control = crowd.enqueue(), WorkerControlRepository(crowd.connection)
    with running_worker(crowd.dsn, "--concurrency", str(MANY), **CREW) as worker:
        crowd.until_begun(MANY)
        control.set("*", "fetch", "off", actor="test")
        crowd.until_all(ids, "queued")
        control.clear("*", "fetch", actor="test")
        crowd.until_all(ids, "completed")
        assert worker.poll() is None
    assert crowd.columns(ids, "attempt", "failures") == {(2, 0): MANY}


def steal(crowd: Crowd, ids: list[int]) -> None:
    """As a sweeper and another worker would, had the leases lapsed."""
    crowd.connection.execute(
        "UPDATE ingest_jobs SET attempt = attempt + 1, claimed_by = 'there:fetch:another',"
        " lease_expires_at = now() + interval '1 h' WHERE id = ANY (%s)",
        [ids],
    )


def test_a_lost_lease_costs_the_siblings_nothing(crowd: Crowd) -> None:
    """A lost job's task is cancelled, and nothing is written for it; the others go on in the same process."""
    ids = crowd.enqueue()
    lost, kept = ids[:100], ids[100:]
    with running_worker(crowd.dsn, "--concurrency", str(MANY + 1), **CREW) as worker:
        crowd.until_begun(MANY)
        steal(crowd, lost)
        # A worker that has let go of them has room for so many more.
        more = crowd.enqueue("async counted", 101, args={"until": str(crowd.go)})
        crowd.until_begun(MANY + 101)
        crowd.go.touch()
        crowd.until_all(kept + more, "completed")
        assert worker.poll() is None
    assert crowd.columns(lost, "status", "attempt", "claimed_by") == {
        ("running", 2, "there:fetch:another"): 100
    }
    assert set(crowd.ended()).isdisjoint(lost)


@pytest.mark.slow
def test_a_lost_job_that_will_not_be_cancelled_ends_the_process(crowd: Crowd) -> None:
    """Its siblings are given back, uncounted, and nothing is written for it."""
    siblings, (deaf,) = crowd.enqueue(), crowd.enqueue("async deaf", 1)
    with running_worker(crowd.dsn, "--concurrency", str(MANY + 1), **CREW) as worker:
        crowd.until_begun(MANY + 1)
        steal(crowd, [deaf])
        assert worker.wait(150) == 80
    crowd.until_all(siblings, "queued")
    assert crowd.columns(siblings, "status", "failures", "suspect") == {("queued", 0, False): MANY}
    assert crowd.columns([deaf], "status", "attempt") == {("running", 2): 1}


def test_one_that_blocks_the_loop_is_ended_and_blamed_alone(crowd: Crowd) -> None:
    """By its own time; siblings that could not go on meanwhile, whatever their times, are given back."""
    siblings = crowd.enqueue(timeout_s=600)
    with running_worker(
        crowd.dsn, "--concurrency", str(MANY + 1), QWF_CANCEL_GRACE_S="0.2", **CREW
    ) as worker:
        crowd.until_begun(MANY)
        (blocker,) = crowd.enqueue(
            "blocks the loop", 1, args={"begun": str(crowd.go.with_name("begun"))}, timeout_s=1.0
        )
        assert worker.wait(150) == 75
    crowd.until_all(siblings, "queued")
    assert crowd.columns([blocker], "status", "failures", "errors->-1->>'kind'") == {
        ("scheduled", 1, "wall_clock"): 1
    }
    assert crowd.columns(siblings, "status", "failures", "crash_count", "suspect") == {
        ("queued", 0, 0, False): MANY
    }


def test_each_begins_at_most_once(crowd: Crowd) -> None:
    """It is in the row that the function begins before it does, also for those on a loop."""
    ids = crowd.enqueue("async once", 60)
    with running_worker(crowd.dsn, "--concurrency", "60", "--drain", **CREW) as worker:
        assert worker.wait(150) == 0
    assert sorted(crowd.begun()) == sorted(ids)
    assert crowd.columns(ids, "status", "attempt", "begun_generation") == {("completed", 1, 1): 60}


@pytest.mark.slow
def test_what_one_says_is_stored_whatever_the_others_say(crowd: Crowd) -> None:
    """The progress of all of them in one statement, though the server will not have that of one."""
    ids, (huge,) = (
        crowd.enqueue("async progress", 50),
        crowd.enqueue("async progress", 1, args={"huge": True}),
    )
    with running_worker(crowd.dsn, "--concurrency", "60", **CREW):
        until(lambda: crowd.columns(ids, "progress->>'fraction'") == {("0.5",): 50})
        crowd.go.touch()
        until(lambda: set(crowd.columns([huge], "status")) <= {("completed",), ("failed",)})
    assert crowd.columns(ids, "status") == {("completed",): 50}


@pytest.mark.slow
def test_one_that_ends_the_turn_of_the_loop_stops_nobody(crowd: Crowd) -> None:
    """`loop.stop()` and SystemExit are that job's failure; the others go on, and more begin after them."""
    siblings, leaving = crowd.enqueue(count=100), crowd.enqueue("async leaves", 20, max_attempts=1)
    with running_worker(crowd.dsn, "--concurrency", "200", "--drain", **CREW) as worker:
        crowd.until_all(leaving, "failed")
        more = crowd.enqueue(count=20)
        crowd.until_begun(120)
        crowd.go.touch()
        assert worker.wait(150) == 0
    assert crowd.columns(siblings + more, "status", "attempt") == {("completed", 1): 120}
