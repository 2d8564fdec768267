"""`qwf up`: everything in one terminal, from an empty database to a finished job, and nothing left of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import psycopg
import pytest
from support.processes.programs import gone
from support.processes.supervised import Supervised, enqueue
from support.processes.workers import until, worker_environment

from queue_workflows import start_run
from queue_workflows.db import wait_for_schema
from queue_workflows.repositories import HeartbeatRepository, IngestJobRepository

UP = [sys.executable, "-m", "queue_workflows", "--app", "support.tasks.worker_tasks", "up"]
STARTED = r"^up +\| .* {}/1: started, pid (\d+)"


def queues(connection: psycopg.Connection) -> set[str]:
    return {worker.queue for worker in HeartbeatRepository(connection).list(state="idle")}


@pytest.mark.slow
def test_from_an_empty_database_to_nothing_left(qwf_new_database):
    """Migrated, every role and a worker for each queue started, one log; Ctrl-C ends them all."""
    dsn = qwf_new_database(template=False)
    with Supervised(UP, dsn) as up:
        up.until(r"migrated, \d+ revisions$")
        up.until("^running orchestrator/1, scheduler/1, cpu/1, gpu/1, fetch/1, load/1; Ctrl-C stops them all")
        up.until("qwf --app support.tasks.worker_tasks run start film.yaml --watch")
        pids = [
            int(up.until(STARTED.format(name))[1])
            for name in ("orchestrator", "scheduler", "cpu", "gpu", "fetch", "load")
        ]
        wait_for_schema("head", 0, dsn=dsn)
        with psycopg.connect(dsn, autocommit=True) as connection:
            until(lambda: queues(connection) == {"cpu", "gpu", "fetch", "load"})
            jobs = IngestJobRepository(connection)
            job = enqueue(jobs, "say", words="good morning")
            until(lambda: (found := jobs.fetch(job)) and found.status == "completed")
        up.until(r"^fetch/1 +\| good morning$")
        up.signal(signal.SIGINT)
        assert up.status() == 0
        assert all(gone(pid) for pid in pids)
    with psycopg.connect(dsn, autocommit=True) as connection:
        assert HeartbeatRepository(connection).list() == []


def test_only_the_workers_that_are_asked_for(qwf_dsn):
    """As for the supervisor, options included."""
    with Supervised([*UP, "--worker", "fetch:2 --recycle-mb 500"], qwf_dsn) as up:
        up.until("schema up to date$")
        up.until("^running orchestrator/1, scheduler/1, fetch/1, fetch/2; ")
        up.until(STARTED.format("fetch"))
        assert up.stop() == 0


def test_its_log_says_how_jobs_end_and_may_be_json(qwf_dsn):
    """Of every process an object a line, with its role; also of what a job prints, as soon as it does."""
    with Supervised([*UP, "--no-web", "--worker", "fetch", "--log-format", "json"], qwf_dsn) as up:
        with psycopg.connect(qwf_dsn, autocommit=True) as connection:
            job = enqueue(IngestJobRepository(connection), "say", words="good morning")
        printed = json.loads(up.until(r"^({.*good morning.*})$")[1])
        assert printed == {"role": "fetch/1", "message": "good morning"}
        ended = json.loads(up.until(r'^({.*"outcome": "completed".*})$')[1])
        assert (ended["role"], ended["job_id"], ended["task_name"]) == ("fetch/1", job, "say")
        assert json.loads(up.until(r"^({.*fetch/1: started.*})$")[1])["role"] == "up"
        assert up.stop() == 0


OVER = """\
from queue_workflows import on_run_finished


@on_run_finished
def over(run):
    print("over:", run.workflow, run.status)
"""


@pytest.mark.slow
def test_what_hooks_of_runs_print_is_seen_as_they_do(qwf_dsn, tmp_path):
    """Those of the host app are called by the orchestrator, which is behind a pipe here."""
    (tmp_path / "shop.py").write_text(OVER, encoding="utf-8")
    app = ["--app", "shop", "up", "--no-web", "--worker", "fetch"]
    with (
        Supervised([*UP[:3], *app], qwf_dsn, cwd=tmp_path) as up,
        psycopg.connect(qwf_dsn, autocommit=True) as connection,
    ):
        start_run(
            {"name": "rest", "nodes": [{"id": "rest", "type": "wait", "seconds": 0.1}]}, conn=connection
        )
        up.until(r"^orchestrator/1 +\| over: rest completed$")
        assert up.stop() == 0


APP = """\
from queue_workflows import ingest_task


@ingest_task("tell", queue="fetch")
def tell(reason):
    print("this is the {}", flush=True)
"""


@pytest.mark.slow
def test_reload_begins_anew_with_code_that_changed(qwf_dsn, tmp_path):
    """What cannot be imported is told, and the code from before runs on; Ctrl-C ends it as without."""
    app = tmp_path / "shop.py"
    app.write_text(APP.format("first"), encoding="utf-8")
    command = [sys.executable, "-m", "queue_workflows", "--app", "shop", "up", "--no-web", "--reload"]
    with (
        Supervised([*command, "--worker", "fetch"], qwf_dsn, cwd=tmp_path) as up,
        psycopg.connect(qwf_dsn, autocommit=True) as connection,
    ):
        jobs = IngestJobRepository(connection)
        first = up.until(STARTED.format("fetch"))[1]
        jobs.enqueue("tell", queue="fetch")
        up.until(r"^fetch/1 +\| this is the first$")
        app.write_text(APP.format("broken").replace("def tell", "dfe tell"), encoding="utf-8")
        up.until(r"shop\.py has changed, but the wiring cannot be imported: SyntaxError")
        jobs.enqueue("tell", queue="fetch")
        up.until(r"^fetch/1 +\| this is the first$")
        app.write_text(APP.format("second"), encoding="utf-8")
        up.until(r"^shop\.py has changed: beginning anew$")
        second = up.until(STARTED.format("fetch"))[1]
        assert gone(int(first))
        jobs.enqueue("tell", queue="fetch")
        up.until(r"^fetch/1 +\| this is the second$")
        up.signal(signal.SIGINT)
        assert up.status() == 0
        assert gone(int(second))


@pytest.mark.slow
def test_when_nobody_reads_the_log_all_end(qwf_dsn):
    """`| head -3`; it is noticed with the next line."""
    command = [*UP, "--worker", "fetch"]
    process = subprocess.Popen(
        command, env=worker_environment(qwf_dsn), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout
        process.stdout.readline()
        process.stdout.close()
        with psycopg.connect(qwf_dsn, autocommit=True) as connection:
            enqueue(IngestJobRepository(connection), "say", words="is anybody there?")
        process.wait(150)
    finally:
        process.kill()
        process.wait(150)
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        until(lambda: HeartbeatRepository(connection).list() == [])


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [("--worker", "fech"), ("--worker", "fetch:0"), ("--orchestrator",)])
def test_a_wrong_command_line_starts_nothing(qwf_dsn, wrong):
    """One line."""
    ended = subprocess.run(
        [*UP, *wrong], env=worker_environment(qwf_dsn), capture_output=True, text=True, timeout=150
    )
    assert ended.returncode in (2, 78)
    assert (ended.stdout, ended.stderr.count("\n")) == ("", 1)
