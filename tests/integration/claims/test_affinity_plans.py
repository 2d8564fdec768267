"""What the claim of workers with loaded models costs: the same whatever waits, and other queues nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg._queries import MAX_CACHED_STATEMENT_LENGTH
from support.rows.jobs import Jobs, jobs_of
from support.rows.plans import explain

from queue_workflows.db.connections.pins import PLANNER
from queue_workflows.repositories import RunRepository
from queue_workflows.repositories.claims.claim_by_model import (
    CLAIM_WARM,
    CLAIM_WARM_BUT,
    LOOKED_AT,
    First,
    Preference,
    claim_params,
)
from queue_workflows.repositories.sql.arrays import texts
from queue_workflows.repositories.sql.low_water_marks import PRIORITIES

TABLE = "workflow_node_jobs"
ROWS, MODELS, WARM = 60_000, 500, ("m7", "m8", "m9", "none")
STORE = """
    INSERT INTO workflow_node_jobs
        (run_id, node_id, map_index, queue, priority, host_priority, required_model)
    SELECT %s, 'n', n, 'gpu', 5 + n %% 2, n %% 3, CASE WHEN n %% 20 > 0 THEN 'm' || (n %% %s) END
    FROM generate_series(1, %s) AS n
"""
OVER = """
    INSERT INTO workflow_node_jobs
        (run_id, node_id, map_index, queue, status, claimed_by, attempt, finished_at)
    SELECT %s, 'over', n, 'gpu', 'completed', 'w', 1, now() FROM generate_series(1, %s) AS n
"""
# More than others would put on hold, of one module with a loaded model, before all else.
CROWD = 3_000
LACKED = """
    INSERT INTO workflow_node_jobs
        (run_id, node_id, map_index, queue, priority, host_priority, required_model, node_module)
    SELECT run_id, 'lacked', map_index, queue, 9, host_priority, 'm7', 'lacked' FROM workflow_node_jobs
    WHERE queue = 'gpu' AND status = 'queued' ORDER BY map_index LIMIT %s
"""
ELSEWHERE = STORE.replace("'gpu'", "'cpu'").replace("'n'", "'c'")
PINNED = tuple(name.removeprefix("enable_") for name in PLANNER if name.startswith("enable_"))


@pytest.fixture(scope="module", params=["never analyzed", "analyzed", "analyzed while idle"])
def crowded(qwf_dsn: str, request: pytest.FixtureRequest) -> Iterator[Jobs]:
    """Many jobs of many models, and as many of another queue."""
    with jobs_of("node", qwf_dsn) as jobs:
        jobs.connection.execute(f"ALTER TABLE {TABLE} SET (autovacuum_enabled = off)")
        run = RunRepository(jobs.connection).insert("film", spec={}, spec_hash="h").id
        jobs.connection.execute("SET session_replication_role = replica")
        if request.param == "analyzed while idle":
            jobs.connection.execute(OVER, [run, ROWS])
            jobs.connection.execute(f"VACUUM ANALYZE {TABLE}")
        for sql in (STORE, ELSEWHERE):
            jobs.connection.execute(sql, [run, MODELS, ROWS])
        jobs.connection.execute("RESET session_replication_role")
        if request.param == "analyzed":
            jobs.connection.execute(f"VACUUM ANALYZE {TABLE}")
        yield jobs
        jobs.connection.execute(f"ALTER TABLE {TABLE} RESET (autovacuum_enabled)")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("off", [(), PINNED], ids=["all nodes", "as a worker"])
@pytest.mark.parametrize("first", ["high", "low"])
@pytest.mark.parametrize("oldest", [(), PRIORITIES], ids=["by what is warm", "the oldest"])
def test_a_claim_reads_a_bounded_number_of_rows(
    crowded: Jobs, mode: str, off: tuple[str, ...], first: First, oldest: tuple[int, ...]
) -> None:
    """Some of each loaded model and of each turn, in the order of an index; one row is locked."""
    preference = Preference(warm=WARM, oldest=oldest, yield_s=1.0, first=first)
    params = claim_params("gpu", preference, "w", 30.0)
    plan = explain(crowded.connection, mode, CLAIM_WARM[first], params, off)
    scans = [node for node in plan if node.get("Relation Name") == TABLE and "Scan" in node["Node Type"]]
    assert "Seq Scan" not in {node["Node Type"] for node in scans}
    assert sum(read_by(node) for node in scans) <= (len(WARM) + 4) * LOOKED_AT
    (locked,) = [node for node in plan if node["Node Type"] == "LockRows"]
    assert locked["Actual Rows"] * locked["Actual Loops"] == 1
    used = {node["Index Name"] for node in scans if "Index Name" in node}
    assert used >= {f"ix_{TABLE}_model_{first}", f"ix_{TABLE}_any_{first}"}
    assert plan[0]["Shared Hit Blocks"] + plan[0]["Shared Read Blocks"] < 2_000


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("first", ["high", "low"])
def test_a_claim_that_passes_a_crowd_reads_it_once_by_each_way(
    crowded: Jobs, mode: str, first: First
) -> None:
    """Which are three: by age, by its model, by what the host prefers: none of it is put aside."""
    preference = Preference(warm=WARM, oldest=PRIORITIES, yield_s=1.0, first=first)
    params = claim_params("gpu", preference, "w", 30.0) | {"but": texts(["lacked"])}
    with crowded.connection.transaction(force_rollback=True):
        crowded.connection.execute("SET LOCAL session_replication_role = replica")
        crowded.connection.execute(LACKED, [CROWD])
        plan = explain(crowded.connection, mode, CLAIM_WARM_BUT[first], params, PINNED)
    scans = [node for node in plan if node.get("Relation Name") == TABLE and "Scan" in node["Node Type"]]
    assert "Seq Scan" not in {node["Node Type"] for node in scans}
    assert CROWD <= sum(read_by(node) for node in scans) <= 3 * CROWD + (len(WARM) + 4) * LOOKED_AT
    (locked,) = [node for node in plan if node["Node Type"] == "LockRows"]
    assert locked["Actual Rows"] * locked["Actual Loops"] == 1


def read_by(node: dict[str, Any]) -> float:
    """The rows that a scan looked at."""
    removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return float((node["Actual Rows"] + removed) * node["Actual Loops"])


def test_the_driver_keeps_what_it_has_parsed(qwf_dsn: str) -> None:
    """As with the other statements that are sent over and over."""
    assert max(len(sql.encode()) for sql in CLAIM_WARM.values()) <= MAX_CACHED_STATEMENT_LENGTH


def test_rows_of_other_queues_are_in_none_of_its_indexes(qwf_dsn: str) -> None:
    """So that a job of `cpu` costs no entry more; nor does one that no worker may claim."""
    with psycopg.connect(qwf_dsn) as connection:
        rows = connection.execute(
            "SELECT indexname, indexdef FROM pg_indexes WHERE indexname ~ '_(any|model)_(high|low)$'"
        ).fetchall()
    assert len(rows) == 4
    assert all("'gpu'" in definition and "'queued'" in definition for _, definition in rows)
