"""Where a job's time went: of real workers, limits, pauses and kills, the causes are its whole life."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.processes.commands import qwf_here
from support.processes.workers import SHORT_LEASE, running_worker, until
from support.rows.claim_sessions import CLEAR_LIMITS, cap
from support.rows.jobs import CLEAR_WITH_WORKERS
from support.stages.ledger import Ledger

from queue_workflows.repositories import IngestJobRepository, NewIngestJob
from queue_workflows.repositories.workers.control import WorkerControlRepository

KEY = "host:x"
# As soon as a worker looks, which is nobody's pause and no hold.
AT_ONCE = ("queued", "unserved")
Part = tuple[str, str, str]


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """A connection in autocommit, empty tables, no limits."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(f"{CLEAR_WITH_WORKERS}; {CLEAR_LIMITS}")
        yield connection
        connection.execute(f"{CLEAR_WITH_WORKERS}; {CLEAR_LIMITS}")


def clock(conn: psycopg.Connection) -> datetime:
    ((now,),) = conn.execute("SELECT statement_timestamp()").fetchall()
    return now


def enqueue(conn: psycopg.Connection, task: str, **more: Any) -> int:
    (job,) = IngestJobRepository(conn).enqueue_many([NewIngestJob(task_name=task, queue="fetch", **more)])
    return job.id


def seen(conn: psycopg.Connection, job_id: int, column: str) -> Any:
    ((value,),) = conn.execute(f"SELECT {column} FROM ingest_jobs WHERE id = %s", [job_id]).fetchall()
    return value


def obeys(conn: psycopg.Connection) -> bool:
    """Whether the worker has seen the last change of what operators want."""
    sql = "SELECT control_version >= (SELECT version FROM worker_control_clock) FROM worker_heartbeats"
    return conn.execute(sql).fetchall() == [(True,)]


def past_of(dsn: str, conn: psycopg.Connection, job_id: int) -> dict[str, Any]:
    """What the command says of a job that is over, whose causes and work are its whole life."""
    past = json.loads(qwf_here("--db", dsn, "explain", f"ingest:{job_id}", "--past", "--json").stdout)["past"]
    life = seen(conn, job_id, "finished_at") - seen(conn, job_id, "created_at")
    spent = timedelta(seconds=past["worked_s"]) + sum(
        (timedelta(seconds=one["seconds"]) for one in past["causes"]), timedelta()
    )
    assert abs(spent - life) <= timedelta(microseconds=len(past["causes"]) + 1)
    assert past["waited_s"] + past["worked_s"] == pytest.approx(life.total_seconds())
    return past


def parts_of(past: dict[str, Any]) -> list[Part]:
    return [
        (one["kind"], one["hold_reason"], one["key"]) for one in past["parts"] if one["kind"] not in AT_ONCE
    ]


def test_pauses_a_limit_and_a_retry_are_the_whole_wait(
    conn: psycopg.Connection, qwf_dsn: str, tmp_path: Path
) -> None:
    """Each by whom or for which key; while a job is on hold nobody's pause is the cause. A queue's sums are
    those of its jobs.
    """
    ledger, control = Ledger(tmp_path), WorkerControlRepository(conn)
    cap(conn, KEY, 1)
    holding = {"ledger": str(tmp_path), "stuck": False, "gated": True}
    first = enqueue(conn, "recorded", limit_key=KEY, args=holding)
    with running_worker(qwf_dsn, "--concurrency", "2"):
        until(lambda: seen(conn, first, "status") == "running")
        control.set("*", "fetch", "pause", actor="ann")
        until(lambda: obeys(conn))
        job_id = enqueue(conn, "fails", limit_key=KEY, max_attempts=2, backoff_s=0.05)
        moments = [clock(conn)]
        control.clear("*", "fetch", actor="ann")
        until(lambda: seen(conn, job_id, "hold_reason") == "limit_full")
        moments.append(clock(conn))
        control.set("*", "fetch", "pause", actor="bob")
        until(lambda: obeys(conn))
        moments.append(clock(conn))
        ledger.open_gate(first, 1)
        until(lambda: seen(conn, job_id, "status") == "queued")
        moments.append(clock(conn))
        control.clear("*", "fetch", actor="bob")
        until(lambda: seen(conn, job_id, "status") == "failed")
    past = past_of(qwf_dsn, conn, job_id)
    assert parts_of(past) == [
        ("paused", "paused", "ann"),
        ("held", "limit_full", KEY),
        ("paused", "paused", "bob"),
        ("running", "", ""),
        ("retry", "", ""),
        ("running", "", ""),
    ]
    paused, held, again = [
        [datetime.fromisoformat(one[name]) for name in ("start", "end")]
        for one in past["parts"]
        if one["kind"] in ("paused", "held")
    ]
    assert paused[0] <= moments[0] <= paused[1] <= held[0] <= moments[1]
    assert moments[2] <= held[1] == again[0] <= moments[3] <= again[1]
    causes = {(one["kind"], one["key"]): one["seconds"] for one in past["causes"]}
    assert min(causes["tried", ""], past["worked_s"], causes["retry", ""]) > 0
    both = [past, past_of(qwf_dsn, conn, first)]
    (queue,) = json.loads(qwf_here("--db", qwf_dsn, "queue", "waits", "--json").stdout)["queues"]
    assert (queue["queue"], queue["jobs"], queue["is_about"]) == ("fetch", 2, False)
    assert queue["waited_s"] == pytest.approx(sum(one["waited_s"] for one in both))
    of_queue = {(one["kind"], one["key"]): (one["jobs"], one["seconds"]) for one in queue["causes"]}
    for cause in (("held", KEY), ("paused", "ann"), ("paused", "bob"), ("tried", ""), ("retry", "")):
        assert of_queue[cause] == (1, pytest.approx(causes[cause]))


def test_an_attempt_that_lost_its_worker_is_a_part_of_the_wait(
    conn: psycopg.Connection, qwf_dsn: str, tmp_path: Path
) -> None:
    """From its claim until it was taken back; what its row keeps of it is not the next attempt's."""
    args = {"ledger": str(tmp_path), "stuck": False, "gated": True}
    with running_worker(qwf_dsn, **SHORT_LEASE) as worker:
        job_id = enqueue(conn, "recorded", args=args)
        until(lambda: seen(conn, job_id, "status") == "running", within_s=60)
        claimed_at = seen(conn, job_id, "started_at")
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
        Ledger(tmp_path).open_gate(job_id, 2)
    with running_worker(qwf_dsn, **SHORT_LEASE):
        until(lambda: seen(conn, job_id, "status") == "completed")
    past = past_of(qwf_dsn, conn, job_id)
    lost, done = [one for one in past["parts"] if one["kind"] == "running"]
    assert parts_of(past) == [("running", "", "")] * 2
    assert datetime.fromisoformat(lost["start"]) == claimed_at
    assert datetime.fromisoformat(lost["end"]) <= datetime.fromisoformat(done["start"])
    (tried,) = [one["seconds"] for one in past["causes"] if one["kind"] == "tried"]
    lasted = datetime.fromisoformat(lost["end"]) - claimed_at
    assert (lasted, seen(conn, job_id, "errors")[0]["kind"]) == (timedelta(seconds=tried), "worker_lost")
