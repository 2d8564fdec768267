"""Searching jobs and runs page by page: nothing is shown twice or left out, and every search has an end."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.rows.jobs import CLEAR, Jobs, jobs_of
from support.rows.plans import explain, rows_read

from queue_workflows.errors import FilterRefused
from queue_workflows.repositories import RunRepository
from queue_workflows.repositories.reports import job_search, run_search
from queue_workflows.repositories.reports.job_listing import JobFilter
from queue_workflows.repositories.reports.job_search import JobPage, JobSearch
from queue_workflows.repositories.reports.run_search import RunPage, RunSearch
from queue_workflows.repositories.runs.listing import RunFilter
from queue_workflows.repositories.sql.bounded_walk import FEW, MOST, STEPS
from queue_workflows.repositories.sql.connection import Statements
from queue_workflows.repositories.sql.families import BY_NAME

ENDED = 120_000
# Far below where one search ends, and the oldest but for a few.
RARE = 30
STORED = {
    "ingest": """
        INSERT INTO ingest_jobs (task_name, queue, status, claimed_by, attempt, finished_at, created_at)
        SELECT CASE WHEN n IN (%(rare)s, %(count)s) THEN 'rare' ELSE 'task' END, 'fetch', 'completed', 'w', 1,
            now(), now() - (%(count)s - n) * interval '1 s'
        FROM generate_series(1, %(count)s) AS n
    """,
    "node": """
        INSERT INTO workflow_node_jobs
            (run_id, node_id, map_index, queue, status, claimed_by, attempt, finished_at, created_at)
        SELECT %(run)s, CASE WHEN n IN (%(rare)s, %(count)s) THEN 'rare' ELSE 'n' END, n, 'cpu', 'completed',
            'w', 1, now(), now() - (%(count)s - n) * interval '1 s'
        FROM generate_series(1, %(count)s) AS n
    """,
}


@pytest.fixture(scope="module", params=["node", "ingest"])
def crowded(request: pytest.FixtureRequest, qwf_dsn: str) -> Iterator[Jobs]:
    """120,000 jobs that ended well, a second apart, and a few that wait."""
    with jobs_of(request.param, qwf_dsn) as jobs:
        run = RunRepository(jobs.connection).insert("film", spec={}, spec_hash="h").id
        jobs.connection.execute(f"ALTER TABLE {jobs.table} SET (autovacuum_enabled = off)")
        jobs.connection.execute("SET session_replication_role = replica")
        jobs.connection.execute(STORED[jobs.family], {"run": run, "count": ENDED, "rare": RARE})
        jobs.connection.execute("RESET session_replication_role")
        jobs.enqueue(3)
        jobs.connection.execute(f"VACUUM ANALYZE {jobs.table}")
        yield jobs
        jobs.connection.execute(f"ALTER TABLE {jobs.table} RESET (autovacuum_enabled)")


def rare(jobs: Jobs, **more: Any) -> JobFilter:
    """The filter that two jobs match, the newest and an old one."""
    return JobFilter(**({"task": "rare"} if jobs.family == "ingest" else {"node": "rare"}), **more)


def pages_of(look: Callable[[str | None], Any]) -> list[Any]:
    """All pages of a list."""
    pages = [look(None)]
    while pages[-1].cursor is not None:
        pages.append(look(pages[-1].cursor))
    return pages


def walks(plan: list[dict[str, Any]], table: str) -> list[dict[str, Any]]:
    """The scans of a table, but for the look at the one row that a step ends with."""
    scans = [node for node in plan if node.get("Relation Name") == table]
    return [node for node in scans if "id = " not in node.get("Index Cond", "")]


def test_a_search_that_few_match_ends_and_goes_on(crowded: Jobs) -> None:
    """It says how far it came, its cursor goes on from there, and the last page has none."""
    pages: list[JobPage] = pages_of(
        lambda cursor: JobSearch(crowded.connection).page(rare(crowded), before=cursor)
    )
    assert [len(page.lines) for page in pages] == [1, 0, 1]
    assert [page.searched_back_to is not None for page in pages] == [True, True, False]
    (edge,) = crowded.connection.execute(
        f"SELECT created_at FROM {crowded.table} ORDER BY id DESC OFFSET %s LIMIT 1", [MOST - 1]
    ).fetchone() or (None,)
    assert pages[0].searched_back_to == edge


@pytest.mark.parametrize(("within_s", "looked_at"), [(1e-9, 2 * STEPS[0]), (3600.0, MOST)])
def test_a_search_in_haste_looks_at_less_where_rows_are_slow_to_read(
    crowded: Jobs, within_s: float, looked_at: int
) -> None:
    """By what its first step took; it says how far it came, and further looks find all the same."""
    pages = pages_of(
        lambda cursor: JobSearch(crowded.connection, within_s=within_s).page(rare(crowded), before=cursor)
    )
    assert sum(len(page.lines) for page in pages) == 2
    (edge,) = crowded.connection.execute(
        f"SELECT created_at FROM {crowded.table} ORDER BY id DESC OFFSET %s LIMIT 1", [looked_at - 1]
    ).fetchone() or (None,)
    assert pages[0].searched_back_to == edge


def test_a_narrow_search_goes_as_far_each_time(crowded: Jobs) -> None:
    """Over five times its first step, whatever it looks at; further looks find all the same."""
    search = JobSearch(crowded.connection, narrow=True)
    pages = pages_of(lambda cursor: search.page(rare(crowded), before=cursor))
    assert sum(len(page.lines) for page in pages) == 2
    (edge,) = crowded.connection.execute(
        f"SELECT created_at FROM {crowded.table} ORDER BY id DESC OFFSET %s LIMIT 1", [9_999]
    ).fetchone() or (None,)
    assert pages[0].searched_back_to == edge


def test_a_search_that_costs_more_looks_at_less(crowded: Jobs) -> None:
    """At fewer rows for an error, and at fewer still for a group of errors."""
    search = JobSearch(crowded.connection)
    pages = [search.page(JobFilter(error=error, family=crowded.family)) for error in (None, "x", "x #")]
    assert [page.searched_back_to is None for page in pages] == [True, False, False]
    looked_at = [
        crowded.connection.execute(
            f"SELECT count(*) FROM {crowded.table} WHERE id >= %s",
            [int(str(page.cursor).removeprefix(crowded.family))],
        ).fetchone()
        for page in pages[1:]
    ]
    assert looked_at == [(20_000,), (5_000,)]


def test_a_search_by_age_ends_where_it_may(crowded: Jobs) -> None:
    """What is too young is not passed by row by row, and below what is too old nothing is looked at."""
    search = JobSearch(crowded.connection)
    old = search.page(rare(crowded, older_than_s=(ENDED - 60.0)))
    assert ([line.created_at for line in old.lines] != [], old.cursor) == (True, None)
    young = search.page(rare(crowded, newer_than_s=3600.0))
    assert (len(young.lines), young.searched_back_to, young.cursor) == (1, None, None)


@pytest.mark.parametrize(
    "status", [("queued",), ("running",), ("failed",), ("queued", "scheduled", "running")]
)
def test_a_status_with_an_index_is_searched_whole(crowded: Jobs, status: tuple[str, ...]) -> None:
    """However much is over."""
    page = JobSearch(crowded.connection).page(JobFilter(status=status))
    assert len(page.lines) == (3 if "queued" in status else 0)
    assert (page.searched_back_to, page.cursor) == (None, None)


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("base", ["", "status = 'failed'"], ids=["all", "failed"])
@pytest.mark.parametrize("deep", [False, True], ids=["from the newest", "from the middle"])
def test_a_step_reads_what_it_may(crowded: Jobs, base: str, deep: bool, mode: str) -> None:
    """By an index in the order of ids, twice at most: for what matches, and for where it ends."""
    walk = job_search.walk_of(Statements(crowded.connection, crowded.table), BY_NAME[crowded.family])
    filters = rare(crowded, error="x", worker="w").where(BY_NAME[crowded.family])
    params = filters.params | {"before": ENDED // 2 if deep else 2**62, "width": 1000, "limit": 50}
    plan = explain(crowded.connection, mode, walk.step(filters, base=base), params)
    scans = walks(plan, crowded.table)
    assert {node["Node Type"] for node in scans} <= {"Index Scan", "Index Only Scan"}
    expected = f"ix_{crowded.table}_failed" if base else f"pk_{crowded.table}"
    assert {node["Index Name"] for node in scans} == {expected}
    assert rows_read(plan, crowded.table) <= 2001


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("queue", [None, "fetch"])
@pytest.mark.parametrize("status", ["queued", "scheduled", "running"])
def test_an_index_of_a_status_is_read_alone(crowded: Jobs, status: str, queue: str | None, mode: str) -> None:
    """Nothing of what is over is looked at, neither to count nor to list."""
    family = BY_NAME[crowded.family]
    wanted = JobFilter(status=(status,), queue=queue)
    walk = job_search.walk_of(Statements(crowded.connection, crowded.table), family)
    filters, served = wanted.where(family), job_search.served_by_indexes(wanted, family)
    params = filters.params | {"few": FEW + 1, "limit": 50}
    for sql in (walk.how_many(served), walk.lines_of_few(filters, served)):
        plan = explain(crowded.connection, mode, sql, params)
        scans = [node for node in plan if node.get("Relation Name") == crowded.table]
        assert scans
        assert all(node["Node Type"] != "Seq Scan" for node in scans), scans
        assert f"pk_{crowded.table}" not in {node.get("Index Name") for node in scans}
        assert rows_read(plan, crowded.table) <= 3


def test_what_is_on_hold_is_found_by_its_reason(crowded: Jobs) -> None:
    """Among any number that ended, and nowhere among what is in another status."""
    search = JobSearch(crowded.connection)
    with crowded.connection.transaction(force_rollback=True):
        held = [crowded.enqueue(1)[0] for _ in range(2)]
        crowded.connection.execute(
            f"UPDATE {crowded.table} SET status = 'scheduled', hold_reason = 'lock', hold_key = 'disk'"
            " WHERE id = ANY(%s)",
            [held],
        )
        wanted = {
            JobFilter(held="lock"): held[::-1],
            JobFilter(held="any", status=("scheduled", "queued")): held[::-1],
            JobFilter(held="limit_full"): [],
            JobFilter(held="any", status=("queued",)): [],
        }
        for each, expected in wanted.items():
            page = search.page(each)
            assert ([line.id for line in page.lines], page.searched_back_to) == (expected, None), each


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_where_an_age_begins_is_found_by_halving(crowded: Jobs, mode: str) -> None:
    """A row for each half of the ids."""
    sql = job_search.OLD_ENOUGH.replace("{table}", crowded.table)
    plan = explain(crowded.connection, mode, sql, {"before": 2**62, "age_s": 3600.0})
    scans = [node for node in plan if node.get("Relation Name") == crowded.table]
    assert {node["Node Type"] for node in scans} <= {"Index Scan", "Index Only Scan"}
    assert rows_read(plan, crowded.table) <= 40


MANY = "INSERT INTO ingest_jobs (task_name, queue, status) SELECT 'task', 'fetch', 'queued' FROM"


def test_a_page_asks_eight_statements_at_most(qwf_engine: sa.Engine, qwf_dsn: str) -> None:
    """Of both families together, also where an index has more rows than are read whole."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR)
        connection.execute(f"{MANY} generate_series(1, {MOST + 1})")
    asked: list[str] = []
    sa.event.listen(qwf_engine, "before_cursor_execute", lambda *given: asked.append(given[2]))
    absent = JobFilter(worker="absent")
    for wanted in (absent, replace(absent, status=("queued",), older_than_s=7 * 86_400.0)):
        asked.clear()
        with qwf_engine.connect() as connection:
            page = JobSearch(connection).page(wanted)
        assert (list(page.lines), 0 < len(asked) <= 8) == ([], True), asked


