"""Keyed limits with real workers, killed at any moment: never more inside than the cap, nothing lost."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from random import Random

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.workers import patiently, running_worker
from support.rows.claim_sessions import CLEAR_LIMITS, cap
from support.rows.jobs import CLEAR_WITH_WORKERS

from queue_workflows.repositories import IngestJobRepository, NewIngestJob

TASKS = {"QWF_APP": "support.tasks.limited_tasks", "QWF_LEASE_S": "2", "QWF_MAX_CRASHES": "1000"}


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """A connection in autocommit, empty tables, no limits, no rates."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(f"{CLEAR_WITH_WORKERS}; {CLEAR_LIMITS}, rate_limits")
        yield connection


def counted(conn: psycopg.Connection) -> dict[str, int]:
    """How many jobs there are in each status."""
    return dict(conn.execute("SELECT status, count(*) FROM ingest_jobs GROUP BY 1").fetchall())


def enqueue(conn: psycopg.Connection, place: Path, caps: dict[str, int], count: int, s: float) -> None:
    """So many jobs of each key in turn."""
    for key, most in caps.items():
        cap(conn, key, most)
    IngestJobRepository(conn).enqueue_many(
        NewIngestJob(
            task_name="inside",
            queue="fetch",
            limit_key=key,
            args={"place": str(place), "key": key, "cap": most, "s": s},
        )
        for _ in range(count)
        for key, most in caps.items()
    )


class Fleet:
    """Workers that are killed and replaced; also one that its dead man's timer ends on a busy machine."""

    def __init__(self, dsn: str, stack: ExitStack, count: int, *options: str, **settings: str) -> None:
        self._dsn, self._stack, self._options = dsn, stack, options
        self._settings = TASKS | settings
        self.workers: list[subprocess.Popen[str]] = []
        for _ in range(count):
            self.add()

    def add(self) -> None:
        running = running_worker(self._dsn, *self._options, **self._settings)
        self.workers.append(self._stack.enter_context(running))

    def at_work(self) -> bool:
        """As long as they are wanted they are there."""
        for gone in [worker for worker in self.workers if worker.poll() is not None]:
            self.workers.remove(gone)
            self.add()
        return True

    def kill_one(self, number: int) -> None:
        """All of its process group, in the middle of whatever it does."""
        killed = self.workers.pop(number)
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()


def test_a_killed_worker_and_no_more_than_the_cap(
    conn: psycopg.Connection, qwf_dsn: str, tmp_path: Path
) -> None:
    """Two work on keys of cap 1 and 2, one is killed while it is inside; the other does all that is left."""
    enqueue(conn, tmp_path, {"a": 1, "b": 2, "c": 1}, 12, 0.01)
    with ExitStack() as stack:
        fleet = Fleet(qwf_dsn, stack, 2)
        patiently(lambda: fleet.at_work() and counted(conn).get("completed", 0) >= 6)
        fleet.kill_one(0)
        patiently(lambda: fleet.at_work() and counted(conn) == {"completed": 36})
    assert not (tmp_path / "too-many").exists()


@pytest.mark.parametrize("concurrency", [pytest.param("1", marks=pytest.mark.slow), "8"])
def test_a_drain_leaves_no_lane(conn: psycopg.Connection, qwf_dsn: str, concurrency: str) -> None:
    """What waits in lanes for the worker's own jobs is work to be done, and the drain ends after it."""
    cap(conn, "one", 1)
    cap(conn, "few", 3)
    IngestJobRepository(conn).enqueue_many(
        NewIngestJob(task_name="quick", queue="fetch", limit_key=key)
        for _ in range(60)
        for key in ("one", "few", "free", None)
    )
    with running_worker(qwf_dsn, "--drain", "--concurrency", concurrency, **TASKS) as worker:
        assert worker.wait(300) == 0
    assert counted(conn) == {"completed": 240}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("seconds", "each"),
    [pytest.param(10, 40, marks=pytest.mark.slow), pytest.param(30, 90, marks=pytest.mark.nightly)],
)
def test_kills_for_a_while(
    conn: psycopg.Connection, qwf_dsn: str, tmp_path: Path, seconds: int, each: int
) -> None:
    """Four processes with eight threads each over fifty keys, one of them killed every few seconds.

    Some of the jobs wait for windows of three more keys, and some for tokens of a rate, in the same threads.
    """
    rng = Random(7)
    caps = {f"key{number}": 1 + number % 4 for number in range(50)}
    begun_at = time.time()
    enqueue(conn, tmp_path, caps, each, 0.02)
    enqueue_waiting(conn, tmp_path)
    with ExitStack() as stack:
        fleet = Fleet(qwf_dsn, stack, 4, "--concurrency", "8")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(rng.uniform(0.5, 4))
            fleet.kill_one(rng.randrange(4))
            fleet.add()
            for key in rng.sample(sorted(caps), 5):
                # Down and up again: what is set is never more than what the jobs check by.
                cap(conn, key, rng.randint(0, caps[key]))
        for key, most in caps.items():
            cap(conn, key, most)
        patiently(lambda: fleet.at_work() and set(counted(conn)) == {"completed"})
    assert not (tmp_path / "too-many").exists()
    assert counted(conn) == {"completed": 50 * each + WINDOWED + RATED}
    # Each token was taken between the beginning and its note, whoever was killed in between.
    taken = sorted(float(line) for line in (tmp_path / "rated").read_text().split())
    assert len(taken) >= RATED
    assert all(nth <= BURST + PER_S * (at - begun_at) + 1 for nth, at in enumerate(taken, start=1))


