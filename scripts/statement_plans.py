"""The shapes of the plans in docs/reference/statements.md: node types and indexes, on filled tables."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
from psycopg import sql as composed
from statements import Statement, statements

from queue_workflows.db.connections.pins import PLANNER

VERSION = 18
# Fewer rows a table than ANALYZE samples, so that it sees all of them and no plan hangs on chance.
_FILL = """
SET session_replication_role = replica;
INSERT INTO workflow_runs (id, workflow_name, mode, spec, spec_hash, status, priority, finished_at)
SELECT ('00000000-0000-4000-8000-' || lpad(n::text, 12, '0'))::uuid, 'film', 'node', '{}', 'h',
    (ARRAY['completed', 'running', 'running', 'queued'])[1 + n % 4], n % 10,
    CASE WHEN n % 4 = 0 THEN now() END
FROM generate_series(1, 400) AS n;
INSERT INTO workflow_nodes (run_id, node_id, state)
SELECT id, 'n' || n, 'active' FROM workflow_runs CROSS JOIN generate_series(1, 5) AS n;
INSERT INTO workflow_dispatch_events (run_id, generation, attempt, kind, payload)
SELECT ('00000000-0000-4000-8000-' || lpad((1 + n % 200)::text, 12, '0'))::uuid, 1, n, 'completed', '{}'
FROM generate_series(1, 1000) AS n;
INSERT INTO workflow_node_jobs (run_id, node_id, map_index, queue, priority, status, claimed_by, attempt,
    finished_at, lease_expires_at, hold_reason, hold_key, limit_key, host_lock, required_model, run_at,
    started_at)
SELECT ('00000000-0000-4000-8000-' || lpad((1 + n % 400)::text, 12, '0'))::uuid, 'n' || n % 5, n,
    (ARRAY['cpu', 'gpu', 'hooks'])[1 + n % 3], n % 10, {columns} FROM {parts};
INSERT INTO ingest_jobs (task_name, dedupe_key, queue, priority, status, claimed_by, attempt, finished_at,
    lease_expires_at, hold_reason, hold_key, limit_key, host_lock, run_at, started_at)
SELECT 'fetch', 'k' || n, (ARRAY['web', 'mail', 'disk'])[1 + n % 3], n % 10, {ingest_columns} FROM {parts};
INSERT INTO worker_heartbeats (worker_id, host_label, queue, pid, state)
SELECT 'w' || n, 'h' || n % 10, (ARRAY['cpu', 'gpu', 'web'])[1 + n % 3], n, 'busy'
FROM generate_series(1, 200) AS n;
INSERT INTO concurrency_limits (key_pattern, max_slots)
SELECT 'key' || n, 4 FROM generate_series(1, 100) AS n;
INSERT INTO limit_slots (limit_key, slot, job_family, job_id, attempt, claimed_by, lease_expires_at)
SELECT 'key' || n, slot, 'ingest', n, 1, 'w', '-infinity'
FROM generate_series(1, 200) AS n, generate_series(0, 3) AS slot;
RESET session_replication_role;
"""
_COLUMNS = """part.status, CASE WHEN part.status = 'running' THEN 'w' || n % 200 END, 1,
    CASE WHEN part.status = 'completed' THEN now() END,
    CASE WHEN part.status = 'running' THEN now() + interval '1 h' END,
    part.reason, part.key || n % 100, CASE WHEN n % 5 = 0 THEN 'key' || n % 200 END,
    CASE WHEN part.reason = 'host_lock' THEN part.key || n % 100 END{more},
    now() + n * interval '1 s' * part.later, CASE WHEN part.status = 'running' THEN now() END"""
_PARTS = """(VALUES
    ('completed', NULL, NULL, 0, 1, 20000), ('queued', NULL, NULL, 0, 20001, 23000),
    ('scheduled', NULL, NULL, 1, 23001, 24000), ('scheduled', 'limit_full', 'key', 1, 24001, 25000),
    ('scheduled', 'host_lock', 'lock', 1, 25001, 26000), ('running', NULL, NULL, 0, 26001, 26200)
) AS part (status, reason, key, later, first, last) CROSS JOIN LATERAL generate_series(first, last) AS n"""
_TABLES = (
    *("workflow_runs", "workflow_nodes", "workflow_dispatch_events", "workflow_node_jobs", "ingest_jobs"),
    *("worker_heartbeats", "concurrency_limits", "limit_slots"),
)


def plans(dsn: str) -> dict[str, str]:
    """The plan of each statement by its title, on a migrated and empty database, which is filled."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        version = connection.info.server_version // 10_000
        if version != VERSION:
            raise SystemExit(f"docs: the plans are those of PostgreSQL {VERSION}, and this one is {version}")
        _fill(connection)
        for name, value in PLANNER.items():
            setting = composed.SQL("SET {} = {}").format(composed.Identifier(name), composed.Literal(value))
            connection.execute(setting)
        return {one.title: "\n".join(_shape(_plan(connection, one))) for one in statements()}


def _fill(connection: psycopg.Connection[Any]) -> None:
    for table in _TABLES:
        # What ANALYZE finds is then known to be what stands here.
        connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
    fill = _FILL.replace("{columns}", _COLUMNS.replace("{more}", ", 'model' || n % 20"))
    fill = fill.replace("{ingest_columns}", _COLUMNS.replace("{more}", "")).replace("{parts}", _PARTS)
    connection.execute(fill)
    connection.execute(f"VACUUM ANALYZE {', '.join(_TABLES)}")


def _plan(connection: psycopg.Connection[Any], statement: Statement) -> Mapping[str, Any]:
    """Of the prepared statement, for whatever its parameters are."""
    names: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        return f"${names.setdefault(found[1], len(names) + 1)}"

    text = re.sub(r"%\((\w+)\)[sb]", number, statement.sql).replace("%%", "%")
    connection.execute(f"PREPARE explained AS {text}".encode())
    given = f"({', '.join(['NULL'] * len(names))})" if names else ""
    ((found,),) = connection.execute(f"EXPLAIN (COSTS off, FORMAT JSON) EXECUTE explained{given}".encode())
    connection.execute("DEALLOCATE explained")
    plan = json.loads(found) if isinstance(found, str) else found
    return dict(plan[0]["Plan"])


def _shape(plan: Mapping[str, Any], depth: int = 0) -> Iterator[str]:
    """A line a node, the outer ones first."""
    if "Subplan Name" in plan:
        # Its number says nothing, and another version counts otherwise.
        yield "  " * depth + re.sub(r"^(InitPlan|SubPlan)\b.*", r"\1", plan["Subplan Name"])
        depth += 1
    yield "  " * depth + " ".join(_words(plan))
    for inner in plan.get("Plans", ()):
        yield from _shape(inner, depth + 1)


def _words(plan: Mapping[str, Any]) -> Iterator[str]:
    kind = plan["Node Type"]
    yield plan["Operation"] if kind == "ModifyTable" else kind
    if plan.get("Join Type") not in (None, "Inner"):
        yield plan["Join Type"].lower()
    if plan.get("Scan Direction") == "Backward":
        yield "backward"
    if "Index Name" in plan:
        yield f"by {plan['Index Name']}"
    of = plan.get("Relation Name") or plan.get("CTE Name") or plan.get("Function Name")
    if of is not None:
        yield f"on {of}"
    alias = plan.get("Alias")
    if alias not in (None, of):
        yield f"as {alias}"
