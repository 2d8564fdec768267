"""A worker that is far from its server claims further ahead, and promises of that what it promises of all.

The round trip takes a tenth of a second here, so that hundreds of short jobs are claimed and not begun at any
moment; how many is seen before anything is done to their worker.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.fleet.far_server import Distance
from support.processes.supervised import Supervised
from support.processes.workers import patiently, running_worker, until
from support.rows.claim_sessions import CLEAR_LIMITS, cap
from support.rows.jobs import CLEAR_WITH_WORKERS

from queue_workflows.repositories import (
    HeartbeatRepository,
    IngestJobRepository,
    NewIngestJob,
    WorkerControlRepository,
)
from queue_workflows.states import JobStatus

pytestmark = pytest.mark.slow

CREW = {"QWF_APP": "support.tasks.concurrent_tasks"}
FLOOD = 30_000
# A worker near its server never has so many: 400, and one for each of eight threads.
FAR = 409
ROUND_TRIP_S = 0.1


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """A connection in autocommit, empty tables and no limits."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(f"{CLEAR_WITH_WORKERS}; {CLEAR_LIMITS}")
        yield connection


@pytest.fixture
def far(qwf_dsn: str) -> Iterator[str]:
    """The database of the test, from far away."""
    with Distance(qwf_dsn, ROUND_TRIP_S) as link:
        yield link.dsn


def enqueue(conn: psycopg.Connection, task: str, count: int, **options: Any) -> list[int]:
    new = (NewIngestJob(task_name=task, queue="fetch", **options) for _ in range(count))
    return [made.id for made in IngestJobRepository(conn).enqueue_many(new)]


def counted(conn: psycopg.Connection) -> dict[str, int]:
    """How many jobs there are in each status."""
    return dict(conn.execute("SELECT status, count(*) FROM ingest_jobs GROUP BY 1").fetchall())


def claimed_far_ahead(conn: psycopg.Connection) -> bool:
    return counted(conn).get("running", 0) >= FAR


def ran(ledger: Path) -> list[int]:
    """The jobs that began, in their order."""
    return [int(line.split()[1]) for line in ledger.read_text().splitlines() if line.startswith("in ")]


def blame(conn: psycopg.Connection) -> set[tuple[int, int]]:
    """What counts against any job."""
    return set(conn.execute("SELECT DISTINCT failures, crash_count FROM ingest_jobs").fetchall())


def ended_or_back(conn: psycopg.Connection, ledger: Path) -> bool:
    """Each job has ended after it ran once, or never ran; whether some were given back."""
    assert counted(conn).keys() == {"completed", "queued"}
    completed = conn.execute("SELECT id FROM ingest_jobs WHERE status = 'completed'").fetchall()
    assert sorted(ran(ledger)) == sorted(job_id for (job_id,) in completed)
    assert blame(conn) == {(0, 0)}
    back = "SELECT count(*) FROM ingest_jobs WHERE status = 'queued' AND attempt > 0"
    return conn.execute(back).fetchone() != (0,)


def test_a_stop_gives_it_back(conn: psycopg.Connection, far: str, tmp_path: Path) -> None:
    """At once, in one statement: its worker ends with nothing in its hands, and nothing ran twice or half.

    Beside others a worker may be done with what it holds before it hears of its end, so it has a few tries.
    """
    ledger = tmp_path / "ledger"
    gave_back = False
    for _ in range(10):
        enqueue(conn, "counted", FLOOD, args={"ledger": str(ledger), "s": 0})
        with running_worker(far, **CREW) as worker:
            until(lambda: claimed_far_ahead(conn))
            worker.terminate()
            assert worker.wait(150) == 0
        gave_back = ended_or_back(conn, ledger)
        if gave_back:
            break
    assert gave_back


def test_a_pause_keeps_nothing_of_it(conn: psycopg.Connection, far: str, tmp_path: Path) -> None:
    """Its worker parks with nothing in its hands: what it had claimed has run, or others may have it."""
    ledger = tmp_path / "ledger"
    enqueue(conn, "counted", FLOOD, args={"ledger": str(ledger), "s": 0})
    with running_worker(far, **CREW) as worker:
        until(lambda: claimed_far_ahead(conn))
        WorkerControlRepository(conn).set("*", "fetch", "pause", actor="test")
        until(lambda: HeartbeatRepository(conn).list(state="paused"))
        ended_or_back(conn, ledger)
        assert worker.poll() is None


