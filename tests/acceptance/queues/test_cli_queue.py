"""`qwf queue stats`: what waits, runs and ended, who works there, at a cost that does not grow."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.commands import qwf_here
from support.rows.jobs import CLEAR_WITH_WORKERS, Jobs, ending
from support.rows.plans import explain
from support.rows.schemas import start_qwf

from queue_workflows.repositories import HeartbeatRepository, WorkerControlRepository
from queue_workflows.repositories.reports import queue_statistics
from queue_workflows.repositories.reports.queue_statistics import Lane, StatisticsRepository


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        yield connection


def stats(dsn: str, *options: str) -> dict[str, dict[str, Any]]:
    told = json.loads(qwf_here("--db", dsn, "queue", "stats", "--json", *options).stdout)
    return {one["queue"]: one for one in told["queues"]}


def beat(conn: psycopg.Connection, worker: str, queue: str = "fetch", **more: Any) -> None:
    HeartbeatRepository(conn).beat(
        worker, **{"host_label": "h1", "queue": queue, "pid": 7, "state": "idle"} | more
    )


def busy_place(conn: psycopg.Connection) -> None:
    """Both families, in every status."""
    ingest, node = Jobs("ingest", conn), Jobs("node", conn)
    ingest.enqueue(9)
    held = ingest.claim(limit=6)
    ingest.repository.end_many([ending(job, "completed") for job in held[:2]])
    ingest.repository.end(ending(held[2], "failed", error={"kind": "x", "message": "y"}, counts=True))
    ingest.repository.hold(held[3], "unknown_task", "draw", delay_s=600)
    ingest.repository.end(ending(held[4], "scheduled", delay_s=600.0))
    ingest.enqueue(2, queue="load", priorities=(7, 3))
    node.enqueue()
    node.repository.mark_awaiting_input(node.one().id)
    conn.execute(
        "UPDATE ingest_jobs SET run_at = now() - interval '90 s' WHERE queue = 'load' AND priority = 3"
    )
    beat(conn, "a", state="busy")
    beat(conn, "b", state="paused")
    beat(conn, "gone")
    beat(conn, "other", queue="gpu")
    conn.execute(
        "UPDATE worker_heartbeats SET last_seen = now() - interval '10 min' WHERE worker_id = 'gone'"
    )
    WorkerControlRepository(conn).set("*", "fetch", "pause", actor="ann", reason="deploy")


def test_each_queue_with_all_that_is_on_it(qwf_dsn, conn):
    """Of both families, and queues where only a worker waits."""
    busy_place(conn)
    found = stats(qwf_dsn)
    assert list(found) == ["cpu", "fetch", "gpu", "load"]
    fetch = found["fetch"]
    assert (fetch["family"], fetch["queued"], fetch["scheduled"], fetch["running"]) == ("ingest", 3, 1, 1)
    assert fetch["held"] == {"unknown_task": 1}
    assert fetch["finished"] == {"completed": 2, "failed": 1}
    assert fetch["per_minute"]["5m"] == pytest.approx(0.6)
    assert (fetch["workers"], fetch["silent_workers"]) == ({"busy": 1, "paused": 1}, 1)
    assert [(wish["desired"], wish["actor"]) for wish in fetch["wishes"]] == [("pause", "ann")]
    assert (found["cpu"]["family"], found["cpu"]["awaiting_input"]) == ("node", 1)
    assert 90 <= found["load"]["oldest_queued_s"] < 900
    assert found["gpu"]["workers"] == {"idle": 1}
    assert all(one["at_least"] == [] for one in found.values())
    assert list(stats(qwf_dsn, "--queue", "load")) == ["load"]


def test_the_table_says_the_same(qwf_dsn, conn):
    """A line a queue, and who paused it."""
    busy_place(conn)
    said = qwf_here("--db", qwf_dsn, "queue", "stats").stdout.splitlines()
    assert said[2].split()[:3] == ["fetch", "ingest", "3"]
    assert "1 unknown_task" in said[2]
    assert said[2].endswith("1 busy, 1 paused, 1 silent")
    assert said[-1] == "(*, fetch) is paused by ann: deploy"
    conn.execute(CLEAR_WITH_WORKERS)
    assert qwf_here("--db", qwf_dsn, "queue", "stats").stderr.startswith("nothing waits, runs or ended")


def test_counts_stop_at_their_bound(conn):
    """And say so; a rate is then that of the part that was seen."""
    ingest = Jobs("ingest", conn)
    ingest.enqueue(8)
    ingest.repository.end_many([ending(job, "completed") for job in ingest.claim(limit=4)])
    conn.execute("UPDATE ingest_jobs SET finished_at = now() - interval '30 s' WHERE finished_at IS NOT NULL")
    (one,) = StatisticsRepository(conn).read(stale_s=30, most=3).queues
    assert (one.queued, one.finished.total(), one.at_least) == (3, 3, {"queued", "finished"})
    assert 3.0 < one.per_minute["1m"] <= 6.0
    (whole,) = StatisticsRepository(conn).read(stale_s=30).queues
    assert (whole.queued, whole.finished.total(), whole.at_least) == (4, 4, set())


def test_lanes_are_seen_behind_any_number_of_other_rows(conn):
    """Of each key how many wait on this queue, the longest first, and no more than are counted."""
    conn.execute(
        "INSERT INTO ingest_jobs (task_name, queue, status, run_at)"
        " SELECT 'task', 'other', 'scheduled', now() + interval '1 h' FROM generate_series(1, 12000)"
    )
    conn.execute(
        "INSERT INTO ingest_jobs (task_name, queue, status, limit_key, hold_reason, hold_key, run_at)"
        " SELECT 'task', queue, 'scheduled', key, 'limit_full', key, now() + interval '100 y'"
        " FROM (VALUES ('fetch', 'a', 2), ('fetch', 'b', 1200), ('x', 'c', 3)) AS lane (queue, key, jobs),"
        " generate_series(1, jobs)"
    )
    assert StatisticsRepository(conn).lanes("fetch") == [Lane("b", 1_000, True), Lane("a", 2, False)]


# What the statement of lanes takes besides.
OF_LANES = {"queue": "fetch", "keys": 200, "shown": 20}


@pytest.mark.parametrize(
    ("sql", "index"),
    [
        (queue_statistics.QUEUED["ingest"], "ix_ingest_jobs_claim"),
        (queue_statistics.RUNNING["ingest"], "ix_ingest_jobs_running"),
        (queue_statistics.SCHEDULED["ingest"], "ix_ingest_jobs_due"),
        (queue_statistics.FINISHED["ingest"], "ix_ingest_jobs_finished"),
        (queue_statistics.LANES["ingest"], "ix_ingest_jobs_hold"),
    ],
)
def test_what_is_over_costs_nothing(conn, sql, index):
    """With 50,000 old rows no statement reads the table as a whole."""
    conn.execute("ALTER TABLE ingest_jobs SET (autovacuum_enabled = off)")
    conn.execute(
        "INSERT INTO ingest_jobs (task_name, queue, status, claimed_by, attempt, finished_at)"
        " SELECT 'task', 'fetch', 'completed', 'w', 1, now() - interval '1 y' FROM generate_series(1, 50000)"
    )
    conn.execute(
        "INSERT INTO ingest_jobs (task_name, queue, status, run_at)"
        " SELECT 'task', 'fetch', 'scheduled', now() + interval '1 h' FROM generate_series(1, 100)"
    )
    Jobs("ingest", conn).enqueue(100)
    conn.execute("ANALYZE ingest_jobs")
    plan = explain(conn, "force_custom_plan", sql, {"most": 100_000, "window_s": 3600.0} | OF_LANES)
    assert index in [node.get("Index Name") for node in plan]
    assert "Seq Scan" not in [
        node["Node Type"] for node in plan if node.get("Relation Name") == "ingest_jobs"
    ]
    conn.execute("ALTER TABLE ingest_jobs RESET (autovacuum_enabled)")


def test_a_queue_is_paused_and_resumed(qwf_dsn, conn):
    """A pause of `*` and the queue, with all that goes with it."""

    def said(*arguments: str) -> str:
        return qwf_here("--db", qwf_dsn, "queue", *arguments).stdout

    assert said("pause", "fetch", "--reason", "deploy", "--actor", "ann", "--for", "1h").startswith(
        "(*, fetch) is paused by ann until "
    )
    Jobs("ingest", conn).enqueue()
    assert "(*, fetch) is paused by ann until " in said("stats")
    (wish,) = WorkerControlRepository(conn).list()
    assert (wish.host_label, wish.queue, wish.desired, wish.reason) == ("*", "fetch", "pause", "deploy")
    assert said("resume", "fetch") == "(*, fetch) is on\n"
    assert WorkerControlRepository(conn).list() == []


def test_a_queue_that_nobody_knows(qwf_dsn, conn):
    """The wish is stored, for workers of another configuration, but a slip is pointed at."""

    def said(queue: str) -> str:
        return qwf_here("--db", qwf_dsn, "queue", "pause", queue).stderr

    slip = "there is no queue 'fech' that this configuration or any worker knows: is it spelled so?\n"
    assert slip in said("fech")
    assert all("there is no queue" not in said(queue) for queue in ("fetch", "cpu", "*"))
    beat(conn, "w", queue="fech")
    assert slip not in said("fech")
    assert [wish.queue for wish in WorkerControlRepository(conn).list(queue="fech")] == ["fech"]


def test_watching_ends_with_ctrl_c(qwf_dsn, conn):
    """A line of JSON each time; quietly, with the status for it."""
    Jobs("ingest", conn).enqueue(2)
    process = start_qwf("queue", "stats", "--watch", "--json", "--every", "0.1s", QWF_DB_URL=qwf_dsn)
    assert process.stdout
    seen = [json.loads(process.stdout.readline()) for _ in range(3)]
    assert [one["queues"][0]["queued"] for one in seen] == [2, 2, 2]
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=150)
    assert (process.returncode, said) == (130, "qwf: interrupted\n")


def test_a_watched_table_ends_with_the_time_in_utc(qwf_dsn, conn, monkeypatch):
    """Whatever the time zone of the session."""

    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv("PGTZ", "Asia/Kathmandu")
    monkeypatch.setattr("queue_workflows.cli.queues.stats.time", SimpleNamespace(sleep=interrupted))
    ((before,),) = conn.execute("SELECT date_trunc('second', clock_timestamp())")
    told = qwf_here("--db", qwf_dsn, "queue", "stats", "--watch", status=130).stdout.strip()
    late = datetime.fromisoformat(f"{before.astimezone(UTC):%Y-%m-%d}T{told}") - before
    assert late % timedelta(days=1) < timedelta(hours=1)


def test_whoever_watches_may_go_away(qwf_dsn, conn):
    """`| head -1`."""
    process = start_qwf("queue", "stats", "--watch", "--every", "0.05s", QWF_DB_URL=qwf_dsn)
    assert process.stdout
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(150) == 141


@pytest.mark.parametrize("options", [("--every", "0"), ("--since", "x"), ("--every", "inf")])
def test_a_wrong_command_line_is_2(qwf_dsn, options):
    """One line."""
    said = qwf_here("--db", qwf_dsn, "queue", "stats", *options, status=2)
    assert (said.stdout, said.stderr.count("\n")) == ("", 1)


def test_a_run_of_too_many_at_once_is_a_mistake_of_the_command_line(qwf_dsn: str) -> None:
    """As for a worker, and before one is started."""
    said = qwf_here("--db", qwf_dsn, "queue", "run", "fetch", "--concurrency", "2001", status=2)
    assert "1<=x<=2000" in said.stderr


def test_next_shows_the_line_of_a_queue(conn: psycopg.Connection, qwf_dsn: str) -> None:
    """A line a job in the claim's order with what takes it, and what was asked of the workers."""
    low, high = Jobs("ingest", conn).enqueue(priorities=(2, 7))
    beat(conn, "w1")
    lines = qwf_here("--db", qwf_dsn, "queue", "next", "fetch").stdout.splitlines()
    assert lines[0].split() == ["JOB", "WHAT", "PRIORITY", "QUEUED", "NEXT"]
    assert [line.split()[:3] for line in lines[1:]] == [
        [f"ingest:{high}", "task", "7"],
        [f"ingest:{low}", "task", "2"],
    ]
    assert [line.split("Z  ")[1] for line in lines[1:]] == ["w1 takes it"] * 2
    told = json.loads(qwf_here("--db", qwf_dsn, "queue", "next", "fetch", "--limit", "1", "--json").stdout)
    assert [(one["job"], one["meets"]) for one in told["jobs"]] == [(f"ingest:{high}", "free_worker")]
    WorkerControlRepository(conn).set("*", "fetch", "pause", actor="ann", reason="new disk")
    paused = qwf_here("--db", qwf_dsn, "queue", "next", "fetch").stdout.splitlines()
    assert paused[-1] == "(*, fetch) is paused by ann: new disk"
    assert qwf_here("--db", qwf_dsn, "queue", "next", "load").stderr == "nothing is queued on load\n"
    wrong = qwf_here("--db", qwf_dsn, "queue", "next", "a b", status=2).stderr
    assert (wrong.count("\n"), "'a b' is no queue name" in wrong) == (1, True)