WINDOWED, RATED, PER_S, BURST = 200, 100, 5.0, 5


def enqueue_waiting(conn: psycopg.Connection, place: Path) -> None:
    """Jobs that wait within; of their own keys, so that they leave threads for others."""
    cap(conn, "windowed", 8)
    cap(conn, "rated", 4)
    windows = [{"place": str(place), "key": f"window{most}", "cap": most, "s": 0.02} for most in (1, 2, 3)]
    rate = {"place": str(place), "key": "rate", "per_s": PER_S, "burst": BURST}
    IngestJobRepository(conn).enqueue_many(
        [
            *(
                NewIngestJob(
                    task_name="inside window", queue="fetch", limit_key="windowed", args=windows[n % 3]
                )
                for n in range(WINDOWED)
            ),
            *(
                NewIngestJob(task_name="rated", queue="fetch", limit_key="rated", args=rate)
                for _ in range(RATED)
            ),
        ]
    )


@pytest.mark.slow
def test_a_killed_holders_slot_is_free_when_its_lease_is_over(
    conn: psycopg.Connection, qwf_dsn: str, tmp_path: Path
) -> None:
    """Not before, by the server's clock; and without a supervisor the other worker does it all by itself."""
    cap(conn, "k", 1)
    begun = tmp_path / "begun"
    jobs = IngestJobRepository(conn)
    holder = jobs.enqueue("deaf inside", queue="fetch", limit_key="k", args={"begun": str(begun)}).id
    with ExitStack() as stack:
        doomed = Fleet(qwf_dsn, stack, 1)
        patiently(lambda: doomed.at_work() and begun.exists())
        waiting = jobs.enqueue("quick", queue="fetch", limit_key="k", priority=9).id
        others = Fleet(qwf_dsn, stack, 1)
        patiently(lambda: others.at_work() and jobs.fetch(waiting).hold_reason == "limit_full")
        ((lapses_at,),) = conn.execute("SELECT lease_expires_at FROM limit_slots").fetchall()
        doomed.kill_one(0)
        # Else it is claimed again, and would hold the slot for ever.
        jobs.cancel(holder)
        patiently(lambda: others.at_work() and jobs.fetch(waiting).status == "completed")
    assert jobs.fetch(waiting).finished_at > lapses_at
    assert jobs.fetch(holder).status == "cancelled"


@pytest.mark.slow
def test_a_key_of_cap_one_goes_from_worker_to_worker(conn: psycopg.Connection, qwf_dsn: str) -> None:
    """Two that do not poll share it, and what one of them ends lets the next begin: none waits for a tick."""
    cap(conn, "k", 1)
    jobs = IngestJobRepository(conn)
    jobs.enqueue_many(NewIngestJob(task_name="quick", queue="fetch", limit_key="k") for _ in range(60))
    with ExitStack() as stack:
        fleet = Fleet(qwf_dsn, stack, 2, QWF_POLL_S="600")
        patiently(lambda: fleet.at_work() and counted(conn) == {"completed": 60})
    rows = conn.execute("SELECT started_at, finished_at FROM ingest_jobs ORDER BY started_at").fetchall()
    gaps = [(begun - ended).total_seconds() for (_, ended), (begun, _) in pairwise(rows)]
    assert statistics.median(gaps) < 0.4


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_may_not_run_costs_a_job_behind_it_nothing(conn: psycopg.Connection, qwf_dsn: str) -> None:
    """Full limits in their lanes and dates to come cost nothing, not even the first job behind them.

    The first behind queued jobs that nobody knows, or that came past their lanes, waits until they have been
    put aside, some thousand a statement; those after it wait for nothing again.
    """
    with ExitStack() as stack:
        fleet = Fleet(qwf_dsn, stack, 1)
        alone = [started_after(conn, fleet) for _ in range(20)]
        conn.execute("INSERT INTO concurrency_limits (key_pattern, max_slots) VALUES ('full*', 0)")
        store(
            conn, "'quick', 'full' || n % 9999, 'scheduled', 'limit_full', 'full' || n % 9999, now() + '9 y'"
        )
        store(conn, "'quick', NULL, 'scheduled', NULL, NULL, now() + interval '1 y'")
        behind = [started_after(conn, fleet) for _ in range(20)]
        store(conn, "'unknown' || n % 3, NULL, 'queued', NULL, NULL, now()", 50_000)
        store(conn, "'quick', 'full' || n % 10000, 'queued', NULL, NULL, now()", 50_000)
        first = started_after(conn, fleet)
        beside = [started_after(conn, fleet) for _ in range(20)]
    assert statistics.median(behind) < 3 * statistics.median(alone) + 0.05
    # A dozen statements for those that nobody knows, and one for each batch of full keys.
    assert first < 60
    assert statistics.median(beside) < 3 * statistics.median(alone) + 0.05


def store(conn: psycopg.Connection, row: str, rows: int = 250_000) -> None:
    """As many rows that may not run."""
    conn.execute(
        "INSERT INTO ingest_jobs (queue, task_name, limit_key, status, hold_reason, hold_key, run_at)"
        f" SELECT 'fetch', {row} FROM generate_series(1, {rows}) AS n"
    )


def started_after(conn: psycopg.Connection, fleet: Fleet) -> float:
    """How long a job of an idle worker waits."""
    jobs = IngestJobRepository(conn)
    time.sleep(0.1)
    job_id = jobs.enqueue("quick", queue="fetch").id
    patiently(lambda: fleet.at_work() and jobs.fetch(job_id).status == "completed")
    done = jobs.fetch(job_id)
    return (done.started_at - done.created_at).total_seconds()