def test_a_kill_blames_nothing_that_never_began(conn: psycopg.Connection, far: str) -> None:
    """Its supervisor saw it die: at most one job a thread is a suspect, and all end elsewhere, uncounted."""
    ids = enqueue(conn, "noop", FLOOD)
    command = [sys.executable, "-m", "queue_workflows", "--app", CREW["QWF_APP"], "supervisor"]
    with Supervised([*command, "--worker", "fetch:1 --concurrency 8"], far) as supervisor:
        until(lambda: claimed_far_ahead(conn))
        (pid,) = {one.pid for one in HeartbeatRepository(conn).list()}
        os.kill(pid, signal.SIGKILL)
        patiently(lambda: counted(conn) == {"completed": FLOOD})
        assert supervisor.stop() == 0
    assert blame(conn) <= {(0, 0), (0, 1)}
    suspects, twice = conn.execute(
        "SELECT count(*) FILTER (WHERE suspect), count(*) FILTER (WHERE attempt > 1) FROM ingest_jobs"
    ).fetchone() or (0, 0)
    assert suspects <= 8 < twice <= len(ids)


def test_a_cancel_reaches_it(conn: psycopg.Connection, far: str, tmp_path: Path) -> None:
    """What waits behind slow jobs is given back, and then is cancelled without having begun."""
    ledger, go = tmp_path / "ledger", tmp_path / "go"
    enqueue(conn, "noop", 6_000)
    (*slow,) = enqueue(conn, "counted", 8, args={"ledger": str(ledger), "until": str(go)})
    behind = enqueue(conn, "counted", 4_000, args={"ledger": str(ledger), "s": 0})
    with running_worker(far, **CREW) as worker:
        until(lambda: ledger.exists() and len(ran(ledger)) == len(slow))
        told = IngestJobRepository(conn).cancel_many(behind)
        assert set(told) == set(behind)
        assert set(told.values()) <= {JobStatus.CANCELLED, JobStatus.RUNNING}
        until(lambda: counted(conn).get("cancelled") == len(behind))
        assert sorted(ran(ledger)) == sorted(slow)
        assert worker.poll() is None
        go.touch()
        until(lambda: counted(conn) == {"completed": 6_008, "cancelled": len(behind)})


def test_limits_hold_over_it(conn: psycopg.Connection, far: str, tmp_path: Path) -> None:
    """What is claimed ahead has its slot as what runs has: never more than the cap in both."""
    cap(conn, "k", 3)
    ledger = tmp_path / "ledger"
    for _ in range(20):
        enqueue(conn, "counted", 2, limit_key="k", args={"ledger": str(ledger), "s": 0.005})
        enqueue(conn, "noop", 500)
    with running_worker(far, "--drain", **CREW) as worker:
        assert worker.wait(150) == 0
    assert counted(conn) == {"completed": 20 * 502}
    inside = deepest = 0
    for line in ledger.read_text().splitlines():
        inside += 1 if line.startswith("in ") else -1
        deepest = max(deepest, inside)
    assert deepest <= 3


def test_a_higher_priority_waits_for_no_more_than_that(
    conn: psycopg.Connection, far: str, tmp_path: Path
) -> None:
    """It is first in the next claim, behind what was claimed before, which a setting bounds."""
    ledger, most = tmp_path / "ledger", 600
    enqueue(conn, "counted", FLOOD, args={"ledger": str(ledger), "s": 0})
    with running_worker(far, QWF_CLAIM_AHEAD=str(most), **CREW):
        until(lambda: claimed_far_ahead(conn))
        (urgent,) = enqueue(conn, "counted", 1, priority=9, args={"ledger": str(ledger), "s": 0})
        before = len(ran(ledger))
        until(lambda: urgent in ran(ledger))
    assert ran(ledger).index(urgent) - before <= most + 8
