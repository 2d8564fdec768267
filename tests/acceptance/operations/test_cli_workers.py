"""`qwf workers` over real workers: what an operator asks is done, shown, written down, and taken back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.commands import Said, qwf_here
from support.processes.workers import running_worker, until
from support.rows.jobs import CLEAR_WITH_WORKERS
from support.rows.schemas import start_qwf

from queue_workflows.repositories import HeartbeatRepository, IngestJobRepository, WorkerControlRepository
from queue_workflows.states import WorkerState

PATIENCE_S = 150


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        yield connection


@pytest.fixture
def jobs(conn: psycopg.Connection) -> IngestJobRepository:
    return IngestJobRepository(conn)


def workers(dsn: str, *arguments: str, status: int = 0) -> Said:
    """A command, run in this process."""
    return qwf_here("--db", dsn, "workers", *arguments, status=status)


def listed(dsn: str, *options: str) -> list[dict[str, Any]]:
    return json.loads(workers(dsn, "list", "--json", *options).stdout)["workers"]


def is_in(jobs: IngestJobRepository, job_id: int, status: str) -> Any:
    return lambda: jobs.fetch(job_id).status == status


def in_state(conn: psycopg.Connection, state: str) -> Any:
    return lambda: HeartbeatRepository(conn).list(state=state)


def log(conn: psycopg.Connection) -> list[tuple[Any, ...]]:
    return conn.execute("SELECT actor, action, subject_id, reason FROM audit_log ORDER BY id").fetchall()


@pytest.mark.slow
def test_off_stops_the_job_and_on_brings_it_back(qwf_dsn, conn, jobs):
    """--wait returns when it is so: the job given back uncounted, the same process parked."""
    job = jobs.enqueue("deaf", queue="fetch").id
    with running_worker(qwf_dsn) as worker:
        until(is_in(jobs, job, "running"), within_s=PATIENCE_S)
        said = workers(qwf_dsn, "off", "here", "fetch", "--reason", "disk full", "--actor", "ann", "--wait")
        assert said.stdout.splitlines() == [
            "(here, fetch) is off by ann: disk full",
            "done by every worker that is heard of",
        ]
        row = jobs.fetch(job)
        assert (row.status, row.attempt, row.failures, row.crash_count, row.errors) == ("queued", 1, 0, 0, [])
        (shown,) = listed(qwf_dsn)
        assert (shown["pid"], shown["state"], shown["obedience"]) == (worker.pid, "parked", "obeyed")
        assert shown["control"]["reason"] == "disk full"
        table = workers(qwf_dsn, "list").stdout
        assert "off by ann: disk full" in table.splitlines()[1]

        workers(qwf_dsn, "on", "here", "fetch", "--actor", "bob", "--reason", "new disk", "--wait")
        until(is_in(jobs, job, "running"), within_s=PATIENCE_S)
        until(lambda: listed(qwf_dsn)[0]["current_job"] == f"ingest:{job}", within_s=PATIENCE_S)
        assert worker.poll() is None
    assert log(conn) == [
        ("ann", "workers.off", "here fetch", "disk full"),
        ("bob", "workers.on", "here fetch", "new disk"),
    ]


@pytest.mark.slow
def test_a_pause_is_waited_for_as_long_as_the_job_takes(qwf_dsn, conn, jobs, tmp_path):
    """Until the deadline, 73; the worker is named with the job that it has to finish first."""
    job = jobs.enqueue("deaf", queue="fetch", args={"until": str(tmp_path / "go")}).id
    following = jobs.enqueue("note", queue="fetch").id
    with running_worker(qwf_dsn, "--concurrency", "1"):
        until(
            lambda: [one for one in HeartbeatRepository(conn).list() if one.current_job_id == job],
            within_s=PATIENCE_S,
        )
        late = workers(qwf_dsn, "pause", "*", "fetch", "--wait", "--timeout", "2s", status=73)
        assert f"ingest:{job}" in late.stderr
        version = WorkerControlRepository(conn).list()[0].version
        until(lambda: HeartbeatRepository(conn).list()[0].control_version >= version, within_s=PATIENCE_S)
        assert jobs.fetch(job).status == "running"
        (tmp_path / "go").touch()
        workers(qwf_dsn, "pause", "*", "fetch", "--wait")
        assert [jobs.fetch(one).status for one in (job, following)] == ["completed", "queued"]
        workers(qwf_dsn, "on", "*", "fetch", "--wait")
        until(is_in(jobs, following, "completed"), within_s=PATIENCE_S)


def test_on_names_what_still_blocks(qwf_dsn, conn):
    """Who asked, where and why; and where nothing was asked it says so."""
    control = WorkerControlRepository(conn)
    control.set("*", "fetch", "pause", actor="bob", reason="migration")
    control.set("here", "fetch", "off", actor="ann")
    said = workers(qwf_dsn, "on", "here", "fetch").stdout.splitlines()
    assert said == ["(here, fetch) is on", "(*, fetch) still blocks: paused by bob: migration"]
    said = workers(qwf_dsn, "on", "here", "fetch").stdout.splitlines()
    assert said[0] == "(here, fetch): nothing was asked of it"
    assert len(log(conn)) == 3


def test_what_is_asked_for_a_while_ends_by_itself(qwf_dsn, conn, jobs):
    """Nobody has to remember it."""
    with running_worker(qwf_dsn):
        until(in_state(conn, "idle"), within_s=PATIENCE_S)
        said = workers(qwf_dsn, "off", "*", "*", "--for", "1h", "--wait").stdout
        assert "until" in said.splitlines()[0]
        job = jobs.enqueue("note", queue="fetch").id
        assert in_state(conn, "parked")()
        conn.execute("UPDATE worker_control SET expires_at = statement_timestamp()")
        until(is_in(jobs, job, "completed"), within_s=PATIENCE_S)
        assert listed(qwf_dsn)[0]["control"] is None


def test_a_wish_outlives_the_workers(qwf_dsn, conn, jobs):
    """One that starts later obeys it before it claims anything."""
    said = workers(qwf_dsn, "pause", "*", "*")
    assert said.stderr == "no worker is heard of there now; it holds for those that start\n"
    job = jobs.enqueue("note", queue="fetch").id
    with running_worker(qwf_dsn):
        until(in_state(conn, "paused"), within_s=PATIENCE_S)
        assert (jobs.fetch(job).status, jobs.fetch(job).attempt) == ("queued", 0)


def test_a_silent_worker_is_shown_as_such_and_not_waited_for(qwf_dsn, conn):
    """Its last words are not taken for news."""
    beats = HeartbeatRepository(conn)
    for worker, host in (("a:fetch:1", "a"), ("b:fetch:2", "b")):
        beats.beat(worker, host_label=host, queue="fetch", pid=7, state="busy")
    conn.execute("UPDATE worker_heartbeats SET last_seen = now() - interval '10 min' WHERE host_label = 'a'")
    shown = {one["host_label"]: one for one in listed(qwf_dsn)}
    assert (shown["a"]["silent"], shown["b"]["silent"]) == (True, False)
    assert "silent, was busy" in workers(qwf_dsn, "list", "--host", "a").stdout
    version = WorkerControlRepository(conn).set("*", "*", "pause", actor="ann").version
    beats.beat(
        "b:fetch:2",
        host_label="b",
        queue="fetch",
        pid=7,
        state=WorkerState.PAUSED,
        control_version=version + 10,
    )
    said = workers(qwf_dsn, "pause", "*", "*", "--wait").stderr
    assert said.splitlines()[-1].startswith("not waited for, as nothing is heard of them: a:fetch:1")
    conn.execute("UPDATE worker_heartbeats SET last_seen = now() - interval '2 h'")
    assert listed(qwf_dsn) == []
    assert len(listed(qwf_dsn, "--all")) == 2


def test_the_table_says_how_far_a_worker_is(qwf_dsn, conn):
    """Asked and not heard yet, finishing its job first, there; and on its way back."""
    beats = HeartbeatRepository(conn)

    def asked(state: str, version: int) -> str:
        beats.beat("w", host_label="h", queue="fetch", pid=7, state=state, control_version=version)
        return workers(qwf_dsn, "list").stdout.splitlines()[1].partition(" - ")[2].split("  ")[-1]

    version = WorkerControlRepository(conn).set("*", "*", "pause", actor="ann").version
    assert asked("busy", version - 1) == "paused by ann (not heard yet)"
    assert asked("busy", version) == "paused by ann (finishing)"
    assert asked("paused", version) == "paused by ann"
    WorkerControlRepository(conn).clear("*", "*", actor="ann")
    assert asked("paused", version) == "on (not back yet)"
    assert asked("idle", version) == "on"


def test_the_table_names_what_is_loaded(qwf_dsn, conn):
    """A line for each worker that has models, none for the others; with --json the one in use too."""
    beats = HeartbeatRepository(conn)
    beats.beat("a", host_label="h", queue="fetch", pid=7, state="idle")
    beats.beat(
        "b", host_label="h", queue="gpu", pid=8, state="busy", current_model="x", cached_models=("x", "y")
    )
    assert workers(qwf_dsn, "list").stdout.splitlines()[3:] == ["b has loaded: x, y"]
    assert [(one["current_model"], one["cached_models"]) for one in listed(qwf_dsn)] == [
        (None, []),
        ("x", ["x", "y"]),
    ]


@pytest.mark.slow
def test_two_operators_at_once(qwf_dsn, conn):
    """Both wishes are written down, one of them holds, and its version is the last one."""
    both = [start_qwf("workers", verb, "here", "fetch", QWF_DB_URL=qwf_dsn) for verb in ("off", "pause")]
    for process in both:
        _, complaint = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, complaint
    written = conn.execute(
        "SELECT action, (details ->> 'version')::bigint FROM audit_log ORDER BY 2"
    ).fetchall()
    (row,) = WorkerControlRepository(conn).list()
    assert {action for action, _ in written} == {"workers.off", "workers.pause"}
    assert written[-1] == (f"workers.{row.desired}", row.version)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["off", "here"], "Missing argument 'QUEUE'"),
        (["off", "a", "b", "c"], "A star needs quotes: '*'."),
        (["off", "a:b", "fetch"], "'a:b' is no host label; '*', in quotes, is any"),
        (["pause", "here", "f*"], "'f*' is no queue name"),
        (["pause", "here", "fetch", "--for", "nan"], "is no length of time"),
        (["on", "here", "fetch", "--for", "1h"], "No such option '--for'"),
        (["off", "here", "fetch", "--actor", ""], "actor is empty"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_2(qwf_dsn, conn, arguments, said):
    """And nothing is changed."""
    ended = workers(qwf_dsn, *arguments, status=2)
    assert said in ended.stderr
    assert (ended.stdout, ended.stderr.count("\n")) == ("", 1)
    assert log(conn) == []


def test_without_a_database_or_schema_it_says_so(qwf_new_database):
    """69 and 79, a line each."""
    away = workers("postgresql://nobody@127.0.0.1:1/none", "list", status=69)
    bare = workers(qwf_new_database(template=False), "list", status=79)
    assert [ended.stderr.count("\n") for ended in (away, bare)] == [1, 1]
    assert "qwf db upgrade" in bare.stderr
