"""`qwf run grid` and `qwf run workflows`: a workflow by its last runs."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.commands import Said, qwf_here
from support.rows.jobs import CLEAR
from support.rows.plans import explain, rows_read
from support.rows.runs import dispatcher, run_through, settle, start

from queue_workflows.repositories.reports import run_grid as grid
from queue_workflows.repositories.reports.run_grid import RunGridRepository
from queue_workflows.views import workflows

CHAIN: dict[str, Any] = {
    "name": "chain",
    "nodes": [
        {"id": "read", "module": "m"},
        {"id": "store", "module": "m", "depends_on": ["read"]},
        {"id": "tell", "module": "m", "depends_on": ["store"]},
    ],
}
SHORT: dict[str, Any] = {"name": "chain", "nodes": CHAIN["nodes"][:1]}


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR)
        yield connection


@pytest.fixture
def qwf(qwf_dsn: str) -> Callable[..., Said]:
    """`qwf run` on the test's database."""

    def run(*arguments: object, status: int = 0) -> Said:
        return qwf_here("--db", qwf_dsn, "run", *map(str, arguments), status=status)

    return run


@pytest.fixture
def runs(conn: psycopg.Connection) -> list[uuid.UUID]:
    """One of an older document, one that completed, one that failed, and one that nobody has begun."""

    def body(job: Any) -> dict[str, Any]:
        if job.node_id == "store":
            raise ValueError("full")
        return {}

    made = [start(conn, SHORT), start(conn, CHAIN)]
    run_through(conn, dispatcher(conn), lambda _job: {})
    made.append(start(conn, CHAIN))
    run_through(conn, dispatcher(conn), body)
    made.append(start(conn, CHAIN))
    return made


def test_a_workflow_by_its_last_runs(qwf, runs):
    """A line a node, a column a run, the newest last; what an older document did not have is left blank."""
    said = qwf("grid", "chain", "--ascii")
    assert said.stdout.splitlines() == [
        f"(run)  **X.  {runs[-1]}",
        "read   ***o",
        "store   *Xo",
        "tell    *-o",
    ]
    assert said.stderr == ""


def test_a_grid_in_json(qwf, conn, runs):
    """By pages: each run with its times and a cell a node, in the order of the newest document."""
    told = json.loads(qwf("grid", "chain", "--json", "--limit", 2).stdout)
    assert (told["workflow"], told["nodes"], told["next"]) == (
        *("chain", ["read", "store", "tell"]),
        str(runs[2]),
    )
    newest, failed = told["runs"]
    assert (newest["run"], newest["status"], newest["finished_at"]) == (str(runs[3]), "queued", None)
    assert [cell["state"] for cell in failed["cells"]] == ["completed", "failed", "cancelled"]
    assert [cell["failed"] for cell in failed["cells"]] == [0, 1, 0]
    older = json.loads(qwf("grid", "chain", "--json", "--before", runs[2]).stdout)
    assert [one["run"] for one in older["runs"]] == [str(runs[1]), str(runs[0])]
    assert older["next"] is None
    assert qwf("grid", "chain", "--before", runs[0]).stderr == "there is no earlier run of chain\n"


def test_a_workflow_that_never_ran(qwf, runs):
    """Is said to be none, with where to look."""
    said = qwf("grid", "chian", status=2)
    assert (
        said.stderr
        == "qwf: there is no workflow 'chian' — `qwf run workflows` lists those that ran of late\n"
    )


def test_the_workflows_of_late(qwf, conn, runs):
    """That which ran last first, with how many of its runs are open and failed."""
    other = start(conn, {**SHORT, "name": "other"})
    settle(dispatcher(conn))
    told = json.loads(qwf("workflows", "--json").stdout)
    assert [(one["workflow"], one["runs"], one["unfinished"], one["failed"]) for one in told] == [
        ("other", 1, 1, 0),
        ("chain", 4, 1, 1),
    ]
    assert [one["last_run"] for one in told] == [str(other), str(runs[3])]
    assert qwf("workflows").stdout.splitlines()[0].split()[:4] == ["WORKFLOW", "RUNS", "OPEN", "FAILED"]


def test_a_search_goes_on_where_it_ended(conn, runs):
    """A bounded number of runs is looked at, whatever they are of."""
    start(conn, {**SHORT, "name": "other"})
    repository, found, before, pages = RunGridRepository(conn), [], None, 0
    while pages == 0 or before is not None:
        page = repository.runs("chain", before=before, most=2)
        found += [run.id for run in page.runs]
        before, pages = page.next, pages + 1
    assert (found, pages) == (runs[::-1], 3)


def test_the_command_of_a_grid():
    """Is quoted for a shell."""
    run = uuid.UUID(int=7)
    assert workflows.command_of("my film", before=run) == f"qwf run grid 'my film' --before {run}"


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
def test_a_grid_costs_no_more_with_more_runs(conn, mode):
    """The latest are read by the primary key, to a bound, and the nodes of those that are shown."""
    conn.execute(
        """
        INSERT INTO workflow_runs (id, workflow_name, spec, spec_hash, status, finished_at)
        SELECT gen_random_uuid(), 'film' || n % 100, '{"nodes": [{"id": "draw"}]}', 'h', 'completed', now()
        FROM generate_series(1, 30000) AS n
        """
    )
    conn.execute("INSERT INTO workflow_nodes (run_id, node_id) SELECT id, 'draw' FROM workflow_runs")
    conn.execute("VACUUM ANALYZE workflow_runs, workflow_nodes")
    params: dict[str, Any] = {"workflow": "film7", "before": uuid.UUID(int=2**128 - 1), "limit": 21}
    found = explain(conn, mode, grid.RUNS, params | {"most": 1_000})
    page = RunGridRepository(conn).runs("film7", most=1_000)
    ids = [run.id for run in page.runs]
    cells = explain(conn, mode, grid.CELLS, {"run_ids": ids, "node_ids": list(page.nodes)})
    names = explain(conn, mode, grid.WORKFLOWS, {"limit": 200, "most": 1_000})
    for plan in (found, cells, names):
        assert "Seq Scan" not in {node["Node Type"] for node in plan}
        assert rows_read(plan, "workflow_runs", "workflow_nodes") <= 1_000 + 2 * 21
    conn.execute(CLEAR)
