"""Spans and counts of real workers and orchestrators, whose host app has an OpenTelemetry SDK."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from support.apps.films_traced import FILMS
from support.connections.kept import own_connection
from support.processes.workers import worker_command, worker_environment
from support.rows.claimed_jobs import context, ingest_job
from support.rows.jobs import CLEAR_WITH_WORKERS, jobs_of
from support.stages.telemetry import Told, id_of, parent_of, sdk_here, trace_of
from support.stages.ticking import away_since, pass_once

from queue_workflows import NewIngestJob, enqueue_ingest_job, enqueue_many, start_run
from queue_workflows.db.connections.asking_connection import AskingConnection
from queue_workflows.engine.execution.callable import Work
from queue_workflows.engine.execution.executor import execute
from queue_workflows.engine.limits.wait_loop import Awaited, Wait
from queue_workflows.engine.operate.import_file import sending_on
from queue_workflows.engine.outcomes import Completed
from queue_workflows.engine.telemetry import insert_ticks, processing
from queue_workflows.engine.upkeep.tick import sweep
from queue_workflows.models import Schedule
from queue_workflows.repositories import IngestJobRepository, ScheduleRepository
from queue_workflows.repositories.jobs.enqueue import current_rows
from queue_workflows.repositories.schedules.ticks import Planned, Tick, TickRepository
from queue_workflows.settings import Settings
from queue_workflows.telemetry import names, spans
from queue_workflows.telemetry.harmless import _say
from queue_workflows.telemetry.instruments import OTHER, instruments

APP = {"QWF_APP": "support.apps.traced_app"}
FAMILY = {"messaging.destination.name": "fetch", "qwf.family": "ingest"}


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        yield connection


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(tmp_path / "told")


def run_app(dsn: str, told: Told, command: list[str], status: int = 0, **more: str) -> str:
    """One process of the host app to its end; what it said."""
    env = worker_environment(dsn, {**APP, "TRACED_TO": str(told.file), **more})
    ended = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert ended.returncode == status, ended.stderr
    return ended.stderr


def drain(dsn: str, told: Told, *options: str, status: int = 0, **more: str) -> str:
    return run_app(dsn, told, worker_command("--drain", *options), status=status, **more)


@contextmanager
def ordering(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A producer's own span, around what it enqueues; the ids of its trace and of itself."""
    with sdk_here(monkeypatch), trace.get_tracer("shop").start_as_current_span("order") as order:
        context = order.get_span_context()
        yield f"{context.trace_id:032x}-{context.span_id:016x}"


@pytest.mark.parametrize("concurrency", [pytest.param("1", marks=pytest.mark.slow), "8"])
def test_a_job_and_what_it_enqueues_are_one_trace(qwf_dsn, conn, told, monkeypatch, concurrency):
    """enqueue > process > enqueue > process: sync and async, each current within its job; and all counted."""
    with ordering(monkeypatch) as order:
        enqueue_ingest_job("nesting", queue="fetch", conn=conn)
        enqueue_ingest_job("wrong", queue="fetch", conn=conn)
    drain(qwf_dsn, told, "--concurrency", concurrency)
    rows = conn.execute("SELECT id, result, traceparent FROM ingest_jobs ORDER BY id").fetchall()
    chain = [told.span(f"{one}") for one in ("process nesting", "enqueue seen_async", "process seen_async")]
    outer, second, inner = chain
    assert {trace_of(span) for span in chain} == {order.partition("-")[0]}
    assert [span["kind"] for span in chain] == ["SpanKind.CONSUMER", "SpanKind.PRODUCER", "SpanKind.CONSUMER"]
    assert [parent_of(span) for span in chain] == [rows[0][2].split("-")[2], id_of(outer), id_of(second)]
    assert [result for _, result, _ in rows] == [id_of(outer), None, id_of(inner)]
    assert outer["attributes"] == {
        **FAMILY,
        "messaging.system": "queue_workflows",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.message.id": str(rows[0][0]),
        "qwf.task": "nesting",
        "qwf.attempt": 1,
        "qwf.worker": outer["attributes"]["qwf.worker"],
        "qwf.outcome": "completed",
    }
    wrong = told.span("process wrong")
    (event,) = wrong["events"]
    assert wrong["status"]["status_code"] == "ERROR"
    assert event["attributes"]["exception.type"].endswith("Discard")
    assert "cannot reach" in str(wrong)
    assert "hunter2" not in str(wrong)
    check_counts(told.points())


