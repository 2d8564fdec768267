"""What is asked of one run, and why it waits, is answered by index, however many runs and nodes there are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from support.rows.jobs import CLEAR
from support.rows.plans import explain

from queue_workflows.repositories.explain import explain_run
from queue_workflows.repositories.hooks import records
from queue_workflows.repositories.jobs import hooks
from queue_workflows.repositories.runs import operator_verbs, tree

SPEC = json.dumps({"name": "film", "nodes": [{"id": "draw", "module": "m"}]})
FILL = (
    f"""
    INSERT INTO workflow_runs (id, workflow_name, spec, spec_hash, status, finished_at)
    SELECT gen_random_uuid(), 'film', '{SPEC}', 'h', 'completed', now() FROM generate_series(1, 20000)
    """,
    f"""
    INSERT INTO workflow_runs (id, workflow_name, spec, spec_hash, status, started_at)
    SELECT gen_random_uuid(), 'film', '{SPEC}', 'h', 'running', now() FROM generate_series(1, 50)
    """,
    """
    INSERT INTO workflow_nodes (run_id, node_id, state, jobs_total, jobs_completed)
    SELECT id, 'draw', 'completed', 1, 1 FROM workflow_runs
    """,
    """
    INSERT INTO workflow_node_jobs (run_id, node_id, queue, status, finished_at)
    SELECT id, 'draw', 'cpu', 'completed', now() FROM workflow_runs WHERE status = 'completed'
    """,
    """
    INSERT INTO workflow_node_jobs (run_id, node_id, queue) SELECT id, 'draw', 'cpu'
    FROM workflow_runs WHERE status = 'running'
    """,
    """
    INSERT INTO workflow_dispatch_events (run_id, generation, attempt, kind)
    SELECT id, 1, 0, 'cancel' FROM workflow_runs LIMIT 5000
    """,
    """
    INSERT INTO hook_records (run_id, node_job_id, attempt, plugin, hook, line_no, type)
    SELECT run_id, id, nth, 'p', 'h', line_no, 'Result'
    FROM workflow_node_jobs, generate_series(1, 3) AS nth, generate_series(0, 1) AS line_no
    WHERE status = 'completed'
    """,
    """
    UPDATE workflow_runs SET parent_run_id = (SELECT id FROM workflow_runs WHERE status = 'running' LIMIT 1),
        parent_node_job_id = 7
    WHERE id IN (SELECT id FROM workflow_runs WHERE status = 'completed' LIMIT 3000)
    """,
)
TABLES = ("workflow_runs", "workflow_nodes", "workflow_node_jobs", "workflow_dispatch_events", "hook_records")
BY_WHOM: dict[str, Any] = {"actor": "ann", "why": None, "details": "{}"}
# By name, with what each is asked besides the run.
STATEMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "cancel": (operator_verbs.CANCEL, {"ids": None, "payload": "{}", **BY_WHOM}),
    "its children": (operator_verbs.CHILDREN, {"jobs": [7]}),
    "a node": (operator_verbs.NODE, {"node_id": "draw"}),
    "look": (operator_verbs.LOOK, {}),
    "lock": (operator_verbs.LOCK, {}),
    "lock unless held": (operator_verbs.LOCK_UNLESS_HELD, {}),
    "pruned": (operator_verbs.PRUNED, {}),
    "reopen": (
        operator_verbs.REOPEN,
        {
            "nodes_left": 1,
            "untouched": ["a"],
            "anew": ["draw"],
            "from_start": ["draw"],
            "unsealed": True,
            **BY_WHOM,
        },
    ),
    "reopened": (operator_verbs.REOPENED, {"payload": "{}"}),
    "goes on": (tree.GOES_ON, {}),
    "those that share a lock": (hooks.SHARERS, {"lock": "l"}),
    "the mark of its directory": (hooks.DIRECTORY_MARK, {}),
    "mark its directory": (
        hooks.MARK_DIRECTORY,
        {"mark": "m", "job_id": 7, "attempt": 1, "claimed_by": "w"},
    ),
    "earlier attempts": (records.EARLIER, {"id": 7, "attempt": 3, "most": 5}),
    "an attempt": (records.OF_ATTEMPT, {"id": 7, "attempt": 2}),
    "explain": (explain_run.RUN, {"orchestrators": "qwf:%"}),
    "its outbox": (explain_run.OUTBOX, {}),
    "what fails": (explain_run.FAILING, {"most": 5}),
    "its open jobs": (explain_run.GROUPS, {"node_id": None, "most": 20}),
    "the open jobs of a node": (explain_run.GROUPS, {"node_id": "draw", "most": 20}),
    "the open jobs of a node in brief": (explain_run.GROUPS_IN_BRIEF, {"node_id": "draw", "most": 20}),
    "runs that it waits for": (explain_run.CHILDREN, {"jobs": [7]}),
    "its tree": (explain_run.TREE, {}),
    "nodes": (explain_run.NODES, {"nodes": ["draw"]}),
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(True, id="analyzed"),
        pytest.param(False, id="never analyzed", marks=pytest.mark.slow),
    ],
)
def crowded(qwf_dsn: str, request: pytest.FixtureRequest) -> Iterator[psycopg.Connection]:
    """20,000 runs that are over and 50 that are not, with a node each."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR)
        for table in TABLES:
            connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        connection.execute("SET session_replication_role = replica")
        for statement in FILL:
            connection.execute(statement)
        connection.execute("RESET session_replication_role")
        if request.param:
            connection.execute(f"VACUUM ANALYZE {', '.join(TABLES)}")
        yield connection


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_by_index(crowded: psycopg.Connection, mode: str) -> None:
    """None of these tables is read as a whole by any of the statements."""
    rows = crowded.execute("SELECT id FROM workflow_runs WHERE status = 'running' LIMIT 1").fetchall()
    found = {name: whole(crowded, mode, sql, more, rows[0][0]) for name, (sql, more) in STATEMENTS.items()}
    assert not any(found.values()), found


def whole(crowded: psycopg.Connection, mode: str, sql: str, more: dict[str, Any], run_id: UUID) -> set[str]:
    """The tables that are read from one end to the other."""
    params = {"run_id": run_id, **more}
    if "ids" in params:
        params["ids"] = [run_id]
    plan = explain(crowded, mode, sql, params)
    return {node["Relation Name"] for node in plan if node["Node Type"] == "Seq Scan"} & set(TABLES)
