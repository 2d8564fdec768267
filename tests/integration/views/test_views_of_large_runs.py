"""A run with a hundred thousand jobs is looked at as one with few: by index, and a bounded number of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest
from support.rows.jobs import CLEAR
from support.rows.plans import explain, rows_read
from support.rows.runs import start

from queue_workflows.repositories.runs import elements as element_rows
from queue_workflows.repositories.runs import job_times
from queue_workflows.repositories.runs.elements import MOST_LOOKED_AT, NodeElementRepository

DRAW = {"name": "film", "nodes": [{"id": "draw", "module": "m"}]}
MANY = 100_000
FAILED_AT = 60_000
MODES = pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])


@pytest.fixture(scope="module")
def crowded(qwf_dsn: str) -> Iterator[tuple[psycopg.Connection, uuid.UUID]]:
    """A node of a hundred thousand elements of which two have failed."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR)
        run = start(connection, DRAW)
        connection.execute(
            """
            INSERT INTO workflow_node_jobs (run_id, node_id, map_index, queue, status, finished_at)
            SELECT %s, 'draw', n, 'cpu', CASE WHEN n IN (7, %s) THEN 'failed' ELSE 'completed' END, now()
            FROM generate_series(0, %s) AS n
            """,
            [run, FAILED_AT, MANY - 1],
        )
        connection.execute("VACUUM ANALYZE workflow_node_jobs")
        yield connection, run
        connection.execute(CLEAR)


@MODES
@pytest.mark.parametrize("state", [None, "failed", "running"])
def test_a_page_of_a_large_node_costs_like_one_of_a_small(
    crowded: tuple[psycopg.Connection, uuid.UUID], mode: str, state: str | None
) -> None:
    """Its next elements are read by index, to a bound, and no others."""
    connection, run = crowded
    most = MOST_LOOKED_AT if state else 51
    params = {"run_id": run, "node_id": "draw", "state": state, "after": 50_000, "limit": 51, "most": most}
    plan = explain(connection, mode, element_rows.PAGE, params)
    assert "Seq Scan" not in {node["Node Type"] for node in plan}
    assert rows_read(plan, "workflow_node_jobs") <= most + 51


def test_a_search_goes_on_where_it_ended(crowded: tuple[psycopg.Connection, uuid.UUID]) -> None:
    """However far away the next that matches is, each page looks at a bounded number."""
    connection, run = crowded
    found, after, pages = [], None, 0
    while pages == 0 or after is not None:
        page = NodeElementRepository(connection).page(run, "draw", state="failed", after=after)
        found += [one.index for one in page.elements]
        after, pages = page.next, pages + 1
    assert (found, pages) == ([7, FAILED_AT], MANY // MOST_LOOKED_AT + 1)


@MODES
def test_a_timeline_reads_a_bounded_number_of_jobs(
    crowded: tuple[psycopg.Connection, uuid.UUID], mode: str
) -> None:
    """However many the run has."""
    connection, run = crowded
    plan = explain(connection, mode, job_times.TIMES, {"run_id": run, "limit": 2_001})
    assert "Seq Scan" not in {node["Node Type"] for node in plan}
    assert rows_read(plan, "workflow_node_jobs") <= 2_001
