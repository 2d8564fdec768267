"""The plans of the orchestrator's statements: an event costs what it concerns, however much is stored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from support.rows.plans import explain, rows_read

from queue_workflows.db.connections.pins import PLANNER
from queue_workflows.engine.runs import parked_inputs as answers
from queue_workflows.repositories import retention
from queue_workflows.repositories.runs import finished, nodes, outbox, parked, tree

PLAN_MODES = ("force_custom_plan", "force_generic_plan")
# What their connections switch off, so that tables without statistics are read by index.
AS_ORCHESTRATORS = tuple(name.removeprefix("enable_") for name in PLANNER if name.startswith("enable_"))
RUNS, NODES = 400, 50
JOBS = f"""
    INSERT INTO workflow_node_jobs (run_id, node_id, queue, kind, status, expires_at, finished_at)
    SELECT id, 'n' || n, 'cpu', CASE n % 25 WHEN 0 THEN 'input' ELSE 'task' END,
        CASE WHEN n % 25 = 0 AND finished_at IS NULL THEN 'awaiting_input' ELSE 'completed' END,
        now() + make_interval(days => n),
        CASE WHEN n % 25 = 0 AND finished_at IS NULL THEN NULL ELSE now() END
    FROM workflow_runs, generate_series(1, {NODES}) AS n WHERE (finished_at IS NULL) = %(going)s
