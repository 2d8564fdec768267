"""Lists of failed jobs: found at once beside any number of jobs that ended well."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.rows.jobs import Jobs, jobs_of
from support.rows.plans import explain, rows_read

from queue_workflows.repositories import RunRepository
from queue_workflows.repositories.reports import job_listing
from queue_workflows.repositories.reports.job_listing import JobFilter
from queue_workflows.repositories.sql.families import FAMILIES

ENDED = 50_000
FAILED = 1_000
STORED = {
    "ingest": """
        INSERT INTO ingest_jobs (task_name, queue, status, claimed_by, attempt, finished_at)
        SELECT 'task', 'fetch', CASE WHEN n <= %(failed)s THEN 'failed' ELSE 'completed' END, 'w', 1, now()
        FROM generate_series(1, %(count)s) AS n
    """,
    "node": """
        INSERT INTO workflow_node_jobs
            (run_id, node_id, map_index, queue, status, claimed_by, attempt, finished_at)
        SELECT %(run)s, 'n', n, 'cpu', CASE WHEN n <= %(failed)s THEN 'failed' ELSE 'completed' END,
            'w', 1, now()
        FROM generate_series(1, %(count)s) AS n
    """,
}
LOOKS = {"count": job_listing.COUNT, "page": job_listing.PAGE}


@pytest.fixture(scope="module", params=["node", "ingest"])
def family(request: pytest.FixtureRequest) -> str:
    """Both."""
    return request.param


@pytest.fixture(scope="module", params=["analyzed", "never analyzed"])
def crowded(family: str, request: pytest.FixtureRequest, qwf_dsn: str) -> Iterator[Jobs]:
    """The failed ones are the oldest, as they are when things go well since."""
    with jobs_of(family, qwf_dsn) as jobs:
        run = RunRepository(jobs.connection).insert("film", spec={}, spec_hash="h").id
        jobs.connection.execute(f"ALTER TABLE {jobs.table} SET (autovacuum_enabled = off)")
        jobs.connection.execute("SET session_replication_role = replica")
        jobs.connection.execute(STORED[family], {"run": run, "count": ENDED, "failed": FAILED})
        jobs.connection.execute("RESET session_replication_role")
        if request.param == "analyzed":
            jobs.connection.execute(f"VACUUM ANALYZE {jobs.table}")
        yield jobs
        jobs.connection.execute(f"ALTER TABLE {jobs.table} RESET (autovacuum_enabled)")


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS.keys())
@pytest.mark.parametrize("queue", [False, True], ids=["all", "of a queue"])
def test_only_failed_ones_are_read(crowded: Jobs, look: str, queue: bool, mode: str) -> None:
    """What an operator sees, counts and retries is found by the index that has nothing else in it."""
    family = next(one for one in FAMILIES if one.name == crowded.family)
    wanted = JobFilter(status=("failed",), queue=crowded.queue if queue else None)
    filters = wanted.where(family, after=0)
    source = family.source(wanted.status)
    sql = job_listing.written(look, family).replace("{source}", source).replace("{where}", filters.where)
    plan = explain(crowded.connection, mode, sql, filters.params | {"limit": 1000})
    read = [node for node in plan if node.get("Relation Name") == crowded.table]
    used = {node["Index Name"] for node in plan if "Index Name" in node}
    # To count them either will do; a page is read in the order of its index.
    either = {f"ix_{crowded.table}_failed", f"ix_{crowded.table}_failed_at"}
    assert used == {f"ix_{crowded.table}_failed"} or (look is job_listing.COUNT and used < either)
    assert [node["Actual Rows"] for node in read if "Scan" in node["Node Type"]] == [FAILED]
    assert all(node.get("Rows Removed by Filter", 0) == 0 for node in read)


LATELY = {"since_s": 86_400.0, "queue": None, "before_at": "infinity", "before_id": 2**63 - 1}


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("most", [10, 50_000])
def test_failures_are_read_by_when_they_ended(crowded: Jobs, most: int, mode: str) -> None:
    """The latest, as many as are looked at, each found and read by the one index."""
    family = next(one for one in FAMILIES if one.name == crowded.family)
    sql = job_listing.written(job_listing.FAILURES, family)
    plan = explain(crowded.connection, mode, sql, LATELY | {"most": most})
    assert "Seq Scan" not in {node["Node Type"] for node in plan}
    assert rows_read(plan, crowded.table) == min(most, FAILED)
    used = {node["Index Name"] for node in plan if node.get("Relation Name") == crowded.table}
    assert used == {f"ix_{crowded.table}_failed_at"}


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_failures_are_counted_by_when_they_ended(crowded: Jobs, mode: str) -> None:
    """Of the time that is asked for, whatever else there is."""
    family = next(one for one in FAMILIES if one.name == crowded.family)
    sql = job_listing.written(job_listing.COUNT_FAILED, family)
    plan = explain(crowded.connection, mode, sql, {"since_s": 86_400.0, "most": 100_000})
    used = {node["Index Name"] for node in plan if "Index Name" in node}
    assert used <= {f"ix_{crowded.table}_failed", f"ix_{crowded.table}_failed_at"}
    assert rows_read(plan, crowded.table) == FAILED


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("off", [(), ("seqscan", "bitmapscan")], ids=["any server", "our connections"])
@pytest.mark.parametrize("analyzed", [False, True], ids=["as it was", "analyzed since"])
def test_failures_of_long_ago_are_not_read(crowded: Jobs, mode: str, off: tuple[str, ...], analyzed: bool):
    """However many there are: nine of ten failed before the time that is asked for."""
    family = next(one for one in FAMILIES if one.name == crowded.family)
    sql = job_listing.written(job_listing.FAILURES, family)
    with crowded.connection.transaction(force_rollback=True):
        crowded.connection.execute(
            f"UPDATE {crowded.table} SET finished_at = now() - interval '2 days'"
            f" WHERE status = 'failed' AND id % 10 > 0"
        )
        if analyzed:
            crowded.connection.execute(f"ANALYZE {crowded.table}")
        plan = explain(crowded.connection, mode, sql, LATELY | {"most": 50_000}, off=off)
    assert rows_read(plan, crowded.table) == FAILED / 10
