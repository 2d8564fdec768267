"""What is read of a history of many months grows with what is asked for, not with what is there."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from support.rows.history import by_months, cleared, settle
from support.rows.plans import explain

from queue_workflows.repositories.explain.waits import ENDED, HOW_MANY, RAN_AT
from queue_workflows.repositories.jobs.ingest import FETCH_ANYWHERE
from queue_workflows.repositories.jobs.picked import PICKED_INGEST
from queue_workflows.repositories.reports import job_search
from queue_workflows.repositories.reports.drain_progress import OUTCOMES
from queue_workflows.repositories.reports.ends import MOVED
from queue_workflows.repositories.reports.job_listing import JobFilter
from queue_workflows.repositories.reports.queue_statistics import FINISHED
from queue_workflows.repositories.sql.bounded_walk import STEPS
from queue_workflows.repositories.sql.connection import Statements
from queue_workflows.repositories.sql.families import INGEST, LARGEST_ID

MONTHS = 24
A_MONTH = 1_000
# The last of them a day ago, one after the other over two years; some are left where they are.
OVER = f"""
INSERT INTO ingest_jobs (task_name, queue, status, created_at, finished_at)
SELECT 'task', 'fetch', CASE WHEN n % 50 = 0 THEN 'failed' ELSE 'completed' END,
    moment - interval '1 hour', moment
FROM generate_series(1, {MONTHS * A_MONTH}) AS n, LATERAL (
    SELECT now() - interval '25 hours' - interval '44 minutes' * ({MONTHS * A_MONTH} - n)
) AS one (moment)
"""
MODES = pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
# As the connections of roles and operators have it.
PINS = ("seqscan", "bitmapscan")


@pytest.fixture(scope="module")
def crowded(qwf_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """Two years of history, moved by months."""
    with cleared(qwf_dsn) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute(OVER)
        connection.execute("RESET session_replication_role")
        connection.execute("ANALYZE ingest_jobs")
        by_months(connection)
        settle(connection, retention_days=3650)
        connection.execute("VACUUM ANALYZE ingest_jobs, ingest_jobs_history")
        yield connection


def blocks(plan: list[dict[str, Any]]) -> int:
    """How many pages the statement has looked at."""
    return int(plan[0]["Shared Hit Blocks"] + plan[0]["Shared Read Blocks"])


@MODES
def test_a_job_is_found_by_its_id(crowded: psycopg.Connection[Any], mode: str) -> None:
    """By a look into the index of each month, and no more."""
    ((job_id,),) = crowded.execute("SELECT min(id) FROM ingest_jobs_history").fetchall()
    for statement, params in (
        (FETCH_ANYWHERE, {"id": job_id}),
        (PICKED_INGEST, {"ids": f"{{{job_id}}}"}),
        (MOVED, {"ingest": [job_id]}),
    ):
        plan = explain(crowded, mode, statement, params, PINS)
        assert plan[0]["Actual Rows"] == 1
        assert blocks(plan) <= 4 * (MONTHS + 2)


@MODES
@pytest.mark.parametrize(
    "wanted", [JobFilter(), JobFilter(queue="fetch", status=("completed",))], ids=["all", "some"]
)
def test_the_newest_are_read_alone(crowded: psycopg.Connection[Any], mode: str, wanted: JobFilter) -> None:
    """A page of the list reads about so many rows, from whatever month they are."""
    walk = job_search.walk_of(Statements(crowded, "ingest_jobs"), INGEST, INGEST.source(wanted.status))
    filters = wanted.where(INGEST)
    ((oldest,),) = crowded.execute("SELECT min(id) FROM ingest_jobs_history").fetchall()
    for before in (LARGEST_ID, oldest + 500):
        params = filters.params | {"before": before, "width": STEPS[0], "limit": 50}
        plan = explain(crowded, mode, walk.step(filters), params, PINS)
        read = sum(
            node["Actual Rows"] * node["Actual Loops"]
            for node in plan
            if node.get("Relation Name", "").startswith("ingest_jobs")
        )
        assert read <= 50 + 2 * (MONTHS + 2)
        assert blocks(plan) <= 8 * (MONTHS + 2) + 50


@MODES
def test_what_ended_lately_looks_into_no_other_month(crowded: psycopg.Connection[Any], mode: str) -> None:
    """Statistics of an hour leave the months alone that ended before."""
    ((hour_ago,),) = crowded.execute("SELECT now() - interval '1 hour'").fetchall()
    for statement, params in (
        (FINISHED["ingest"], {"window_s": 3600.0, "most": 20_000}),
        (OUTCOMES["ingest"], {"queue": "fetch", "since": hour_ago}),
        (ENDED["ingest"], {"begins": [hour_ago], "ends": [hour_ago + timedelta(hours=1)], "each": 50}),
        (HOW_MANY["ingest"], {"begins": [hour_ago], "ends": [hour_ago + timedelta(hours=1)], "most": 50}),
        (RAN_AT["ingest"], {"queue": "fetch", "at": hour_ago, "most": 50}),
    ):
        assert blocks(explain(crowded, mode, statement, params, PINS)) <= 30


def test_a_filter_by_what_does_not_move_reads_the_table_alone() -> None:
    """No month is looked at for what waits, runs or failed."""
    assert INGEST.source(["queued", "failed", "running"]) == "ingest_jobs"
    assert INGEST.source(["failed", "cancelled"]) == "ingest_jobs_and_history"
    assert INGEST.source() == "ingest_jobs_and_history"