"""
# Old runs that are over.
OVER = (
    f"""
    INSERT INTO workflow_runs (id, workflow_name, spec, spec_hash, status, finished_at)
    SELECT gen_random_uuid(), 'film', '{{}}', 'h', 'completed', now() - make_interval(days => n % 60)
    FROM generate_series(1, {RUNS // 2}) AS n
    """,
    JOBS.replace("%(going)s", "false"),
    f"""
    INSERT INTO workflow_nodes (run_id, node_id, state)
    SELECT id, 'n' || n, 'completed' FROM workflow_runs, generate_series(1, {NODES}) AS n
    """,
    """
    INSERT INTO workflow_input_submissions (run_id, node_id, payload, status, processed_at)
    SELECT id, 'n25', '{}', 'accepted', now() FROM workflow_runs, generate_series(1, 5)
    """,
)
# Going ones with jobs, two of which have events, and a few that wait to begin.
GOING = (
    f"""
    INSERT INTO workflow_runs (id, workflow_name, spec, spec_hash, status)
    SELECT gen_random_uuid(), 'film', '{{}}', 'h', 'running' FROM generate_series(1, {RUNS // 2})
    """,
    JOBS.replace("%(going)s", "true"),
    f"""
    INSERT INTO workflow_nodes (run_id, node_id, state)
    SELECT id, 'n' || n, 'completed' FROM workflow_runs, generate_series(1, {NODES}) AS n
    WHERE finished_at IS NULL
    """,
    f"""
    INSERT INTO workflow_node_jobs (run_id, node_id, map_index, queue, status, run_at)
    SELECT id, 'later', n, 'cpu', 'scheduled', now() + interval '1 hour'
    FROM workflow_runs, generate_series(1, {NODES // 5}) AS n WHERE status = 'running'
    """,
    """
    INSERT INTO workflow_input_submissions (run_id, node_id, payload)
    SELECT id, 'n25', '{}' FROM workflow_runs, generate_series(1, 5) WHERE status = 'running'
    """,
    """
    INSERT INTO workflow_dispatch_events (run_id, node_job_id, generation, attempt, kind)
    SELECT run_id, id, 1, 1, 'completed' FROM workflow_node_jobs WHERE run_id IN (
        SELECT id FROM workflow_runs WHERE status = 'running' ORDER BY id LIMIT 150
    ) AND status = 'completed'
    """,
    """
    INSERT INTO workflow_dispatch_events (run_id, generation, attempt, kind, next_try_at)
    SELECT id, 1, 0, 'run_finished', now() + interval '1 hour'
    FROM workflow_runs WHERE finished_at IS NOT NULL
    """,
    """
    INSERT INTO workflow_runs (id, workflow_name, spec, spec_hash)
    SELECT gen_random_uuid(), 'film', '{}', 'h' FROM generate_series(1, 60)
    """,
)
TABLES = (
    "workflow_runs",
    "workflow_node_jobs",
    "workflow_nodes",
    "workflow_dispatch_events",
    "workflow_input_submissions",
)
# When the planner was last told what is stored, if ever.
ANALYZED = ("afterwards", "while idle", "while filled", "never")


@pytest.fixture(scope="module", params=ANALYZED, ids=[f"analyzed {when}" for when in ANALYZED])
def crowded(qwf_dsn: str, request: pytest.FixtureRequest) -> Iterator[psycopg.Connection[Any]]:
    """20,000 node jobs, most of them over, with statistics, stale ones, and none."""
    when = request.param
    with (
        psycopg.connect(qwf_dsn, autocommit=True) as connection,
        psycopg.connect(qwf_dsn, autocommit=True) as analyst,
    ):
        connection.execute("TRUNCATE workflow_runs CASCADE")
        for table in TABLES:
            connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
        connection.execute("SET session_replication_role = replica")

        def fill(statements: tuple[str, ...], then_analyze: bool) -> None:
            for statement in statements:
                connection.execute(statement)
            if then_analyze:
                analyst.execute(f"VACUUM ANALYZE {', '.join(TABLES)}")

        if when == "while filled":
            # It finds the pages, and no row that it may see.
            with connection.transaction():
                fill(OVER + GOING, then_analyze=True)
        else:
            fill(OVER, then_analyze=when == "while idle")
            fill(GOING, then_analyze=when == "afterwards")
        connection.execute("RESET session_replication_role")
        if when == "never":
            # What an earlier test had analyzed outlives a TRUNCATE.
            gone = "DELETE FROM pg_statistic WHERE starelid = ANY (%s::regclass[])"
            connection.execute(gone, [list(TABLES)])
        yield connection


@pytest.fixture
def run_id(crowded: psycopg.Connection[Any]) -> UUID:
    """A run with events."""
    rows = "SELECT run_id FROM workflow_dispatch_events WHERE kind = 'completed' ORDER BY run_id LIMIT 1"
    return crowded.execute(rows).fetchone()[0]  # type: ignore[index]


def scanned(plan: list[dict[str, Any]]) -> list[str]:
    """Tables that are read from one end to the other."""
    return [node["Relation Name"] for node in plan if node["Node Type"] == "Seq Scan"]


def indexes(plan: list[dict[str, Any]]) -> set[str]:
    return {node["Index Name"] for node in plan if "Index Name" in node}


@pytest.mark.parametrize("mode", PLAN_MODES)
def test_runs_are_found_one_look_each(crowded, mode: str) -> None:
    """However many events a run has, and without a look at those that are over."""
    plan = explain(crowded, mode, outbox.FIND_RUNS, {"after": outbox.NO_RUN}, AS_ORCHESTRATORS)
    assert scanned(plan) == []
    assert "ix_workflow_dispatch_events_run" in indexes(plan)
    read = [n for n in plan if n.get("Index Name") == "ix_workflow_dispatch_events_run"]
    assert all(node["Actual Rows"] <= 1 for node in read)


@pytest.mark.parametrize("mode", PLAN_MODES)
def test_queued_runs_are_found_in_order(crowded, mode: str) -> None:
    """By the index of those that wait, without sorting."""
    plan = explain(crowded, mode, outbox.FIND_QUEUED, {}, off=AS_ORCHESTRATORS)
    assert "ix_workflow_runs_to_begin" in indexes(plan)
    assert plan[0]["Actual Rows"] == outbox.BEGUN_AT_ONCE
    assert "workflow_runs" not in scanned(plan)


@pytest.mark.parametrize("mode", PLAN_MODES)
def test_a_batch_reads_what_it_concerns(crowded, run_id: UUID, mode: str) -> None:
    """The run's own events and their jobs, each by its key."""
    plan = explain(crowded, mode, outbox.LOCK, {"run_id": run_id})
    assert (scanned(plan), plan[0]["Actual Rows"]) == ([], 1)
    with crowded.transaction(force_rollback=True):
        crowded.execute("SELECT set_config('qwf.locked_run', %s, true)", [str(run_id)])
        take = {"run_id": run_id, "only": None}
        plan = explain(crowded, mode, outbox.TAKE, take, off=AS_ORCHESTRATORS)
    assert (scanned(plan), plan[0]["Actual Rows"]) == ([], NODES - 2)
    events = {"ix_workflow_dispatch_events_run", "pk_workflow_dispatch_events"}
    assert {"pk_workflow_node_jobs"} <= indexes(plan) <= {"pk_workflow_node_jobs", *events}


@pytest.mark.parametrize("mode", PLAN_MODES)
def test_nodes_are_read_and_written_by_their_key(crowded, run_id: UUID, mode: str) -> None:
    """A few nodes of one run."""
    plan = explain(crowded, mode, nodes.READ, {"run_id": run_id, "node_ids": ["n1", "n2", "n3"]})
    assert (scanned(plan), indexes(plan)) == ([], {"pk_workflow_nodes"})
    assert plan[0]["Actual Rows"] == 3


@pytest.mark.parametrize("mode", PLAN_MODES)
def test_jobs_are_stopped_by_run_and_node(crowded, run_id: UUID, mode: str) -> None:
    """Without a look at other runs."""
    params = {"run_id": run_id, "node_ids": ["n25", "n50"], "reason": "no"}
    plan = explain(crowded, mode, outbox.STOP, params)
    assert "workflow_node_jobs" not in scanned(plan)
    assert plan[0]["Actual Rows"] == 2


@pytest.mark.parametrize("mode", PLAN_MODES)
def test_a_seal_looks_at_its_own_run(crowded, run_id: UUID, mode: str) -> None:
    """For what of its background is on hold."""
    plan = explain(crowded, mode, outbox.SEAL, {"run_id": run_id}, off=AS_ORCHESTRATORS)
    assert "workflow_node_jobs" not in scanned(plan)
    assert plan[0]["Actual Rows"] == 1


@pytest.mark.parametrize("mode", PLAN_MODES)
def test_upkeep_reads_what_is_due(crowded, mode: str) -> None:
    """Parked jobs by their time, ends of runs by theirs, old runs by when they ended."""
    no_answer = {"error": '{"kind": "expired"}'}
    assert "ix_workflow_node_jobs_awaiting" in indexes(explain(crowded, mode, parked.EXPIRE, no_answer))
    assert "ix_workflow_node_jobs_awaiting" in indexes(explain(crowded, mode, parked.NEXT_DUE, {}))
    lease = explain(crowded, mode, finished.LEASE, {"lease_s": 60.0})
    assert "ix_workflow_dispatch_events_finished" in indexes(lease)
    times = {"kept_s": 30 * 86_400.0, "ttl_s": 0.0, "but": [], "since": None}
    old = explain(crowded, mode, retention.OLD_RUNS, times, off=AS_ORCHESTRATORS)
    assert "ix_workflow_runs_finished" in indexes(old)


@pytest.mark.parametrize("mode", PLAN_MODES)
def test_old_runs_lose_their_jobs_by_their_ids(crowded, run_id: UUID, mode: str) -> None:
    """Without a look at the jobs of others."""
    params = {"kept_s": 30 * 86_400.0, "ttl_s": 0.0, "run_ids": [run_id]}
    plan = explain(crowded, mode, retention.DELETE_JOBS, params, off=AS_ORCHESTRATORS)
    assert scanned(plan) == []


@pytest.mark.parametrize("mode", PLAN_MODES)
def test_a_child_asks_for_its_successor_by_its_node_job(crowded, run_id: UUID, mode: str) -> None:
    """However many siblings it has."""
    with crowded.transaction(force_rollback=True):
        crowded.execute(
            "INSERT INTO workflow_runs"
            " (id, workflow_name, spec, spec_hash, parent_run_id, parent_node_job_id)"
            " SELECT gen_random_uuid(), 'kid', '{}', 'h', %s, n FROM generate_series(1, 500) AS n",
            [run_id],
        )
        (child,) = crowded.execute("SELECT id FROM workflow_runs WHERE parent_node_job_id = 250").fetchone()
        plan = explain(crowded, mode, outbox.SUCCESSOR, {"run_id": child}, off=AS_ORCHESTRATORS)
    (asked,) = (node for node in plan if node.get("Index Name") == "ix_workflow_runs_children")
    assert asked["Actual Rows"] + asked.get("Rows Removed by Filter", 0) <= 1


@pytest.mark.parametrize("mode", PLAN_MODES)
def test_a_run_looks_below_it_for_what_is_open(crowded, run_id: UUID, mode: str) -> None:
    """However many runs below it are over, and however many wait for their turn in its tree."""
    going = """
        INSERT INTO workflow_runs (
            id, workflow_name, spec, spec_hash, parent_run_id, capped_by, status, finished_at, hold_reason
        )
        SELECT gen_random_uuid(), 'page', '{}', 'h', %(run_id)s, %(run_id)s, CASE
            WHEN n < 5 THEN 'running' WHEN n < 300 THEN 'completed' ELSE 'queued'
        END, CASE WHEN n BETWEEN 5 AND 299 THEN now() END, CASE WHEN n >= 300 THEN 'open_runs' END
        FROM generate_series(1, 900) AS n
    """
    of_run = {"run_id": run_id}
    with crowded.transaction(force_rollback=True):
        crowded.execute(going, of_run)
        found = {
            name: rows_read(explain(crowded, mode, sql, params, AS_ORCHESTRATORS), "workflow_runs")
            for name, sql, params in (
                ("children", tree.HAS_CHILDREN, of_run),
                ("tell", tree.TELL, of_run | {"parent": True, "cap": True}),
                ("admit", tree.ADMIT, of_run | {"most": 8}),
                ("cap", tree.CAP, of_run),
            )
        }
        done = "UPDATE workflow_runs SET status = 'completed', finished_at = now() WHERE parent_run_id = %s"
        crowded.execute(done + " AND finished_at IS NULL", [run_id])
        plan = explain(crowded, mode, tree.LOOK, of_run, AS_ORCHESTRATORS)
    assert max(found.values()) <= 40, found
    below = {node["Index Name"] for node in plan if node.get("Relation Name") == "workflow_runs"}
    assert below == {"ix_workflow_runs_below"}


@pytest.mark.parametrize("mode", PLAN_MODES)
def test_an_orchestrator_reads_what_it_is_about(crowded, run_id: UUID, mode: str) -> None:
    """However wrong the planner is about what is stored: no more than a run has, or than is asked for."""
    of_run = {"run_id": run_id}
    answered = of_run | {"node_id": "n25"}
    pruned = {"kept_s": 0.0, "ttl_s": 0.0}
    with crowded.transaction(force_rollback=True):
        crowded.execute("SELECT set_config('qwf.locked_run', %s, true)", [str(run_id)])
        due = (
            "UPDATE workflow_node_jobs SET expires_at = now() WHERE run_id = %s AND status = 'awaiting_input'"
        )
        crowded.execute(due, [run_id])
        found = {
            name: rows_read(explain(crowded, mode, sql, params, AS_ORCHESTRATORS), *TABLES)
            for name, sql, params in (
                ("take", outbox.TAKE, of_run | {"only": None}),
                ("due events", outbox.DUE_EVENTS, of_run),
                ("stop", outbox.STOP, of_run | {"node_ids": ["n25", "n50"], "reason": "no"}),
                ("seal", outbox.SEAL, of_run),
                ("pending", answers.PENDING, answered),
                ("announce", answers.ANNOUNCE, answered),
                ("expire", parked.EXPIRE, {"error": "{}"}),
                ("old jobs", retention.DELETE_JOBS, pruned | {"run_ids": [run_id]}),
                ("old run", retention.DELETE_RUN, pruned | of_run),
            )
        }
    # Each event is found, deleted and seen with its job.
    assert max(found.values()) <= 3 * NODES, found