def check_counts(points: dict[str, list[tuple[dict[str, Any], float]]]) -> None:
    """Each was claimed, waited, ran and ended once; with the attributes of the table and no others."""

    def by_task(name: str) -> dict[str, float]:
        return {attributes["qwf.task"]: value for attributes, value in points[name]}

    each_once = {"nesting": 1, "wrong": 1, "seen_async": 1}
    assert by_task(names.CLAIMED) == by_task(names.WAIT_TIME) == by_task(names.RUN_TIME) == each_once
    ended = {attributes["qwf.outcome"]: value for attributes, value in points[names.ENDED]}
    assert ended == {"completed": 2, "failed": 1}
    assert points[names.IN_FLIGHT] == [(FAMILY, 0)]
    for one in names.INSTRUMENTS:
        for attributes, _ in points.get(one.name, []):
            assert set(attributes) == set(one.attributes), one.name


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_is_one_trace_down_to_its_children(qwf_dsn, conn, told, monkeypatch):
    """start > dispatch > process, and the child run's dispatch > process below the parent's."""
    with ordering(monkeypatch) as order:
        start_run(FILMS["film"], conn=conn)
    orchestrate = [sys.executable, "-m", "queue_workflows", "orchestrator", "--once"]
    work = [sys.executable, "-m", "queue_workflows", "worker", "--queue", "cpu", "--drain"]
    for command in (orchestrate, work, orchestrate, work, orchestrate):
        run_app(qwf_dsn, told, command)
    assert conn.execute("SELECT DISTINCT status FROM workflow_runs").fetchall() == [("completed",)]
    spans = {id_of(span): span for span in told.spans()}
    assert {trace_of(span) for span in spans.values()} == {order.partition("-")[0]}

    def path(span: dict[str, Any]) -> list[str]:
        above = spans.get(parent_of(span))
        return [*(path(above) if above else []), span["name"]]

    jobs = [span for span in spans.values() if span["name"] == "process note"]
    assert {span["attributes"]["qwf.node"]: path(span) for span in jobs} == {
        "plan": ["dispatch film", "process note"],
        "draw": ["dispatch film", "dispatch part", "process note"],
    }


@pytest.mark.parametrize("concurrency", ["1", pytest.param("8", marks=pytest.mark.slow)])
def test_a_job_that_is_cut_short_is_told_before_its_process_ends(qwf_dsn, conn, told, concurrency):
    """The guard's exit skips every `finally`; the span says what the guard found."""
    made = enqueue_ingest_job("stuck", queue="fetch", conn=conn, timeout_s=0.2)
    drain(qwf_dsn, told, "--concurrency", concurrency, status=75)
    span = told.span("process stuck")
    assert span["status"]["status_code"] == "ERROR"
    assert (span["attributes"]["messaging.message.id"], span["attributes"]["error.type"]) == (
        str(made.id),
        "wall_clock",
    )
    assert [(a["qwf.outcome"], n) for a, n in told.points()[names.ENDED]] == [("retried", 1)]


@pytest.mark.parametrize("family", ["ingest", "node"])
def test_what_a_tick_takes_back_is_counted_as_lost(qwf_dsn, monkeypatch, family):
    """By the queue, and not what runs on."""
    with jobs_of(family, qwf_dsn) as jobs, sdk_here(monkeypatch) as memory:
        jobs.enqueue(3)
        lost = [jobs.one().id for _ in range(3)][:2]
        jobs.lapse(*lost)
        assert sweep(jobs.connection, Settings(), recovered_s=None).reclaimed == 2
        expected = {
            "messaging.destination.name": jobs.queue,
            "qwf.family": family,
            "qwf.outcome": "lease_lost",
        }
        assert memory.points()[names.ENDED] == [(expected, 2)]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_worker_that_starts_afresh_tells_first_what_it_did(qwf_dsn, conn, told):
    """Its process is replaced without any exit; nothing it has not sent is lost with it."""
    for _ in range(2):
        enqueue_ingest_job("seen_async", queue="fetch", conn=conn)
    drain(qwf_dsn, told, "--concurrency", "1", "--recycle-jobs", "1")
    assert [span["name"] for span in told.spans()] == ["process seen_async"] * 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_exporters_that_hang_keep_no_worker_from_ending(qwf_dsn, conn, told):
    """Neither one that has drained its queue nor one whose guard ends it."""
    enqueue_ingest_job("seen_async", queue="fetch", conn=conn)
    assert "some telemetry" in drain(qwf_dsn, told, TRACED_HANGS="1")
    enqueue_ingest_job("stuck", queue="fetch", conn=conn, timeout_s=0.2)
    drain(qwf_dsn, told, status=75, TRACED_HANGS="1")


