"""What real workers write on stderr: how each job ends, and which job wrote a line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest
from support.processes.workers import running_orchestrator, running_worker
from support.rows.jobs import jobs_of

from queue_workflows.roles.worker.job_log import LINES

APP = {"QWF_APP": "support.tasks.logging_tasks"}
JOBS = "queue_workflows.jobs"


def enqueue(jobs: Any, *tasks: str, **options: Any) -> list[int]:
    return [jobs.enqueue(task, queue="fetch", args={}, **options).id for task in tasks]


def worked_off(dsn: str, *options: str, **settings: str) -> str:
    """What a worker writes that does all there is."""
    with running_worker(dsn, "--drain", *options, **APP, **settings) as worker:
        _, said = worker.communicate(timeout=150)
        assert worker.returncode == 0, said
    return said


def objects(said: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said.splitlines()]


def named(line: Mapping[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(line.get(name) for name in names)


@pytest.mark.parametrize("concurrency", ["1", "4"])
def test_each_ended_job_has_a_line_and_each_line_its_job(qwf_dsn, conn, jobs, concurrency):
    """Of a sync job and its child thread, of a coroutine, of what fails, is retried, waits, or is unknown."""
    trace = "0af7651916cd43dd8448eb211c80319c"
    sync, coro = enqueue(jobs, "sync", "coro")
    (bad,) = enqueue(jobs, "bad", max_attempts=1)
    (again,) = enqueue(jobs, "bad", max_attempts=2)
    (later,) = enqueue(jobs, "later")
    enqueue(jobs, "nobody", "nobody", "nobody")
    conn.execute(
        "UPDATE ingest_jobs SET traceparent = %s WHERE id = %s", [f"00-{trace}-b7ad6b7169203331-01", sync]
    )
    lines = objects(worked_off(qwf_dsn, "--concurrency", concurrency, "--log-format", "json"))
    by_app = [line for line in lines if line["logger"] == "shop.pages"]
    written = {line["message"]: named(line, "job_id", "attempt", "trace_id") for line in by_app}
    assert written == {
        "in the function": (sync, 1, trace),
        "in a child thread": (sync, 1, trace),
        "in the coroutine": (coro, 1, None),
        "in to_thread": (coro, 1, None),
    }
    ends = [line for line in lines if line["logger"] == JOBS]
    of_jobs = [line for line in ends if "job_id" in line]
    told = sorted(named(line, "level", "task_name", "outcome", "job_id", "attempt") for line in of_jobs)
    assert told == sorted(
        [
            ("INFO", "sync", "completed", sync, 1),
            ("INFO", "coro", "completed", coro, 1),
            ("ERROR", "bad", "failed", bad, 1),
            ("ERROR", "bad", "retried", again, 1),
            ("INFO", "later", "retry_after", later, 1),
        ]
    )
    assert all(line["seconds"] >= 0 for line in of_jobs)
    failed, retried = (next(line for line in of_jobs if line["job_id"] == one) for one in (bad, again))
    assert failed["error"] == "ValueError: no such page, with password=***"
    assert "in bad" in failed["exception"]
    assert "hunter2" not in json.dumps(lines)
    assert retried["runs_again_in_s"] > 0
    assert re.search(r"; runs again in \S+ s, at \d{4}-\S+Z, failure 1 of 2$", retried["message"])
    unknown = [named(line, "level", "task_name") for line in ends if "job_id" not in line]
    assert unknown == [("WARNING", "nobody")]


@pytest.mark.parametrize("concurrency", ["1", "4"])
def test_a_thread_of_a_pool_has_the_job_that_it_works_for(qwf_dsn, jobs, concurrency):
    """Of a pool that is the job's own, and of one that stands for all jobs, sync and async."""
    ids = enqueue(jobs, "pooled", "poolcoro", "pooled", "poolcoro")
    lines = objects(worked_off(qwf_dsn, "--concurrency", concurrency, "--log-format", "json"))
    by_app = [line for line in lines if line["logger"] == "shop.pages"]
    assert len(by_app) == 2 * (3 + 1 + 1)
    assert {line["job_id"] for line in by_app} == set(ids)
    assert [line["message"] for line in by_app if line["message"].split()[0] != str(line["job_id"])] == []


