"""A Postgres that is killed under load and started again: nobody has to do anything, and nothing is lost.

What was committed is there, what was finished stays finished, and no job is blamed for what the outage did.
Workers go on as they are; one whose lease ran out meanwhile was ended by its timer, and its supervisor has
started another.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path

import psutil
import psycopg
import pytest
from support.processes.supervised import Supervised
from support.processes.workers import until
from support.servers.cluster import Cluster
from support.stages.floor import Floor
from support.stages.ledger import Ledger

from queue_workflows.db import bootstrap
from queue_workflows.repositories import (
    HeartbeatRepository,
    IngestJobRepository,
    NewIngestJob,
    enqueue_many,
)

WORKERS = 2
LOAD = 150
NOT_OVER = "SELECT count(*) FROM ingest_jobs WHERE status <> 'completed'"
COMPLETED = "SELECT id, attempt FROM ingest_jobs WHERE status = 'completed'"

NAP_S = 0.1
NAPS = [NewIngestJob(task_name="wait", queue="fetch", args={"s": NAP_S})] * 4000
BACK_WITHIN_S = 30
# The most jobs that were finished in any five seconds between two moments.
PEAK = """
SELECT COALESCE(max(done), 0) FROM (
    SELECT count(*) AS done
    FROM generate_series(
        %(since)s::timestamptz + interval '5 s', %(until)s::timestamptz, interval '250 ms'
    ) AS ending
    JOIN ingest_jobs ON finished_at > ending - interval '5 s' AND finished_at <= ending
    GROUP BY ending
) AS windows
"""
AT_WORK = "SELECT count(DISTINCT claimed_by) FROM ingest_jobs"
NOW = "SELECT clock_timestamp()"


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A migrated server of the test's own."""
    with Cluster.primary() as cluster:
        bootstrap(cluster.dsn())
        yield cluster


class Producer(threading.Thread):
    """Enqueues through whatever happens to the server, and remembers what it was promised."""

    def __init__(self, floor: Floor) -> None:
        super().__init__(daemon=True)
        self.promised: list[int] = []
        self.is_over = threading.Event()
        self._floor = floor
        self.start()

    def run(self) -> None:
        while not self.is_over.is_set():
            try:
                with psycopg.connect(self._floor.dsn, autocommit=True) as connection:
                    while not self.is_over.wait(0.005):
                        job = self._floor.enqueue(through=IngestJobRepository(connection))
                        self.promised.append(job)
            except psycopg.Error:
                self.is_over.wait(0.05)

    def stop(self) -> list[int]:
        self.is_over.set()
        self.join(150)
        return self.promised


def floor_of(connection: psycopg.Connection, cluster: Cluster, directory: Path) -> Floor:
    return Floor(cluster.dsn(), connection, Ledger(directory))


def completed(connection: psycopg.Connection) -> dict[int, int]:
    return dict(connection.execute(COMPLETED).fetchall())


def killed_and_started(cluster: Cluster) -> psycopg.Connection:
    """`-m immediate` is what kill -9 is to a server: what is not in the log is gone."""
    cluster.stop("immediate")
    cluster.start()
    return cluster.connect()


def now(connection: psycopg.Connection) -> datetime:
    return connection.execute(NOW).fetchone()[0]


def peak(connection: psycopg.Connection, since: datetime, until: datetime) -> int:
    return connection.execute(PEAK, {"since": since, "until": until}).fetchone()[0]


def peak_for(connection: psycopg.Connection, seconds: float, enough: float = math.inf) -> int:
    """The most in any five seconds from now on; it looks for so long, or until that is enough."""
    since = now(connection)
    end = since + timedelta(seconds=seconds)
    until(
        lambda: (moment := now(connection)) > end or peak(connection, since, moment) >= enough,
        within_s=seconds * 4,
    )
    return peak(connection, since, min(now(connection), end))


