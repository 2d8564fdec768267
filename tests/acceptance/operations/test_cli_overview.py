"""`qwf overview`: what is stuck comes first, with its count, an example and the command that shows more."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.processes.commands import qwf_here
from support.rows.claim_sessions import CLEAR_LIMITS
from support.rows.jobs import CLEAR_WITH_WORKERS, Jobs, jobs_of

from queue_workflows.engine.explain.job import Knowledge
from queue_workflows.repositories import (
    DispatchEventRepository,
    HeartbeatRepository,
    LimitRepository,
    RunRepository,
    WorkerControlRepository,
)
from queue_workflows.repositories.reports.overview import COUNTED_A_MINUTE, OverviewRepository
from queue_workflows.repositories.reports.stuck_jobs import StuckRepository
from queue_workflows.repositories.workers.hardware import HardwareRepository
from queue_workflows.views.overview import read_overview

READING = {
    "machine": {"cpu_percent": 25.0, "cores": 16},
    "containers": None,
    "devices": [{"id": "amd:1", "vendor": "amd"}],
    "troubles": [],
}
ENDED = """
INSERT INTO ingest_jobs (task_name, queue, status, attempt, claimed_by, finished_at)
SELECT 'task', 'fetch', %s, 1, 'w', now() - make_interval(mins => %s, secs => 30)
FROM generate_series(1, %s)
"""


@pytest.fixture
def jobs(qwf_dsn: str) -> Iterator[Jobs]:
    """A database with nothing in it."""
    with jobs_of("ingest", qwf_dsn) as jobs:
        jobs.connection.execute(f"{CLEAR_WITH_WORKERS}; {CLEAR_LIMITS}; TRUNCATE host_hardware")
        yield jobs


def overview(dsn: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(qwf_here("--db", dsn, "overview", "--json").stdout)
    return told


def stuck(dsn: str) -> list[dict[str, Any]]:
    """Without the sentences, which are those of `explain`."""
    return [
        {name: one[name] for name in ("code", "count", "queue", "example", "command", "goes_on")}
        for one in overview(dsn)["stuck"]
    ]


def entry(code: str, job: str, count: int, queue: str = "fetch", *, goes_on: bool = False) -> dict[str, Any]:
    command = f"qwf explain {job}"
    return {
        "code": code,
        "count": count,
        "queue": queue,
        "example": job,
        "command": command,
        "goes_on": goes_on,
    }


def beat(conn: psycopg.Connection, worker_id: str, queue: str = "fetch", **more: Any) -> None:
    HeartbeatRepository(conn).beat(
        worker_id, **{"host_label": "h1", "queue": queue, "pid": 7, "state": "idle"} | more
    )


@pytest.mark.usefixtures("jobs")
def test_where_nothing_is_it_says_so(qwf_dsn: str) -> None:
    """All parts are there, and empty."""
    told = overview(qwf_dsn)
    del told["at"]
    orchestrators = told["outbox"].pop("orchestrators")
    assert isinstance(orchestrators, int)
    assert told == {
        "stuck": [],
        "queues": [],
        "minutes": [{"ended": 0, "failed": 0, "at_least": False}] * 60,
        "workers": {"silent": 0},
        "hosts": [],
        "outbox": {"due": 0, "lag_s": 0.0, "failing": 0, "poisoned": 0},
        "inputs": {"waiting": 0, "longest_s": None},
    }
    said = qwf_here("--db", qwf_dsn, "overview")
    assert said.stderr == "nothing is stuck\n"
    assert said.stdout.startswith("outbox: 0 due, 0 given up, ")


def test_queues_without_a_worker_come_first(qwf_dsn: str, jobs: Jobs) -> None:
    """The queue with the most jobs before the others, each with the job that has waited longest."""
    few = jobs.enqueue(2, queue="mail")
    many = jobs.enqueue(3)
    assert stuck(qwf_dsn) == [
        entry("no_worker", f"ingest:{many[0]}", 3),
        entry("no_worker", f"ingest:{few[0]}", 2, "mail"),
    ]
    table = qwf_here("--db", qwf_dsn, "overview").stdout.splitlines()
    assert table[0].split() == ["STUCK", "COUNT", "QUEUE", "WHY", "MORE"]
    assert table[1].startswith("no_worker  3      fetch  no live worker serves the queue fetch")


def test_what_waits_as_it_means_to_is_not_stuck(qwf_dsn: str, jobs: Jobs) -> None:
    """Durable functions that sleep, or wait for an event or for children; one whose time is over waits for a
    worker like any other job."""
    asleep, event, children = jobs.enqueue(3)
    waits = [
        (asleep, "asleep", None),
        (event, "event", "go"),
        (children, "children", f"qwf:ended:{children}"),
    ]
    for job, reason, key in waits:
        jobs.connection.execute(
            "UPDATE ingest_jobs SET status = 'scheduled', hold_reason = %s, hold_key = %s,"
            " run_at = now() + interval '1 h' WHERE id = %s",
            [reason, key, job],
        )
    assert stuck(qwf_dsn) == []
    jobs.connection.execute("UPDATE ingest_jobs SET run_at = now() - interval '1 min' WHERE id = %s", [event])
    assert stuck(qwf_dsn) == [entry("no_worker", f"ingest:{event}", 1)]


def test_each_cause_is_told_once(qwf_dsn: str, jobs: Jobs) -> None:
    """Paused, unknown to all workers, overdue, lost, full: as `explain` says of each example."""
    conn = jobs.connection
    beat(conn, "w1")
    beat(conn, "m1", queue="mail")
    WorkerControlRepository(conn).set("*", "mail", "pause", actor="ann", reason="the API is down")
    LimitRepository(conn).set("host:*", 1, actor="ann")
    (lost,) = jobs.enqueue(1)
    jobs.claim("gone")
    jobs.lapse(lost)
    paused = jobs.enqueue(2, queue="mail")
    held = jobs.enqueue(3, limit_key="host:a", queue="slow")
    unknown = jobs.enqueue(2)
    overdue = jobs.enqueue(1)
    beat(conn, "s1", queue="slow")
    conn.execute(
        "UPDATE ingest_jobs SET status = 'scheduled', hold_reason = 'unknown_task', hold_key = 'odd',"
        " run_at = now() + interval '1 h' WHERE id = ANY (%s)",
        [unknown],
    )
    conn.execute(
        "UPDATE ingest_jobs SET status = 'scheduled', run_at = now() - interval '1 min' WHERE id = ANY (%s)",
        [overdue],
    )
    conn.execute(
        "UPDATE ingest_jobs SET status = 'scheduled', hold_reason = 'limit_full', hold_key = 'host:a',"
        " run_at = now() + interval '1 h' WHERE id = ANY (%s)",
        [held],
    )
    assert stuck(qwf_dsn) == [
        entry("queue_pause", f"ingest:{paused[0]}", 2, "mail"),
        entry("unknown_task", f"ingest:{unknown[0]}", 2),
        entry("limit_full", f"ingest:{held[0]}", 3, "slow", goes_on=True),
        entry("due", f"ingest:{overdue[0]}", 1, goes_on=True),
        entry("lease_lapsed", f"ingest:{lost}", 1, goes_on=True),
    ]
    for one in overview(qwf_dsn)["stuck"]:
        told = json.loads(qwf_here("--db", qwf_dsn, *one["command"].split()[1:], "--json").stdout)
        assert one["code"] in {reason["code"] for reason in told["reasons"]}


@pytest.mark.parametrize(
    ("reason", "key", "text", "goes_on"),
    [
        ("host_lock", "camera", "it waits for the host lock 'camera'", True),
        ("binary_missing", "h1/wget", "its plugin needs wget, which is missing on h1", False),
        ("model_unknown", "x", "no worker that claimed it can load the model 'x'", False),
    ],
)
def test_node_jobs_on_hold(
    qwf_dsn: str, jobs: Jobs, *, reason: str, key: str, text: str, goes_on: bool
) -> None:
    """Told without a guess at what holds the lock, or at what became of the program."""
    with jobs_of("node", qwf_dsn, clear=False) as nodes:
        beat(jobs.connection, "c1", queue="cpu")
        (held, _) = nodes.enqueue(2)
        nodes.connection.execute(
            "UPDATE workflow_node_jobs SET status = 'scheduled', hold_reason = %s, hold_key = %s,"
            " run_at = now() + interval '1 h'",
            [reason, key],
        )
        found = [one for one in overview(qwf_dsn)["stuck"] if one["queue"] == "cpu"]
        assert [(one["code"], one["count"], one["example"], one["goes_on"]) for one in found] == [
            (reason, 2, f"node:{held}", goes_on)
        ]
        assert found[0]["text"].startswith(text)


def test_what_a_free_worker_takes_next_is_not_stuck(qwf_dsn: str, jobs: Jobs) -> None:
    """A queue that moves is among the queues, and nowhere else."""
    beat(jobs.connection, "w1")
    jobs.enqueue(2)
    told = overview(qwf_dsn)
    assert told["stuck"] == []
    (queue,) = told["queues"]
    assert (queue["queue"], queue["queued"], queue["workers"], queue["asked"]) == (
        "fetch",
        2,
        {"idle": 1},
        [],
    )


def test_a_pause_of_one_host_is_no_reason_where_another_works(qwf_dsn: str, jobs: Jobs) -> None:
    """Only when nobody claims any more is it told."""
    beat(jobs.connection, "w1")
    beat(jobs.connection, "w2", host_label="h2", state="busy", jobs_held=1)
    (first, _) = jobs.enqueue(2)
    control = WorkerControlRepository(jobs.connection)
    control.set("h1", "*", "pause", actor="ann")
    assert stuck(qwf_dsn) == [entry("all_busy", f"ingest:{first}", 2, goes_on=True)]
    control.set("h2", "fetch", "off", actor="bob")
    assert stuck(qwf_dsn) == [entry("queue_off", f"ingest:{first}", 2)]


def test_keys_of_one_limit_are_one_matter(qwf_dsn: str, jobs: Jobs) -> None:
    """A thousand lanes must not hide what needs somebody."""
    beat(jobs.connection, "w1")
    ids = [jobs.enqueue(2, limit_key=f"host:{n:02}")[0] for n in range(15)]
    jobs.connection.execute(
        "UPDATE ingest_jobs SET status = 'scheduled', hold_reason = 'limit_full', hold_key = limit_key,"
        " run_at = now() + interval '1 h'"
    )
    (unknown,) = jobs.enqueue(1)
    jobs.connection.execute(
        "UPDATE ingest_jobs SET status = 'scheduled', hold_reason = 'unknown_task', hold_key = 'odd',"
        " run_at = now() + interval '1 h' WHERE id = %s",
        [unknown],
    )
    found = overview(qwf_dsn)["stuck"]
    assert [(one["code"], one["count"], one["at_least"], one["example"]) for one in found] == [
        ("unknown_task", 1, False, f"ingest:{unknown}"),
        ("limit_full", 20, True, f"ingest:{ids[0]}"),
    ]


def test_runs_that_nobody_advances(qwf_dsn: str, jobs: Jobs) -> None:
    """No orchestrator, events that were given up, and nodes that wait for people."""
    conn = jobs.connection
    runs = RunRepository(conn)
    waiting = runs.insert("film", spec={}, spec_hash="h").id
    asked = running_run(conn)
    conn.execute(
        "INSERT INTO workflow_node_jobs (run_id, node_id, queue, kind, status, run_at)"
        " VALUES (%s, 'approve', 'cpu', 'input', 'awaiting_input', now() - interval '1 h')",
        [asked],
    )
    DispatchEventRepository(conn).insert(asked, "ready", node_job_id=None, generation=1, attempt=0)
    conn.execute(
        "UPDATE workflow_dispatch_events SET poisoned_at = now(), tries = 9 WHERE run_id = %s", [asked]
    )
    found = {one["code"]: one for one in stuck(qwf_dsn)}
    assert found["poisoned"] == {
        "code": "poisoned",
        "count": 1,
        "queue": None,
        "example": f"run:{asked}",
        "command": "qwf run list --poisoned",
        "goes_on": False,
    }
    assert found["awaiting_input"]["command"] == f"qwf explain {asked} approve"
    assert found["awaiting_input"]["example"] == f"run:{asked}"
    # Another test's orchestrator may be connected to another database of this server, never to this one.
    assert found["no_orchestrator"]["example"] == f"run:{waiting}"
    told = overview(qwf_dsn)
    assert (told["outbox"]["poisoned"], told["inputs"]["waiting"]) == (1, 1)


def running_run(conn: psycopg.Connection) -> uuid.UUID:
    run_id = RunRepository(conn).insert("film", spec={}, spec_hash="h").id
    conn.execute("DELETE FROM workflow_dispatch_events WHERE run_id = %s", [run_id])
    conn.execute("UPDATE workflow_runs SET status = 'running', started_at = now() WHERE id = %s", [run_id])
    return run_id


def test_the_last_hour_minute_by_minute(qwf_dsn: str, jobs: Jobs) -> None:
    """The last minute first; what ended longer ago is not there, and a minute at its bound says so."""
    with jobs.connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        for status, minutes, count in (
            ("completed", 0, 3),
            ("failed", 0, 1),
            ("completed", 59, 2),
            ("completed", 60, 7),
            ("completed", 5, COUNTED_A_MINUTE + 5),
        ):
            cursor.execute(ENDED, [status, minutes, count])
        cursor.execute("RESET session_replication_role")
    told = overview(qwf_dsn)
    minutes = {ago: minute for ago, minute in enumerate(told["minutes"]) if minute["ended"]}
    assert minutes == {
        0: {"ended": 4, "failed": 1, "at_least": False},
        5: {"ended": COUNTED_A_MINUTE, "failed": 0, "at_least": True},
        59: {"ended": 2, "failed": 0, "at_least": False},
    }
    (queue,) = told["queues"]
    assert (queue["queue"], queue["failed"], queue["ended"]) == ("fetch", 1, COUNTED_A_MINUTE + 6)
    assert {ago: count for ago, count in enumerate(queue["minutes"]) if count} == {
        0: 4,
        5: COUNTED_A_MINUTE,
        59: 2,
    }


def test_hosts_and_workers(qwf_dsn: str, jobs: Jobs) -> None:
    """By what workers do; what is silent apart, with what a supervisor told of the machine."""
    conn = jobs.connection
    beat(conn, "w1", state="busy")
    beat(conn, "w2")
    beat(conn, "gone", host_label="h2")
    conn.execute("UPDATE worker_heartbeats SET last_seen = now() - interval '1 h' WHERE worker_id = 'gone'")
    HardwareRepository(conn).report("h1", READING, every_s=5.0, parts=[])
    told = overview(qwf_dsn)
    assert told["workers"] == {"busy": 1, "idle": 1, "silent": 1}
    first, second = told["hosts"]
    first["machine"].pop("sampled_s_ago")
    assert first == {
        "host_label": "h1",
        "workers": {"busy": 1, "idle": 1},
        "silent_workers": 0,
        "quarantined": 0,
        "machine": {"cpu_percent": 25.0, "cores": 16},
        "devices": 1,
        "stale": False,
    }
    assert (second["host_label"], second["machine"], second["silent_workers"]) == ("h2", None, 1)


def test_counts_stop_at_their_bound(jobs: Jobs) -> None:
    """Exact below it, and named where they have come to it."""
    jobs.enqueue(4)
    jobs.enqueue(2, queue="mail")
    facts = OverviewRepository(jobs.connection).facts(most=3)
    assert [(one.queue, one.queued, one.at_least) for one in facts.queues] == [
        ("fetch", 3, frozenset({"queued"})),
        ("mail", 2, frozenset()),
    ]


def test_examples_come_without_their_payloads(jobs: Jobs) -> None:
    """A task's arguments may be megabytes, and there are some dozen examples."""
    jobs.enqueue(1)
    (group,) = (one for one in StuckRepository(jobs.connection).read() if one.kind == "queued")
    assert (group.job.queue, group.job.status, group.job.args) == ("fetch", "queued", None)


def test_it_takes_six_statements(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many groups, queues and workers there are."""
    for queue in ("a", "b", "c"):
        beat(jobs.connection, f"w-{queue}", queue=queue)
        jobs.enqueue(2, queue=queue)
        jobs.enqueue(2, queue=f"{queue}-without-a-worker", limit_key="host:a")
    sent: list[object] = []
    execute = psycopg.Cursor.execute

    def counted(self: Any, query: Any, *rest: Any, **more: Any) -> Any:
        sent.append(query)
        return execute(self, query, *rest, **more)

    monkeypatch.setattr(psycopg.Cursor, "execute", counted)
    seen = read_overview(jobs.connection, Knowledge(30.0, 1.0))
    assert len(seen.queues) == 6
    assert len(sent) == 6
