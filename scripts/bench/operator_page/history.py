"""A database as operators have it after a month: much that is over, much that waits, a few that work."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from queue_workflows.repositories import (
    BinaryRepository,
    HeartbeatRepository,
    LimitRepository,
    MachineRepository,
    RateRepository,
    RunRepository,
    ScheduleRepository,
)
from queue_workflows.repositories.claims.end import error_entry
from queue_workflows.repositories.workers.hardware import HardwareRepository
from queue_workflows.workflow.document.load import load_document

NODES_A_RUN: Final = 10
RARE: Final = "recount"
WORKER: Final = "host1:fetch:1"
SCHEDULE: Final = "nightly-1"
LIMIT: Final = "host:site-1.example"
WORKFLOW: Final = "publish"
_TABLES: Final = ("ingest_jobs", "workflow_runs", "workflow_node_jobs", "workflow_nodes", "audit_log")
_TRACE: Final = "Traceback (most recent call last):\n" + '  File "app/fetching.py", line 33, in fetch\n' * 8
_ERRORS: Final = (
    ("TimeoutError", "timed out after 30 s: /page/{n}"),
    ("ConnectionResetError", "the connection to site was reset by its peer"),
    ("ValueError", "page {n} has no title"),
    ("HTTPError", "503 Service Unavailable"),
)

# n of :rows jobs that are over, oldest first over 30 days: 94 % completed, 4 % failed, the rest cancelled and
# skipped; three of a rare task are among the oldest.
_ENDED: Final = """
WITH job AS (
    SELECT n, now() - interval '30 days' * (%(rows)s - n + 1) / %(rows)s AS at,
        CASE WHEN n %% 25 = 0 THEN 'failed' WHEN n %% 101 = 0 THEN 'cancelled'
            WHEN n %% 103 = 0 THEN 'skipped' ELSE 'completed' END AS status
    FROM generate_series(1, %(rows)s) AS n
)
"""
INGEST: Final = (
    _ENDED
    + """
INSERT INTO ingest_jobs (
    task_name, queue, status, args, result, attempt, failures, claimed_by, errors, limit_key,
    created_at, run_at, started_at, finished_at
)
SELECT CASE WHEN n <= 3 THEN %(rare)s ELSE (ARRAY['fetch', 'parse', 'index'])[1 + n %% 3] END,
    (ARRAY['fetch', 'parse', 'index', 'mail'])[1 + n %% 4], status,
    jsonb_build_object('url', 'https://site-' || n %% 1000 || '.example/page/' || n),
    CASE status WHEN 'completed' THEN jsonb_build_object('bytes', n * 37 %% 100000) END,
    CASE status WHEN 'failed' THEN 3 ELSE 1 END, CASE status WHEN 'failed' THEN 3 ELSE 0 END,
    'host' || 1 + n %% 5 || ':fetch:' || 1 + n %% 10,
    CASE status WHEN 'failed' THEN replace((%(errors)s::text[])[1 + (n / 25) %% 4], '{n}', n::text)::jsonb
        ELSE '[]' END,
    CASE WHEN n %% 3 = 0 THEN 'host:site-' || n %% 1000 || '.example' END,
    at, at, at + interval '2 s', at + interval '5 s'
FROM job ORDER BY n
"""
)
RUNS: Final = (
    _ENDED
    + """
INSERT INTO workflow_runs (
    id, workflow_name, spec, spec_hash, inputs, labels, status, created_at, started_at, finished_at
)
SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || substr(md5(n::text), 1, 3)
        || '8' || substr(md5(n::text), 4, 15))::uuid,
    (ARRAY['publish', 'crawl', 'report'])[1 + n %% 3], %(spec)s::jsonb, 'h', jsonb_build_object('page', n),
    jsonb_build_object('customer', 'c' || n %% 100), replace(status, 'skipped', 'completed'), at,
    at + interval '1 s', at + interval '60 s'
FROM job ORDER BY n
"""
)
RUN_NODES: Final = """
INSERT INTO workflow_nodes (
    run_id, node_id, state, jobs_total, jobs_completed, jobs_failed, jobs_attempted, started_at, finished_at
)
SELECT id, 'n' || k, CASE WHEN status = 'failed' AND k = 9 THEN 'failed' ELSE 'completed' END, 1,
    CASE WHEN status = 'failed' AND k = 9 THEN 0 ELSE 1 END,
    CASE WHEN status = 'failed' AND k = 9 THEN 1 ELSE 0 END, 1, created_at, finished_at
