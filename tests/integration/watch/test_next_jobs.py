"""The line of a queue: in the order in which workers then claim it, with what each job will meet."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.rows.jobs import CLEAR_WITH_WORKERS, Jobs
from support.rows.plans import explain, rows_read

from queue_workflows.repositories import (
    HeartbeatRepository,
    IngestJobRepository,
    LimitRepository,
    NodeJobRepository,
    RunRepository,
    WorkerControlRepository,
)
from queue_workflows.repositories.claims.claim_by_model import AffinityRepository, Preference
from queue_workflows.repositories.reports import next_jobs as reading
from queue_workflows.repositories.reports.next_jobs import NextJobsRepository
from queue_workflows.views.queues.next_jobs import Meets, command_of, json_of, next_jobs

STALE_S = 30.0


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """Empty tables."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        yield connection


def mixed(jobs: Jobs, queue: str) -> None:
    """Jobs of all priorities and places on a queue and another, suspects, and what is not queued."""
    chance = random.Random(3)
    jobs.enqueue(priorities=tuple(chance.choice((0, 3, 5, 5, 9)) for _ in range(40)), queue=queue)
    jobs.enqueue(3, queue="cpu" if queue == "gpu" else "gpu" if jobs.family == "node" else "load")
    jobs.connection.execute(
        f"UPDATE {jobs.table} SET position = position + (id * 7919) %% 40 * 1000 WHERE queue = %s", [queue]
    )
    of_queue = f"SELECT id FROM {jobs.table} WHERE queue = %s ORDER BY id"
    ids = [job_id for (job_id,) in jobs.connection.execute(of_queue, [queue])]
    jobs.connection.execute(
        f"UPDATE {jobs.table} SET suspect = true, crash_count = id %% 3 WHERE id = ANY (%s)", [ids[:12:2]]
    )
    jobs.connection.execute(
        f"UPDATE {jobs.table} SET status = 'scheduled', run_at = now() + interval '1 h' WHERE id = ANY (%s)",
        [ids[20:24]],
    )


@pytest.mark.parametrize("family", ["ingest", "node"])
def test_the_line_is_the_order_of_the_claims(conn: psycopg.Connection, family: str) -> None:
    """A worker that is alone takes one after the other, suspects last."""
    jobs = Jobs(family, conn)
    mixed(jobs, jobs.queue)
    line = [job.id for job in NextJobsRepository(conn).line(jobs.queue, limit=100).jobs]
    assert len(line) == 36
    claimed = []
    while got := jobs.claim(alone=True):
        claimed += [job.id for job in got]
    assert line == claimed


def test_the_line_of_models_is_the_order_of_a_worker_without_any(conn: psycopg.Connection) -> None:
    """Within a priority by what the host prefers, then by age; suspects last."""
    jobs = Jobs("node", conn)
    mixed(jobs, "gpu")
    conn.execute(
        "UPDATE workflow_node_jobs SET host_priority = id % 4, required_model = 'm' || id % 2"
        " WHERE queue = 'gpu' AND id % 5 > 0"
    )
    line = [job.id for job in NextJobsRepository(conn).line("gpu", limit=100).jobs]
    claimed = []
    claims = AffinityRepository(conn)
    while (got := claims.ask("gpu", Preference(), worker_id="w", lease_s=30.0)().job) is not None:
        claimed.append(got.id)
    while suspects := NodeJobRepository(conn).claim("gpu", worker_id="w", lease_s=30.0, alone=True):
        claimed += [job.id for job in suspects]
    assert len(line) == 36
    assert line == claimed


def test_suspect_hooks_keep_their_place(conn: psycopg.Connection) -> None:
    """As the worker that claims one is alone with it in the foreground; each names its host."""
    jobs = Jobs("node", conn)
    ids = jobs.enqueue(3, queue="hooks")
    conn.execute("UPDATE workflow_node_jobs SET suspect = true, pinned_host = 'h2' WHERE id = %s", [ids[1]])
    found = NextJobsRepository(conn).line("hooks").jobs
    assert [(job.id, job.suspect, job.pinned_host) for job in found] == [
        (ids[0], False, None),
        (ids[1], True, "h2"),
        (ids[2], False, None),
    ]


def beat(conn: psycopg.Connection, worker: str, **more: Any) -> None:
    """A worker of the queue of these tests."""
    HeartbeatRepository(conn).beat(
        worker, **{"host_label": "h1", "queue": "fetch", "pid": 7, "state": "idle"} | more
    )


def meets(conn: psycopg.Connection) -> list[tuple[str, str]]:
    """What each job of the line meets, and its note."""
    return [(one.meets.value, one.note) for one in next_jobs(conn, "fetch", stale_s=STALE_S).jobs]


def test_workers_decide_what_a_job_meets(conn: psycopg.Connection) -> None:
    """None, free ones, those at work, and those that were stopped; a silent one is none."""
    jobs = Jobs("ingest", conn)
    jobs.enqueue()
    assert meets(conn) == [(Meets.NO_WORKER, "no live worker serves the queue")]
    beat(conn, "silent")
    conn.execute("UPDATE worker_heartbeats SET last_seen = now() - interval '1 h'")
    assert meets(conn) == [(Meets.NO_WORKER, "no live worker serves the queue")]
    beat(conn, "w1", state="busy", jobs_held=1)
    assert meets(conn) == [(Meets.BUSY_WORKERS, "its one worker is at work")]
    beat(conn, "w2")
    assert meets(conn) == [(Meets.FREE_WORKER, "w2 takes it")]
    beat(conn, "w3")
    assert meets(conn) == [(Meets.FREE_WORKER, "one of 2 workers takes it")]
    conn.execute("UPDATE ingest_jobs SET suspect = true")
    assert meets(conn) == [
        (Meets.FREE_WORKER, "one of 2 workers takes it, alone: a worker died while it ran")
    ]
    WorkerControlRepository(conn).set("*", "fetch", "pause", actor="ann", reason="new disk")
    stopped = next_jobs(conn, "fetch", stale_s=STALE_S)
    assert [one.meets for one in stopped.jobs] == [Meets.WORKERS_STOPPED]
    assert [(wish.actor, wish.reason) for wish in stopped.wishes] == [("ann", "new disk")]
    assert {(one.worker_id, one.claims) for one in stopped.workers} == {
        ("w1", False),
        ("w2", False),
        ("w3", False),
    }