def test_a_worker_without_an_sdk_never_imports_opentelemetry(qwf_dsn, conn):
    """It runs a job, and neither the API nor an SDK has come into its process."""
    enqueue_ingest_job("modules", queue="fetch", conn=conn)
    code = (
        "import sys\n"
        "from queue_workflows import ingest_task\n"
        "from queue_workflows.cli.main import run\n"
        "@ingest_task('modules')\n"
        "def modules(reason):\n"
        "    return sorted(name for name in sys.modules if name.startswith('opentelemetry'))\n"
        "sys.exit(run(['worker', '--queue', 'fetch', '--drain']))\n"
    )
    env = worker_environment(qwf_dsn)
    env.pop("QWF_APP")
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=300)
    assert conn.execute("SELECT status, result FROM ingest_jobs").fetchall() == [("completed", [])]


def test_many_jobs_are_one_span(conn, monkeypatch):
    """All carry its context but those that bring their own; counted is what was new."""
    theirs = f"00-{1:032x}-{2:016x}-01"
    jobs = [
        NewIngestJob(task_name="a", queue="fetch"),
        NewIngestJob(task_name="b", queue="load", dedupe_key="k"),
        NewIngestJob(task_name="b", queue="load", dedupe_key="k"),
        NewIngestJob(task_name="b", queue="load", traceparent=theirs),
    ]
    with sdk_here(monkeypatch) as memory:
        enqueue_many(jobs, conn=conn)
        (span,) = memory.spans().values()
        assert (span.name, span.attributes["messaging.batch.message_count"]) == ("enqueue", 4)
        sent = {(a["messaging.destination.name"], a["qwf.task"]): n for a, n in memory.points()[names.SENT]}
    ours = f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"
    rows = conn.execute("SELECT traceparent FROM ingest_jobs ORDER BY id").fetchall()
    assert rows == [(ours,), (ours,), (theirs,)]
    assert sent == {("fetch", "a"): 1, ("load", "b"): 2}


def test_a_context_is_carried_on_without_an_sdk(conn):
    """The API alone, as behind a proxy that traces: what is current is stored, and nothing if nothing is."""
    current = trace.SpanContext(1, 2, is_remote=True, trace_flags=trace.TraceFlags(1))
    with trace.use_span(trace.NonRecordingSpan(current)):
        enqueue_ingest_job("a", queue="fetch", conn=conn)
    enqueue_ingest_job("a", queue="fetch", conn=conn)
    rows = conn.execute("SELECT traceparent FROM ingest_jobs ORDER BY id").fetchall()
    assert rows == [(f"00-{1:032x}-{2:016x}-01",), (None,)]


def test_the_state_of_vendors_goes_with_the_context(conn, monkeypatch):
    """From a row to the span that runs it; of too many, the oldest are left out."""
    entries = [(f"v{n}", "x" * 100) for n in range(9)]
    for state, kept in ((entries[:2], 2), (entries, 4), ([], 0)):
        current = trace.SpanContext(1, 2, True, trace.TraceFlags(1), trace.TraceState(state))
        with trace.use_span(trace.NonRecordingSpan(current)):
            job_id = enqueue_ingest_job("a", queue="fetch", conn=conn).id
        ((stored,),) = conn.execute("SELECT traceparent FROM ingest_jobs WHERE id = %s", [job_id])
        parent, _, said = stored.partition(" ")
        assert parent == f"00-{1:032x}-{2:016x}-01"
        assert said == ",".join(f"{name}={value}" for name, value in state[:kept])
        with sdk_here(monkeypatch) as memory:
            with spans.consuming("a", "fetch", "ingest", stored, {}):
                pass
            (span,) = memory.spans().values()
        assert (span.parent.trace_id, span.parent.span_id) == (1, 2)
        assert list(span.context.trace_state.items()) == state[:kept]
        NewIngestJob(task_name="a", queue="fetch", traceparent=stored)


def test_an_imported_batch_is_a_span(qwf_dsn, monkeypatch, conn):
    """As many jobs enqueued by one call are; a line may bring a context of its own."""
    theirs = f"00-{1:032x}-{2:016x}-01"
    rows = [
        current_rows().row(NewIngestJob(task_name="a", queue="fetch", dedupe_key=key, traceparent=context))
        for key, context in (("1", None), ("2", theirs), ("1", None))
    ]
    with sdk_here(monkeypatch) as memory, AskingConnection.connect(qwf_dsn, autocommit=True) as connection:
        sending_on(connection, IngestJobRepository(connection))(rows, lambda: None)
        (span,) = memory.spans().values()
        sent = [count for attributes, count in memory.points()[names.SENT] if attributes["qwf.task"] == "a"]
    assert (span.name, span.kind, span.attributes["messaging.batch.message_count"]) == (
        "enqueue",
        trace.SpanKind.PRODUCER,
        3,
    )
    stored = conn.execute("SELECT traceparent FROM ingest_jobs ORDER BY id").fetchall()
    assert stored == [(said_of(span),), (theirs,)]
    assert sent == [2]