def test_pages_show_each_job_once(qwf_conn: psycopg.Connection) -> None:
    """Of both families, in the order of their ages, also when jobs come and go between two pages."""
    qwf_conn.execute(CLEAR)
    chance = random.Random(7)
    nodes, ingests = Jobs("node", qwf_conn), Jobs("ingest", qwf_conn)
    names = []
    for _ in range(40):
        jobs = chance.choice([nodes, ingests])
        names += [f"{jobs.family}:{job_id}" for job_id in jobs.enqueue(chance.randint(1, 3))]
    search = JobSearch(qwf_conn)
    pages = pages_of(lambda cursor: search.page(JobFilter(), limit=7, before=cursor))
    shown = [line for page in pages for line in page.lines]
    assert sorted(line.name for line in shown) == sorted(names)
    assert [line.created_at for line in shown] == sorted((one.created_at for one in shown), reverse=True)
    assert {len(page.lines) for page in pages[:-1]} == {7}
    first = search.page(JobFilter(), limit=7)
    ingests.enqueue()
    gone = shown[7]
    qwf_conn.execute(
        f"DELETE FROM {(nodes if gone.family == 'node' else ingests).table} WHERE id = %s", [gone.id]
    )
    again = search.page(JobFilter(), limit=7, before=first.cursor)
    assert [line.name for line in again.lines] == [line.name for line in shown[8:15]]


