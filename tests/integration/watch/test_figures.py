"""The database's figures: what they count, that they are read seldom, by index, and within a bound."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.workers import until
from support.rows.jobs import CLEAR_WITH_WORKERS, Jobs, ending
from support.rows.plans import explain
from support.rows.schemas import holding
from support.servers.statement_proxy import StatementProxy

from queue_workflows.db.connections.engine import Database
from queue_workflows.repositories import HeartbeatRepository, RunRepository
from queue_workflows.repositories.reports import metrics
from queue_workflows.repositories.retention import RetentionTimes
from queue_workflows.repositories.workers.hardware import HardwareRepository
from queue_workflows.roles.probes import figures as reading
from queue_workflows.roles.probes.figures import AWAY, FigureReader, read_figures
from queue_workflows.telemetry.exposition import exposed
from queue_workflows.telemetry.names import FIGURES

NAME = "reads-figures"


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS + "; TRUNCATE schedules, host_hardware")
        yield connection


def reader(dsn: str, every_s: float = 3600.0, **connecting: Any) -> FigureReader:
    return FigureReader(
        lambda: psycopg.connect(dsn, autocommit=True, application_name=NAME, **connecting),
        stale_s=30,
        every_s=every_s,
    )


def busy_place(conn: psycopg.Connection[Any]) -> None:
    """Something of everything."""
    ingest = Jobs("ingest", conn)
    ingest.enqueue(9)
    held = ingest.claim(limit=4)
    ingest.repository.end_many([ending(job, "completed") for job in held[:2]])
    ingest.repository.hold(held[2], "unknown_task", "draw", delay_s=600)
    conn.execute("UPDATE ingest_jobs SET run_at = now() - interval '90 s' WHERE status = 'queued'")
    HeartbeatRepository(conn).beat("a", host_label="h", queue="fetch", pid=7, state="busy")
    runs = RunRepository(conn)
    for status in ("queued", "running"):
        run_id = runs.insert("film", spec={}, spec_hash="h").id
        conn.execute("UPDATE workflow_runs SET status = %s WHERE id = %s", (status, run_id))
    for _ in range(2):
        held_run = runs.insert("film", spec={}, spec_hash="h").id
        conn.execute(
            "UPDATE workflow_runs SET capped_by = %s, hold_reason = 'open_runs' WHERE id = %s",
            (run_id, held_run),
        )
    conn.execute(
        "INSERT INTO workflow_dispatch_events (run_id, generation, attempt, kind, next_try_at, poisoned_at)"
        " SELECT %(run)s, 1, 0, 'expand', now() - make_interval(secs => lag),"
        " CASE WHEN poisoned THEN now() END"
        " FROM (VALUES (500, true), (70, false), (-500, false)) AS made (lag, poisoned)",
        {"run": run_id},
    )
    conn.execute(
        "INSERT INTO schedules (name, cron, task_name, queue, enabled, declared_by, next_tick_at, updated_at)"
        " SELECT name, '0 * * * *', 'task', 'fetch', enabled, app, now() - make_interval(secs => lag),"
        " now() - interval '200 s' FROM (VALUES ('late', true, NULL, 300), ('soon', true, NULL, -300),"
        " ('new', true, NULL, NULL), ('off', false, NULL, 300), ('forgotten', true, 'app', 900))"
        " AS made (name, enabled, app, lag)"
    )


def test_what_they_count(conn):
    """Each figure of the table, of a place where there is something of everything."""
    busy_place(conn)
    found = read_figures(conn, stale_s=30)
    points = {name: dict(values) for name, values in found.items()}
    assert {metric.name for metric in FIGURES} - set(found) == {"qwf.figures.duration"}
    fetch = {
        labels[2]: n for labels, n in points["qwf.queue.jobs"].items() if labels[:2] == ("ingest", "fetch")
    }
    assert fetch == {"queued": 5, "scheduled": 0, "held": 1, "awaiting_input": 0, "running": 1}
    assert points["qwf.queue.held"] == {("ingest", "fetch", "unknown_task"): 1}
    assert 90 <= points["qwf.queue.wait"]["ingest", "fetch"] < 900
    assert points["qwf.queue.ended"] == {("ingest", "fetch", "completed"): 2}
    assert points["qwf.queue.rate"]["ingest", "fetch"] > 0
    waited = "SELECT sum(extract(epoch FROM started_at - created_at))::float8 FROM ingest_jobs"
    ((waited_s,),) = conn.execute(f"{waited} WHERE finished_at IS NOT NULL").fetchall()
    assert points["qwf.queue.waited"] == {("ingest", "fetch", "queued"): pytest.approx(waited_s)}
    assert "qwf.queue.waited" not in read_figures(conn, stale_s=30, waits=False)
    assert points["qwf.workers"] == {("fetch", "busy"): 1, ("fetch", "silent"): 0}
    assert points["qwf.outbox.events"] == {("pending",): 2, ("poisoned",): 1}
    assert 70 <= points["qwf.outbox.lag"][()] < 400
    assert points["qwf.runs"] == {("queued",): 1, ("held",): 2, ("running",): 1}
    assert points["qwf.runs.poisoned"] == {(): 1}
    assert points["qwf.schedules"] == {("on",): 3, ("paused",): 1, ("late",): 2}
    assert 300 <= points["qwf.schedules.lag"][()] < 900


def test_how_far_retention_is_behind(conn):
    """By family, from what each row is kept for; what is not late is 0."""
    conn.execute("TRUNCATE retention_marks")
    busy_place(conn)
    lags = dict(read_figures(conn, stale_s=30)["qwf.retention.lag"])
    assert lags == {("ingest",): 0, ("node",): 0}
    over = "status = 'completed', finished_at = now() - interval '10 days', hold_reason = NULL"
    conn.execute(f"UPDATE workflow_runs SET {over}")
    conn.execute(f"UPDATE ingest_jobs SET {over}, hold_key = NULL, lease_expires_at = NULL, dedupe_key = id")
    kept = RetentionTimes(kept_s=8 * 86_400.0, ttl_s=86_400.0)
    lags = dict(read_figures(conn, stale_s=30, kept=kept)["qwf.retention.lag"])
    assert [round(lag / 86_400) for lag in lags.values()] == [2, 2]
    # Empty, so that they stay for their keys; and those are late now.
    conn.execute("UPDATE ingest_jobs SET args = '{}', result = NULL, progress = NULL, errors = '[]'")
    lags = dict(read_figures(conn, stale_s=30, kept=kept)["qwf.retention.lag"])
    assert {family: round(lag / 86_400) for (family,), lag in lags.items()} == {"node": 2, "ingest": 1}


def test_a_schema_from_before_retention_had_marks_has_all_other_figures(qwf_dsn):
    """What reads them may be newer than the schema."""
    with (
        Database.open(qwf_dsn, role="test", creates=False) as database,
        closing(database.connect(autocommit=True)) as connection,
        connection.transaction(force_rollback=True),
    ):
        connection.execute("DROP TABLE retention_marks")
        found = read_figures(connection, stale_s=30)
    assert {metric.name for metric in FIGURES} - set(found) == {"qwf.retention.lag", "qwf.figures.duration"}


def test_what_machines_are_at(conn):
    """Of those that somebody looks at; devices by their place, and slices by that of their card."""
    gib = 2**30
    machine = {"cpu_percent": 25.0, "cores": 8, "memory_total_mb": 4096, "memory_used_mb": 1024}
    card = {"id": "GPU-a", "vendor": "nvidia", "number": 0, "is_split": True}
    slices = [
        {"id": f"MIG-{n}", "vendor": "nvidia", "card": "GPU-a", "memory_used_mb": 1024} for n in range(2)
    ]
    other = {
        "id": "x",
        "vendor": "amd",
        "number": 1,
        "utilisation_percent": 50.0,
        "temperature_c": 60.0,
        "power_w": 9.5,
    }
    ours = {"ours": {"containers": 2, "cpu_percent": 10.0, "memory_mb": 512}, "rest": {}}
    rows = HardwareRepository(conn)
    for host, containers, devices in (
        ("h1", ours, [card, *slices, other]),
        ("h2", None, []),
        ("gone", None, [other]),
    ):
        rows.report(
            host, {"machine": machine, "containers": containers, "devices": devices}, every_s=5, parts=[]
        )
    conn.execute("UPDATE host_hardware SET sampled_at = now() - interval '1 h' WHERE host_label = 'gone'")
    found = {name: dict(values) for name, values in read_figures(conn, stale_s=30).items()}
    assert found["qwf.host.cpu"] == {("h1", "all"): 0.25, ("h1", "ours"): 0.1, ("h2", "all"): 0.25}
    assert found["qwf.host.memory"]["h1", "ours"] == gib / 2
    assert found["qwf.gpu.memory"] == {("h1", "nvidia0.0", "used"): gib, ("h1", "nvidia0.1", "used"): gib}
    assert found["qwf.gpu.utilization"] == {("h1", "amd1"): 0.5}
    assert (found["qwf.gpu.temperature"], found["qwf.gpu.power"]) == (
        {("h1", "amd1"): 60},
        {("h1", "amd1"): 9.5},
    )
    assert 'qwf_host_memory_bytes{host="h1",part="ours"}' in exposed(read_figures(conn, stale_s=30))


def test_names_are_escaped():
    """Whatever a queue is called."""
    text = exposed({"qwf.workers": [(('a"b\\c\nd', "idle"), 1)]})
    assert text.splitlines()[-1] == r'qwf_workers{queue="a\"b\\c\nd",state="idle"} 1.0'


def test_however_many_ask_one_reads(qwf_dsn, conn, monkeypatch):
    """The others wait for it, and get what it read; who asks within the span gets that too."""
    monkeypatch.setattr(reading, "STATEMENT_S", 300.0)
    monkeypatch.setattr(reading, "PATIENCE_S", 300.0)
    figures_of = reader(qwf_dsn)
    begun = threading.Barrier(5)

    def asked() -> Any:
        begun.wait(150)
        return figures_of.figures()

    def readers(state: str) -> int:
        sql = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name = %s AND wait_event_type = %s"
        )
        row = conn.execute(sql, (NAME, state)).fetchone()
        assert row is not None
        return int(row[0])

    with ThreadPoolExecutor(5) as pool, holding(qwf_dsn, "LOCK TABLE worker_heartbeats") as holder:
        answers = [pool.submit(asked) for _ in range(5)]
        until(lambda: readers("Lock") == 1)
        holder.rollback()
        first, *others = [answer.result(150) for answer in answers]
    assert all(other is first for other in others)
    assert figures_of.figures() is first
    assert first["qwf.database.up"] == [((), 1.0)]
    figures_of.close()
    assert figures_of.figures() == {}


def test_a_lost_connection_is_said_once_and_then_mended(qwf_dsn, conn, caplog):
    """The next one who asks after the span gets figures again."""
    figures_of = reader(qwf_dsn, every_s=0.0)
    assert figures_of.figures() is not AWAY
    conn.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = %s AND datname = current_database()",
        (NAME,),
    )
    assert figures_of.figures() is AWAY
    assert figures_of.figures()["qwf.database.up"] == [((), 1.0)]
    assert [record.levelname for record in caplog.records if "no figures" in record.message] == ["WARNING"]
    figures_of.close()


def test_a_statement_that_takes_long_is_cut(qwf_dsn, conn, monkeypatch):
    """A table that somebody keeps locked makes no scrape wait for ever."""
    monkeypatch.setattr(reading, "STATEMENT_S", 0.1)
    figures_of = reader(qwf_dsn)
    with holding(qwf_dsn, "LOCK TABLE worker_heartbeats"):
        assert figures_of.figures() is AWAY
    figures_of.close()


@pytest.mark.slow
def test_a_network_that_swallows_everything_holds_up_nobody_for_long(qwf_dsn, conn, monkeypatch):
    """Who asks meanwhile says so, and cuts the line of the one who waits for an answer."""
    monkeypatch.setattr(reading, "PATIENCE_S", 0.2)
    with StatementProxy(qwf_dsn) as proxy, ThreadPoolExecutor(1) as pool:
        figures_of = reader(proxy.dsn, every_s=0.0, connect_timeout=2)
        until(lambda: figures_of.figures() is not AWAY)
        proxy.swallow()
        waits = pool.submit(figures_of.figures)
        until(lambda: waits.done() or (figures_of.figures() is AWAY and waits.done()))
        assert waits.result(150) is AWAY
        proxy.recover()
        until(lambda: figures_of.figures() is not AWAY)
        figures_of.close()


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_they_are_read_by_index(conn, mode):
    """However many runs are over, and however many events wait."""
    conn.execute("SET session_replication_role = replica")
    conn.execute(
        "INSERT INTO workflow_runs (id, workflow_name, spec, spec_hash, status, finished_at)"
        " SELECT gen_random_uuid(), 'film', '{}', 'h', 'completed', now() FROM generate_series(1, 20000)"
    )
    conn.execute(
        "INSERT INTO workflow_dispatch_events (run_id, generation, attempt, kind)"
        " SELECT %s, 1, 0, 'expand' FROM generate_series(1, 20000)",
        (uuid.uuid4(),),
    )
    conn.execute("RESET session_replication_role")
    conn.execute("ANALYZE workflow_runs, workflow_dispatch_events")
    for sql in (metrics.PENDING, metrics.POISONED, metrics.RUNS):
        plan = explain(conn, mode, sql, {"most": 100})
        assert not [node for node in plan if node["Node Type"] == "Seq Scan"], sql
        assert sum(node.get("Actual Rows", 0) for node in plan if "Scan" in node["Node Type"]) < 500