FROM workflow_runs CROSS JOIN generate_series(0, 9) AS k
"""
NODE_JOBS: Final = """
INSERT INTO workflow_node_jobs (
    run_id, node_id, node_module, queue, status, attempt, failures, claimed_by, errors,
    created_at, run_at, started_at, finished_at
)
SELECT id, 'n' || k, 'step', 'cpu', CASE WHEN status = 'failed' AND k = 9 THEN 'failed' ELSE 'completed' END,
    1, CASE WHEN status = 'failed' AND k = 9 THEN 1 ELSE 0 END, 'host' || 1 + k %% 5 || ':cpu:1',
    CASE WHEN status = 'failed' AND k = 9
        THEN replace(
            (%(errors)s::text[])[1 + (inputs ->> 'page')::int / 25 %% 4], '{n}', inputs ->> 'page'
        )::jsonb
        ELSE '[]' END,
    created_at + interval '5 s' * k, created_at + interval '5 s' * k, created_at + interval '5 s' * k,
    created_at + interval '5 s' * (k + 1)
FROM workflow_runs CROSS JOIN generate_series(0, 9) AS k
ORDER BY created_at, k
"""
WAITING: Final = """
INSERT INTO ingest_jobs (task_name, queue, args, limit_key, priority, created_at)
SELECT (ARRAY['fetch', 'parse', 'index'])[1 + n %% 3], (ARRAY['fetch', 'parse', 'index', 'mail'])[1 + n %% 4],
    jsonb_build_object('url', 'https://site-' || n %% 1000 || '.example/new/' || n),
    CASE WHEN n %% 3 = 0 THEN 'host:site-' || n %% 1000 || '.example' END, 5, now() - interval '10 ms' * n
FROM generate_series(1, %(waiting)s) AS n
"""
HELD: Final = """
INSERT INTO ingest_jobs (task_name, queue, status, limit_key, hold_reason, hold_key, run_at)
SELECT 'fetch', 'fetch', 'scheduled', 'host:site-' || n %% 50 || '.example', 'limit_full',
    'host:site-' || n %% 50 || '.example', now() + interval '1 h'
FROM generate_series(1, %(waiting)s / 50) AS n
"""
WORKING: Final = """
INSERT INTO ingest_jobs (task_name, queue, status, attempt, claimed_by, started_at, lease_expires_at)
SELECT 'fetch', 'fetch', 'running', 1, 'host' || 1 + n %% 5 || ':fetch:' || 1 + n / 5 %% 10, now(),
    now() + interval '1 day'
FROM generate_series(0, 49) AS n
"""
SLOTS: Final = """
INSERT INTO limit_slots (limit_key, slot, job_family, job_id, attempt, claimed_by, lease_expires_at)
SELECT 'host:site-' || row_number() OVER (ORDER BY id) || '.example', 0, 'ingest', id, 1, claimed_by,
    lease_expires_at
FROM ingest_jobs WHERE status = 'running'
"""
AUDIT: Final = """
INSERT INTO audit_log (at, actor, action, subject_kind, subject_id, reason)
SELECT now() - interval '4 min' * (10000 - n), 'ann', 'job.retry', 'job', 'ingest:' || n, 'the site is back'
FROM generate_series(1, 10000) AS n
"""
RECORDS: Final = """
INSERT INTO hook_records (run_id, node_job_id, attempt, plugin, hook, line_no, type, payload)
SELECT run_id, id, 1, 'title', 'on_page__title', 1, 'Result', '{"title": "Example"}'
FROM workflow_node_jobs WHERE run_id = %(run)s ORDER BY id LIMIT 1000
"""
# One node with a job for each element, begun a day ago; a tenth of them waits, and one of a thousand failed.
ELEMENTS: Final = """
INSERT INTO workflow_node_jobs (
    run_id, node_id, map_index, node_module, queue, status, attempt, claimed_by, errors, item, required_model,
    created_at, started_at, finished_at
)
SELECT %(run)s, 'each', n, 'draw', 'gpu', status, CASE status WHEN 'queued' THEN 0 ELSE 1 END,
    CASE status WHEN 'queued' THEN NULL ELSE 'host1:gpu:1' END,
    CASE status WHEN 'failed' THEN (%(errors)s::jsonb[])[1] ELSE '[]' END, to_jsonb(n), 'model-' || n %% 9,
    now() - interval '1 day', CASE status WHEN 'queued' THEN NULL ELSE at END,
    CASE status WHEN 'queued' THEN NULL ELSE at + interval '1 s' END
FROM generate_series(0, %(elements)s - 1) AS n,
    LATERAL (SELECT now() - interval '1 s' - interval '1 day' * (%(elements)s - n) / %(elements)s)
        AS began (at),
    LATERAL (SELECT CASE WHEN n %% 10 = 9 THEN 'queued' WHEN n %% 1000 = 0 THEN 'failed' ELSE 'completed' END)
        AS of (status)