@pytest.mark.usefixtures("cold_starts")
def test_text_is_for_reading(qwf_dsn, jobs):
    """The default: a line each, no colour where nobody reads it on a terminal, a traceback below its line."""
    (done,) = enqueue(jobs, "sync")
    (bad,) = enqueue(jobs, "bad", max_attempts=1)
    said = worked_off(qwf_dsn)
    begun = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
    ended = r"after \S+ m?s, attempt 1"
    assert re.search(rf"^{begun} INFO \d+ shop\.pages: in the function \[job {done} attempt 1\]$", said, re.M)
    assert re.search(rf"^{begun} INFO \d+ {JOBS}: sync {done} completed {ended}$", said, re.M)
    failed = rf"^{begun} ERROR \d+ {JOBS}: bad {bad} failed {ended}: ValueError: no such page,"
    failed += r".*\nTraceback"
    assert re.search(failed, said, re.M)
    assert "\x1b" not in said


def test_a_crowd_is_counted_and_nobody_is_left_out(qwf_dsn, conn, jobs):
    """Each of many short jobs is in one line or one count, and no second has more lines than is said."""
    conn.execute(
        "INSERT INTO ingest_jobs (task_name, queue, args)"
        " SELECT 'noop', 'fetch', '{}' FROM generate_series(1, 5000)"
    )
    lines = [line for line in objects(worked_off(qwf_dsn, "--log-format", "json")) if line["logger"] == JOBS]
    single = [line for line in lines if "job_id" in line]
    counts = [line for line in lines if "count" in line]
    assert {named(line, "task_name", "outcome") for line in lines} == {("noop", "completed")}
    assert len(single) + sum(line["count"] for line in counts) == 5000
    first, last = (datetime.fromisoformat(line["time"]) for line in (lines[0], lines[-1]))
    assert len(single) <= LINES * ((last - first).total_seconds() + 2)


def test_nodes_are_named_with_their_run(qwf_dsn, conn):
    """A node job's line says which node of which run it was, and so does what it logs."""
    with jobs_of("node", qwf_dsn) as nodes:
        (node,) = nodes.enqueue(node_module="echo", queue="cpu")
        run = nodes.row(node)["run_id"]
        with running_worker(qwf_dsn, "--queue", "cpu", "--drain", "--log-format", "json", **APP) as worker:
            _, said = worker.communicate(timeout=150)
    (line,) = [each for each in objects(said) if each["logger"] == JOBS]
    assert named(line, "job_id", "run_id", "node_id", "outcome") == (node, run, "n0", "completed")
    assert line["message"].startswith(f"echo (n0 of run {run}) {node} completed after ")


def test_the_level_is_that_of_ours_and_of_the_app(qwf_dsn, jobs):
    """By the option, which beats the variable."""
    enqueue(jobs, "sync")
    assert worked_off(qwf_dsn, "--log-level", "warning", QWF_LOG_LEVEL="debug") == ""
    enqueue(jobs, "sync")
    (bad,) = enqueue(jobs, "bad", max_attempts=1)
    (line,) = objects(worked_off(qwf_dsn, QWF_LOG_LEVEL="ERROR", QWF_LOG_FORMAT="json"))
    assert named(line, "level", "job_id") == ("ERROR", bad)


@pytest.mark.usefixtures("cold_starts")
def test_an_app_that_logs_by_itself_keeps_its_way(qwf_dsn, jobs):
    """Its format and its level for its own; nothing twice, and no handler of ours."""
    enqueue(jobs, "sync")
    enqueue(jobs, "bad", max_attempts=1)
    said = worked_off(qwf_dsn, SHOP_LOG="root")
    begun = [line.split()[:3] for line in said.splitlines() if line.startswith("SHOP")]
    assert sorted(begun) == [["SHOP", "ERROR", JOBS], ["SHOP", "INFO", JOBS]]
    assert "Traceback (most recent call last)" in said
    assert "in the function" not in said


def test_a_logger_with_a_handler_of_its_own_writes_once(qwf_dsn, jobs):
    """What the app gave a handler goes there alone."""
    enqueue(jobs, "sync")
    said = worked_off(qwf_dsn, SHOP_LOG="own")
    assert [line for line in said.splitlines() if " in " in f" {line}" and "completed" not in line] == [
        "OWN in the function",
        "OWN in a child thread",
    ]


def test_the_other_roles_follow(qwf_dsn, conn):
    """An orchestrator writes the same kind of lines."""
    with running_orchestrator(
        qwf_dsn, "--once", "--log-format", "json", "--log-level", "debug", **APP
    ) as role:
        _, said = role.communicate(timeout=150)
    assert role.returncode == 0, said
    assert {line["level"] for line in objects(said)} <= {"DEBUG", "INFO"}