@pytest.mark.slow
def test_under_load(cluster: Cluster, tmp_path: Path) -> None:
    """Two producers and two workers meet a restart: all that was promised is done, nothing is blamed."""
    with ExitStack() as stack:
        before = stack.enter_context(cluster.connect())
        floor = floor_of(before, cluster, tmp_path)
        workers = [stack.enter_context(floor.worker()) for _ in range(WORKERS)]
        # One that is still starting is told 69, and is its service manager's to start again.
        until(lambda: len(HeartbeatRepository(before).list(state="idle")) == WORKERS)
        producers = [Producer(floor) for _ in range(2)]
        until(lambda: len(completed(before)) >= LOAD)
        done_before = completed(before)
        after = stack.enter_context(killed_and_started(cluster))
        up_at = time.monotonic()
        survived = completed(after)
        assert done_before.items() <= survived.items()
        until(lambda: len(completed(after)) > len(survived))
        print(f"the first job was done {time.monotonic() - up_at:.2f} s after the server was back")
        until(lambda: len(completed(after)) >= len(survived) + LOAD)
        promised = {job for producer in producers for job in producer.stop()}
        until(lambda: after.execute(NOT_OVER).fetchone() == (0,))
        ended = [worker for worker in workers if worker.poll() is not None]
        assert [worker.stderr.read() for worker in ended if worker.stderr] == []
        rows = {row["id"]: row for row in Floor(floor.dsn, after, floor.ledger).jobs.rows()}
    assert promised <= rows.keys()
    assert {(row["crash_count"], row["failures"], row["suspect"]) for row in rows.values()} == {(0, 0, False)}
    assert all(row["result"]["attempt"] == row["attempt"] for row in rows.values())
    assert {each.job_id for each in floor.ledger.begun()} == rows.keys()


@pytest.mark.timed
@pytest.mark.slow
def test_longer_than_a_lease(cluster: Cluster, tmp_path: Path) -> None:
    """Who held a job is ended by its timer and replaced; the job runs again, and is not blamed."""
    command = [sys.executable, "-m", "queue_workflows", "--app", "support.tasks.worker_tasks", "supervisor"]
    with ExitStack() as stack:
        before = stack.enter_context(cluster.connect())
        floor = floor_of(before, cluster, tmp_path)
        job = floor.enqueue(gated=True)
        floor.ledger.open_gate(job, 2)
        env = {"QWF_LEASE_S": "5", "QWF_RENEW_S": "0.5"}
        stack.enter_context(Supervised([*command, "--worker", "fetch"], floor.dsn, env=env))
        holder = psutil.Process(floor.until_begun(job, 1))
        before.execute("CHECKPOINT")  # a claim need not be on disk, and this one shall be
        cluster.stop("immediate")
        until(lambda: not holder.is_running())
        cluster.start()
        after = Floor(floor.dsn, stack.enter_context(cluster.connect()), floor.ledger)
        after.until_completed(job)
        assert after.jobs.seen(job, "attempt", "crash_count", "failures") == (2, 0, 0)
        assert [entry["counted"] for entry in after.jobs.row(job)["errors"]] == [False]


@pytest.mark.timed
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_as_quick_as_before(cluster: Cluster, tmp_path: Path) -> None:
    """Half a minute after the server is back, as many jobs are done as before it was killed.

    The jobs nap, so that the machine's other work decides little; where it did, there is another outage.
    """
    with ExitStack() as stack:
        before = stack.enter_context(cluster.connect())
        floor = floor_of(before, cluster, tmp_path)
        enqueue_many(NAPS, conn=before)
        workers = [stack.enter_context(floor.worker()) for _ in range(WORKERS)]
        until(lambda: before.execute(AT_WORK).fetchone() == (WORKERS,))
        usual = reached = 0
        for _ in range(3):
            usual = max(usual, peak_for(before, 8))
            before = stack.enter_context(killed_and_started(cluster))
            reached = peak_for(before, BACK_WITHIN_S, 0.95 * usual)
            print(f"in five seconds: {usual} jobs, and {reached} after the outage")
            if reached >= 0.95 * usual:
                break
        assert usual > 0
        assert reached >= 0.95 * usual
        assert [worker.poll() for worker in workers] == [None] * WORKERS