ORDER BY n
"""
ELEMENTS_NODE: Final = """
INSERT INTO workflow_nodes (
    run_id, node_id, state, mapped, jobs_total, jobs_left, jobs_completed, jobs_failed, jobs_attempted,
    started_at
)
SELECT %(run)s, 'each', 'active', true, count(*), count(*) FILTER (WHERE status = 'queued'),
    count(*) FILTER (WHERE status = 'completed'), count(*) FILTER (WHERE status = 'failed'), count(*),
    now() - interval '1 day'
FROM workflow_node_jobs WHERE run_id = %(run)s
"""
# Half of the nodes are over, a few work, the rest waits for those before.
LARGE_NODES: Final = """
INSERT INTO workflow_nodes (
    run_id, node_id, state, jobs_total, jobs_left, jobs_completed, jobs_attempted, started_at, finished_at
)
SELECT %(run)s, node_id, CASE WHEN n <= at THEN 'completed' WHEN n <= at + 8 THEN 'active' ELSE 'waiting' END,
    CASE WHEN n <= at + 8 THEN 1 ELSE 0 END, CASE WHEN n BETWEEN at + 1 AND at + 8 THEN 1 ELSE 0 END,
    CASE WHEN n <= at THEN 1 ELSE 0 END, CASE WHEN n <= at THEN 1 ELSE 0 END,
    CASE WHEN n <= at + 8 THEN now() - interval '1 h' END, CASE WHEN n <= at THEN now() END
FROM unnest(%(nodes)s::text[]) WITH ORDINALITY AS node (node_id, n),
    cast(cardinality(%(nodes)s) / 2 AS int) AS at
"""
LARGE_JOBS: Final = """
INSERT INTO workflow_node_jobs (
    run_id, node_id, node_module, queue, status, attempt, claimed_by, created_at, started_at, finished_at
)
SELECT run_id, node_id, 'step', 'cpu', CASE state WHEN 'active' THEN 'queued' ELSE state END, jobs_attempted,
    CASE state WHEN 'completed' THEN 'host1:cpu:1' END, started_at,
    CASE state WHEN 'completed' THEN started_at END, finished_at