def test_limits_and_locks_decide_before_workers_do(conn: psycopg.Connection) -> None:
    """Slots are counted down the line; a lock names the job that holds it."""
    jobs = Jobs("ingest", conn)
    (holder,) = jobs.enqueue(host_lock="disk")
    jobs.one("w9")
    LimitRepository(conn).set("api", 2, actor="ann")
    jobs.enqueue(3, limit_key="api")
    jobs.enqueue(limit_key="no cap")
    jobs.enqueue(host_lock="elsewhere:disk")
    beat(conn, "w1")
    full = (Meets.LIMIT_FULL, "the limit 'api' is full, or will be by the jobs before it")
    free = (Meets.FREE_WORKER, "w1 takes it")
    assert meets(conn) == [
        free,
        free,
        full,
        free,
        (Meets.HOST_LOCK, f"the host lock 'elsewhere:disk' is held by ingest:{holder} of w9"),
    ]


def test_the_line_as_json_and_as_a_command(conn: psycopg.Connection) -> None:
    """Names, the job's own values, what it meets, the workers; the limit only where it is another."""
    (job_id,) = Jobs("ingest", conn).enqueue()
    beat(conn, "w1")
    told = json_of(next_jobs(conn, "fetch", stale_s=STALE_S))
    (job,) = told.pop("jobs")
    assert told == {
        "queue": "fetch",
        "workers": [{"worker_id": "w1", "host_label": "h1", "state": "idle", "jobs_held": 0, "claims": True}],
        "wishes": [],
    }
    kept = ("job", "family", "title", "priority", "suspect", "meets", "note")
    assert {name: job[name] for name in kept} == {
        "job": f"ingest:{job_id}",
        "family": "ingest",
        "title": "task",
        "priority": 5,
        "suspect": False,
        "meets": "free_worker",
        "note": "w1 takes it",
    }
    assert command_of("fetch") == "qwf queue next fetch"
    assert command_of("fetch", limit=7) == "qwf queue next fetch --limit 7"


PLANS = {
    "ingest": (reading.BY_AGE["ingest"], "fetch"),
    "node": (reading.BY_AGE["node"], "cpu"),
    "models": (reading.BY_MODEL, "gpu"),
    "hooks": (reading.OF_HOOKS, "hooks"),
}


@pytest.fixture(scope="module")
def crowded(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """20,000 jobs that ended and 2,000 that wait on each queue, in both tables."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        run = RunRepository(connection).insert("film", spec={}, spec_hash="h").id
        of_run = f"'{run}', queue, n"
        connection.execute("SET session_replication_role = replica")
        for table, queues, name, value in (
            ("ingest_jobs", ("fetch",), "task_name", "'t'"),
            ("workflow_node_jobs", ("cpu", "gpu", "hooks"), "run_id, node_id, map_index", of_run),
        ):
            connection.execute(
                f"INSERT INTO {table} ({name}, queue, status, priority, attempt, finished_at)"
                f" SELECT {value}, queue, CASE WHEN n > 2000 THEN 'completed' ELSE 'queued' END, n %% 10, 1,"
                " CASE WHEN n > 2000 THEN now() END"
                " FROM generate_series(1, 22000) AS n CROSS JOIN unnest(%s::text[]) AS queue",
                [list(queues)],
            )
            connection.execute(f"VACUUM ANALYZE {table}")
        connection.execute("RESET session_replication_role")
        yield connection
        connection.execute(CLEAR_WITH_WORKERS)


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("of", PLANS)
def test_a_line_costs_as_much_as_it_is_long(crowded: psycopg.Connection, of: str, mode: str) -> None:
    """It is read by the claim's index, whatever waits and however much is over."""
    sql, queue = PLANS[of]
    params: dict[str, Any] = {
        "queue": queue,
        "limit": 50,
        "marks": "{0,0,0,0,0,0,0,0,0,0}",
        "warm": "{}",
        "oldest": "{}",
        "yield_s": 0.0,
        "fresh_s": 30.0,
        "worker_id": "nobody",
    }
    plan = explain(crowded, mode, sql, params)
    scans = [node for node in plan if "job" in str(node.get("Relation Name"))]
    assert all(node["Node Type"] != "Seq Scan" for node in scans), scans
    # Of each priority that is looked at, and again for what is shown of the row.
    assert rows_read(plan, "ingest_jobs", "workflow_node_jobs") <= 150


def test_reading_a_line_locks_nothing(conn: psycopg.Connection, qwf_dsn: str) -> None:
    """A worker claims what is being looked at, and what it has is no longer in line."""
    jobs = Jobs("ingest", conn)
    first, second = jobs.enqueue(2)
    with conn.transaction():
        line = NextJobsRepository(conn).line("fetch").jobs
        with psycopg.connect(qwf_dsn, autocommit=True) as other:
            (claimed,) = IngestJobRepository(other).claim("fetch", worker_id="w", lease_s=30.0)
    assert ([job.id for job in line], claimed.id) == ([first, second], first)
    assert [job.id for job in NextJobsRepository(conn).line("fetch").jobs] == [second]
