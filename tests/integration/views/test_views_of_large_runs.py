"""A run with a hundred thousand jobs is looked at as one with few: by index, and a bounded number of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.rows.jobs import CLEAR
from support.rows.plans import explain, rows_read
from support.rows.runs import dispatcher, settle, start

from queue_workflows.engine.explain.job import Knowledge
from queue_workflows.repositories.explain import explain_run
from queue_workflows.repositories.explain.explain_run import (
    COUNTED,
    COUNTED_IN_BRIEF,
    RunExplainingRepository,
)
from queue_workflows.repositories.hooks import records as record_rows
from queue_workflows.repositories.hooks.records import HookRecordRepository
from queue_workflows.repositories.runs import elements as element_rows
from queue_workflows.repositories.runs import job_times
from queue_workflows.repositories.runs.elements import MOST_LOOKED_AT, NodeElementRepository
from queue_workflows.views.runs.explain import explained_run

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


def test_open_jobs_are_counted_without_those_that_are_over(
    crowded: tuple[psycopg.Connection, uuid.UUID],
) -> None:
    """By their own indexes, where a run has many that are over."""
    connection, run = crowded
    params = {"run_id": run, "node_id": "draw", "most": 20}
    plan = explain(connection, "force_custom_plan", explain_run.GROUPS, params)
    assert "Seq Scan" not in {node["Node Type"] for node in plan}
    assert rows_read(plan, "workflow_node_jobs") <= 10


@MODES
@pytest.mark.parametrize("status", ["queued", "scheduled"])
def test_the_page_of_a_node_counts_few_of_what_is_open(qwf_dsn: str, mode: str, status: str) -> None:
    """A hundred thousand elements that wait cost what a thousand do, wherever in the table they are."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR)
        run = start(connection, DRAW)
        connection.execute(
            """
            INSERT INTO workflow_node_jobs (run_id, node_id, map_index, queue, status, finished_at)
            SELECT %(run)s, 'draw', n, 'cpu', CASE WHEN n < 20000 THEN 'completed' ELSE %(status)s END,
                CASE WHEN n < 20000 THEN now() END
            FROM generate_series(0, 29999) AS n
            """,
            {"run": run, "status": status},
        )
        connection.execute("VACUUM ANALYZE workflow_node_jobs")
        params = {"run_id": run, "node_id": "draw", "most": 20}
        plan = explain(connection, mode, explain_run.GROUPS_IN_BRIEF, params)
        told = explained_run(connection, run, Knowledge(stale_s=30.0, poll_s=1.0), node="draw", brief=True)
        connection.execute(CLEAR)
    assert "Seq Scan" not in {node["Node Type"] for node in plan}
    assert rows_read(plan, "workflow_node_jobs") <= COUNTED_IN_BRIEF + 1
    assert any(f"{COUNTED_IN_BRIEF:,}+ jobs" in reason.text for reason in told.told.reasons), (
        told.told.reasons
    )


def test_more_open_jobs_than_are_counted_are_so_many_and_more(qwf_dsn: str) -> None:
    """A count is exact to its bound; the commands and the page say where there are more."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR)
        run = start(connection, DRAW)
        connection.execute(
            "INSERT INTO workflow_node_jobs (run_id, node_id, map_index, queue, status, run_at)"
            " SELECT %s, 'draw', n, 'cpu', 'scheduled', now() + interval '1 h'"
            " FROM generate_series(0, %s) AS n",
            [run, COUNTED],
        )
        told = explained_run(connection, run, Knowledge(stale_s=30.0, poll_s=1.0)).told
        connection.execute("DELETE FROM workflow_node_jobs WHERE map_index = %s", [COUNTED])
        exact = explained_run(connection, run, Knowledge(stale_s=30.0, poll_s=1.0)).told
        connection.execute(CLEAR)
    (reason,) = (one for one in told.reasons if one.code == "jobs_scheduled")
    assert reason.text == "node draw: 100,000+ jobs on cpu are scheduled"
    assert (reason.data["jobs"], reason.data["more"]) == (COUNTED, True)
    (reason,) = (one for one in exact.reasons if one.code == "jobs_scheduled")
    assert reason.text == "node draw: 100,000 jobs on cpu are scheduled"
    assert "more" not in reason.data


def test_explaining_a_run_does_not_read_its_document(qwf_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many of its nodes wait: it may be larger than all the rest."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        run = start(connection, {"nodes": [{"id": f"n{i}", "module": "m"} for i in range(3)]})
        settle(dispatcher(connection))
        asked: list[str] = []
        before = psycopg.Cursor.execute

        def noted(cursor: Any, query: Any, *more: Any, **named: Any) -> Any:
            asked.append(query.decode() if isinstance(query, bytes) else str(query))
            return before(cursor, query, *more, **named)

        monkeypatch.setattr(psycopg.Cursor, "execute", noted)
        there = RunExplainingRepository(connection).circumstances(run)
    assert there is not None
    assert [one.run.id for one in there.jobs.values() if one.run is not None] == [run] * 3
    assert not [text for text in asked if "spec::text" in text]


@pytest.fixture(scope="module")
def records(qwf_dsn: str) -> Iterator[tuple[psycopg.Connection, uuid.UUID]]:
    """Two hundred thousand records of hooks, of which the last fifty are of one run."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR)
        many, few = start(connection, DRAW), start(connection, DRAW)
        for run, jobs, lines in ((many, 200, 1_000), (few, 1, 50)):
            connection.execute(
                """
                WITH job AS (
                    INSERT INTO workflow_node_jobs (run_id, node_id, map_index, queue)
                    SELECT %(run)s, 'draw', n, 'hooks' FROM generate_series(1, %(jobs)s) AS n
                    RETURNING id
                )
                INSERT INTO hook_records (run_id, node_job_id, attempt, plugin, hook, line_no, type)
                SELECT %(run)s, id, 1, 'words', 'on_Crawl', line, 'Result'
                FROM job, generate_series(1, %(lines)s) AS line
                """,
                {"run": run, "jobs": jobs, "lines": lines},
            )
        connection.execute("VACUUM ANALYZE hook_records")
        yield connection, few
        connection.execute(CLEAR)


@MODES
def test_the_records_of_a_run_are_read_without_those_of_others(
    records: tuple[psycopg.Connection, uuid.UUID], mode: str
) -> None:
    """Though they stand behind them all."""
    connection, run = records
    found = HookRecordRepository(connection).list(run, limit=20)
    assert [one.line_no for one in found] == list(range(1, 21))
    where = " WHERE run_id = %(run_id)s::uuid AND id > %(after)s::bigint"
    sql = record_rows.LIST.replace("{where}", where)
    plan = explain(connection, mode, sql, {"run_id": run, "after": found[0].id, "limit": 51})
    assert rows_read(plan, "hook_records") <= 50