FROM workflow_nodes WHERE run_id = %(run)s AND state IN ('completed', 'active')
"""
OPEN_RUN: Final = (
    "UPDATE workflow_runs SET status = 'running', started_at = now(), nodes_left = 1 WHERE id = %s"
)
ASKS: Final = """
WITH node AS (
    INSERT INTO workflow_nodes (run_id, node_id, state, jobs_total, jobs_left, started_at)
    VALUES (%(run)s, 'approve', 'active', 1, 1, now())
)
INSERT INTO workflow_node_jobs (run_id, node_id, kind, queue, status, inputs)
VALUES (%(run)s, 'approve', 'input', 'cpu', 'awaiting_input', '{}')
"""
OF_ENDED: Final = "SELECT id FROM workflow_runs WHERE workflow_name = 'publish' ORDER BY id DESC LIMIT 1"
OF_WAITING: Final = (
    "SELECT id FROM ingest_jobs WHERE status = 'queued' AND limit_key IS NOT NULL ORDER BY id DESC LIMIT 1"
)
_READING: Final[dict[str, Any]] = {
    "machine": {
        "cpu_percent": 25.0,
        "cores": 16,
        "load": [1.25, 0.5, 0.0],
        "memory_total_mb": 65536,
        "memory_used_mb": 16384,
    },
    "devices": [],
    "troubles": [],
}


@dataclass(frozen=True)
class History:
    """Where it is, and the names of what stands for its kind there."""

    dsn: str
    job: str
    ended_run: uuid.UUID
    large_run: uuid.UUID
    # A node of the large run with one job, which waits.
    open_node: str
    elements_run: uuid.UUID
    asking_run: uuid.UUID


def put_history(
    dsn: str, *, ended: int, waiting: int, nodes: int, elements: int, say: Callable[[str], None]
) -> History:
    """Fill an empty database with that many jobs that are over, half of each family, and that wait."""
    errors = [f"[{error_entry('exception', text, error_type=of, traceback=_TRACE)}]" for of, text in _ERRORS]
    params = {"rows": ended // 2, "rare": RARE, "errors": errors, "waiting": waiting}
    with psycopg.connect(dsn, autocommit=True) as connection:
        _without_triggers(connection, "DISABLE")
        spec = load_document({"name": WORKFLOW, "nodes": _ten_nodes()}).snapshot()
        runs = {**params, "rows": ended // 2 // NODES_A_RUN, "spec": json.dumps(spec)}
        for what, sql, given in (
            ("ingest jobs", INGEST, params),
            ("runs", RUNS, runs),
            ("their nodes", RUN_NODES, None),
            ("their jobs", NODE_JOBS, params),
            ("what waits", WAITING, params),
            ("what is held", HELD, params),
            ("what works", WORKING, None),
            ("slots", SLOTS, None),
            ("the audit log", AUDIT, None),
        ):
            say(f"filling: {what}")
            connection.execute(sql if given else sql.replace("%%", "%"), given)
        large, open_node, each, asks = _runs(connection, nodes, elements, errors)
        _without_triggers(connection, "ENABLE")
        _fleet(connection)
        say("vacuum")
        connection.execute("VACUUM (ANALYZE)")
        connection.execute("CHECKPOINT")
        job, run = (connection.execute(sql).fetchone() for sql in (OF_WAITING, OF_ENDED))
        assert job is not None
        assert run is not None
    return History(dsn, f"ingest:{job[0]}", run[0], large, open_node, each, asks)


def _without_triggers(connection: psycopg.Connection[Any], verb: str) -> None:
    """What wakes workers has nobody to wake here."""
    for table in _TABLES:
        connection.execute(f"ALTER TABLE {table} {verb} TRIGGER USER")


def _ten_nodes() -> list[Mapping[str, Any]]:
    nodes: list[Mapping[str, Any]] = [{"id": "n0", "module": "step"}]
    return nodes + [
        {"id": f"n{k}", "module": "step", "depends_on": [f"n{k - 1}"]} for k in range(1, NODES_A_RUN)
    ]


def _large(count: int) -> list[Mapping[str, Any]]:
    """A plan, below it chains of three, and an end below those."""
    nodes: list[Mapping[str, Any]] = [{"id": "plan", "module": "plan"}]
    chains = max(1, (count - 2) // 3)
    for i in range(chains):
        above = "plan"
        for step in ("fetch", "parse", "index"):
            nodes.append({"id": f"{step}{i}", "module": step, "depends_on": [above]})
            above = f"{step}{i}"
    nodes.append({"id": "publish", "module": "publish", "depends_on": [f"index{i}" for i in range(chains)]})
    return nodes


def _runs(
    connection: psycopg.Connection[Any], nodes: int, elements: int, errors: Sequence[str]
) -> tuple[uuid.UUID, str, uuid.UUID, uuid.UUID]:
    """An open run of many nodes, one with a node of many elements, and one that asks somebody."""
    documents: dict[str, list[Mapping[str, Any]]] = {
        "large": _large(nodes),
        "elements": [{"id": "each", "module": "draw", "for_each": {"$value": [0]}}],
        "asks": [{"id": "approve", "type": "input", "prompt": "Publish it?", "schema": {}}],
    }
    started = {}
    for name, listed in documents.items():
        document = load_document({"name": name, "nodes": listed})
        made = RunRepository(connection).insert(name, spec=document.snapshot(), spec_hash=document.hash)
        started[name] = made.id
        connection.execute(OPEN_RUN, [made.id])
    names = [node["id"] for node in documents["large"]]
    large, each, asks = started["large"], started["elements"], started["asks"]
    connection.execute(LARGE_NODES, {"run": large, "nodes": names})
    connection.execute(LARGE_JOBS, {"run": large})
    connection.execute(ELEMENTS, {"run": each, "elements": elements, "errors": list(errors)})
    connection.execute(ELEMENTS_NODE, {"run": each})
    connection.execute(ASKS, {"run": asks})
    connection.execute(RECORDS, {"run": each})
    return large, names[len(names) // 2], each, asks


def _fleet(connection: psycopg.Connection[Any]) -> None:
    """Fifty workers on five machines, and what operators have set."""
    beats = HeartbeatRepository(connection)
    for host in range(1, 6):
        label = f"host{host}"
        for number in range(1, 11):
            queue = ("fetch", "fetch", "cpu", "gpu", "parse")[number % 5] if number > 1 else "fetch"
            beats.beat(
                f"{label}:{queue}:{number}", host_label=label, queue=queue, pid=number, state="idle",
                current_model=f"model-{number}" if queue == "gpu" else None,
            )  # fmt: skip
        HardwareRepository(connection).report(label, _READING, every_s=3600.0, parts=[])
        machine = MachineRepository(connection).seen(label)
        for binary in ("wget", "git", "node", "chromium"):
            BinaryRepository(connection).want(machine, binary, bin_providers="env,apt", overrides={})
    LimitRepository(connection).set("host:*", 1, actor="ann", reason="be kind to small sites")
    for number in range(20):
        RateRepository(connection).set(f"api:{number}", 2.0, 4.0, actor="ann", reason="as they ask for")
        ScheduleRepository(connection).upsert(
            f"nightly-{number}", cron="0 3 * * *", task_name="fetch", queue="fetch"
        )