def test_each_tick_is_a_span_of_its_own(qwf_dsn, conn, monkeypatch):
    """Of its own trace, though one statement inserts many; and only if this scheduler has inserted it."""
    conn.execute("TRUNCATE schedules")
    for name in ("one", "two"):
        ScheduleRepository(conn).upsert(
            name, cron="0 * * * *", task_name=f"tidy {name}", queue="load", catch_up="all", catch_up_cap=2
        )
        away_since(conn, name, timedelta(hours=5))
    with sdk_here(monkeypatch) as memory:
        pass_once(lambda: psycopg.connect(qwf_dsn, autocommit=True))
        told = memory.all_spans()
        before = TickRepository(conn)
        at = conn.execute("SELECT now()").fetchone()[0]
        stale = Schedule(name="one", task_name="tidy one", queue="load", updated_at=at, next_tick_at=at)
        assert insert_ticks(before, [Planned(stale, [Tick(at, at, "late", {"max_attempts": 1})], None)]) == []
        assert memory.all_spans() == told
    rows = conn.execute("SELECT task_name, traceparent FROM ingest_jobs ORDER BY id").fetchall()
    assert sorted(rows) == sorted((f"tidy {s.name.split()[-1]}", said_of(s)) for s in told)
    assert len(rows) == len({span.context.trace_id for span in told}) == 4
    assert {(span.kind, span.parent) for span in told} == {(trace.SpanKind.PRODUCER, None)}


def said_of(span: ReadableSpan) -> str:
    """The context of a span as a row carries it."""
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"


def test_what_a_job_waits_for_is_told(monkeypatch):
    """For a window of a limit, for a rate, and for a host lock."""
    with sdk_here(monkeypatch) as memory:
        job = ingest_job()
        ctx, observed = context(job), processing(job)
        ctx.observed = observed
        with observed:
            for what in Wait:
                with ctx.waiting(Awaited(what, ("key",))) as begin:
                    begin()
        points = memory.points()
    for name in (names.LIMIT_WAIT, names.RATE_SLEEP, names.LOCK_WAIT):
        assert [count for _, count in points[name]] == [1]


class Broken(SpanProcessor):
    """A host app's own, with a mistake in it."""

    def __init__(self, raises_in: str) -> None:
        self._raises_in = raises_in

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        if self._raises_in == "on_start":
            raise RuntimeError("on_start is broken")

    def on_end(self, span: ReadableSpan) -> None:
        if self._raises_in == "on_end":
            raise RuntimeError("on_end is broken")


@pytest.mark.parametrize("place", ["on_start", "on_end"])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_broken_span_processor_fails_nothing(conn, monkeypatch, caplog, place, is_async):
    """What it raises is said once; the jobs are enqueued, and run."""
    _say.cache_clear()
    provider = TracerProvider()
    provider.add_span_processor(Broken(place))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    for _ in range(2):
        enqueue_ingest_job("a", queue="fetch", conn=conn)
        job = ingest_job()
        work = Work("a", ran_async if is_async else (lambda job, ctx: "done"), is_async=is_async)
        assert execute(job, work, context(job)) == Completed('"done"')
    assert conn.execute("SELECT count(*) FROM ingest_jobs").fetchone() == (2,)
    assert trace.get_current_span() is trace.INVALID_SPAN
    said = [
        record.message for record in caplog.records if record.name.startswith("queue_workflows.telemetry")
    ]
    assert said in ([f"telemetry: RuntimeError: {place} is broken"], [])


async def ran_async(_job: Any, _ctx: Any) -> str:
    return "done"


def test_names_of_tasks_fill_no_store(conn, monkeypatch):
    """Beyond a bound they are counted together."""
    with sdk_here(monkeypatch) as memory:
        enqueue_many([NewIngestJob(task_name=f"t{n}", queue="fetch") for n in range(700)], conn=conn)
        sent = {attributes["qwf.task"]: count for attributes, count in memory.points()[names.SENT]}
        assert (len(sent), sent[OTHER], sum(sent.values())) == (501, 200, 700)
    assert instruments() is None