@pytest.mark.parametrize(
    "cursor", ["", "7", "node7", "ingest7.node7", "node7.ingest7x", "node7.ingest" + "9" * 19]
)
def test_what_is_no_cursor_is_refused(qwf_conn: psycopg.Connection, cursor: str) -> None:
    """Or is that of another list."""
    with pytest.raises(FilterRefused, match="is no place in this list"):
        JobSearch(qwf_conn).page(JobFilter(), before=cursor)
    with pytest.raises(FilterRefused, match="is no place in this list"):
        RunSearch(qwf_conn).page(RunFilter(), before=cursor)


@pytest.fixture(scope="module")
def runs(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """60,000 runs that ended well, of which the newest and an old one are of a workflow of their own."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR)
        connection.execute("ALTER TABLE workflow_runs SET (autovacuum_enabled = off)")
        connection.execute(
            "INSERT INTO workflow_runs (id, workflow_name, spec, spec_hash, status, finished_at)"
            " SELECT lpad(to_hex(n), 32, '0')::uuid, CASE WHEN n IN (5, 60000) THEN 'rare' ELSE 'film' END,"
            " '{}', 'h', 'completed', now() FROM generate_series(1, 60000) AS n"
        )
        connection.execute("VACUUM ANALYZE workflow_runs")
        yield connection
        connection.execute("ALTER TABLE workflow_runs RESET (autovacuum_enabled)")
        connection.execute(CLEAR)


def test_a_search_of_runs_ends_and_goes_on(runs: psycopg.Connection) -> None:
    """As one of jobs does."""
    search = RunSearch(runs)
    pages: list[RunPage] = pages_of(lambda cursor: search.page(RunFilter(workflow="rare"), before=cursor))
    assert [[line.id.int for line in page.lines] for page in pages] == [[60_000], [5]]
    assert [page.searched_back_to is not None for page in pages] == [True, False]
    shown = [
        line.id
        for page in pages_of(lambda at: search.page(RunFilter(), limit=9_000, before=at))
        for line in page.lines
    ]
    assert [one.int for one in shown] == list(range(60_000, 0, -1))


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("base", ["", "status = 'running'"], ids=["all", "running"])
def test_a_step_of_runs_reads_what_it_may(runs: psycopg.Connection, base: str, mode: str) -> None:
    """By an index in the order of ids."""
    walk = run_search.walk_of(Statements(runs, "workflow_runs"))
    filters = RunFilter(workflow="rare", labels={"customer": "ann"}).where()
    params = filters.params | {"before": uuid.UUID(int=2**127), "width": 1000, "limit": 50}
    plan = explain(runs, mode, walk.step(filters, base=base), params)
    scans = walks(plan, "workflow_runs")
    assert {node["Index Name"] for node in scans} == {
        "ix_workflow_runs_running" if base else "pk_workflow_runs"
    }
    assert rows_read(plan, "workflow_runs") <= 2001
