"""Views of runs and of what stands beside them: the page's JSON is what the command that is named prints."""

from __future__ import annotations

import json
import shlex
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.commands import qwf_here
from support.rows.jobs import CLEAR
from support.rows.runs import dispatcher, run_through, start

from queue_workflows.config import effective_settings
from queue_workflows.engine.explain.job import Knowledge
from queue_workflows.repositories.runs.listing import RunFilter
from queue_workflows.repositories.schedules.schedules import ScheduleRepository
from queue_workflows.repositories.workers.machines import MachineRepository
from queue_workflows.views import audit, workflows
from queue_workflows.views.hooks import binaries, records
from queue_workflows.views.json_values import plain
from queue_workflows.views.runs import elements, explain, listing, show, timeline
from queue_workflows.views.schedules import listing as schedules
from queue_workflows.views.schedules import preview

DRAW: dict[str, Any] = {
    "name": "film",
    "nodes": [
        {"id": "draw", "module": "m", "for_each": {"$value": [1, 2, 3]}},
        {"id": "tell", "module": "m", "depends_on": ["draw"]},
    ],
}


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR)
        yield connection


@pytest.fixture
def run(conn: psycopg.Connection) -> uuid.UUID:
    """A run that failed, was asked to be run again, and has said something by a hook."""

    def body(job: Any) -> dict[str, Any]:
        if job.node_id == "tell":
            raise ValueError("nobody listens")
        return {}

    made = start(conn, DRAW, labels={"customer": "ann"})
    run_through(conn, dispatcher(conn), body)
    conn.execute(
        "INSERT INTO audit_log (actor, action, subject_kind, subject_id)"
        " VALUES ('ann', 'run.retry', 'run', %s)",
        [str(made)],
    )
    conn.execute(
        """
        INSERT INTO hook_records (run_id, node_job_id, attempt, plugin, hook, line_no, type, payload)
        SELECT run_id, id, 1, 'words', 'on_Crawl', 1, 'Result', '{"status": "succeeded"}'
        FROM workflow_node_jobs WHERE node_id = 'tell'
        """
    )
    return made


@pytest.fixture
def printed(qwf_dsn: str) -> Callable[[str], Any]:
    """What a command prints as JSON."""

    def run(command: str) -> Any:
        program, *words = shlex.split(command)
        assert program == "qwf"
        return json.loads(qwf_here("--db", qwf_dsn, *words, "--json").stdout)

    return run


def as_read(value: Any) -> Any:
    """A view's JSON as another program reads it."""
    return json.loads(json.dumps(value, default=plain))


def without_clock(told: Any) -> Any:
    """What does not depend on when it was asked."""
    if isinstance(told, list):
        return [without_clock(one) for one in told]
    return {name: value for name, value in told.items() if name != "at"}


def test_lists_and_a_run(conn: psycopg.Connection, run: uuid.UUID, printed: Callable[[str], Any]) -> None:
    """The list by its filter, one run with its audit, and why it is where it is."""
    wanted = RunFilter(workflow="film", labels={"customer": "ann"})
    page = listing.run_page(conn, wanted)
    told = printed(listing.command_of(wanted))
    assert without_clock(told) == without_clock(as_read(listing.json_of(page)))
    shown = show.shown_run(conn, run)
    assert [one.action for one in shown.audit] == ["run.retry"]
    assert without_clock(printed(show.command_of(run))) == without_clock(as_read(show.json_of(shown)))
    settings = effective_settings()
    known = Knowledge(settings.stale_heartbeat_s, settings.poll_s)
    for node in (None, "tell"):
        why = explain.explained_run(conn, run, known, node=node)
        assert printed(explain.command_of(run, node=node)) == as_read(explain.json_of(why))


def test_parts_of_a_run(conn: psycopg.Connection, run: uuid.UUID, printed: Callable[[str], Any]) -> None:
    """A page of a node's jobs, the bars of its timeline, and what its hooks said."""
    for more in ({}, {"state": "completed", "after": 0, "limit": 1}):
        page = elements.node_page(conn, run, "draw", **more)
        assert printed(elements.command_of(run, "draw", **more)) == as_read(elements.json_of(page))
    bars = timeline.run_timeline(conn, run)
    assert printed(timeline.command_of(run)) == as_read(timeline.json_of(bars))
    said = records.records(conn, run, plugin="words")
    assert [one.payload for one in said] == [{"status": "succeeded"}]
    assert printed(records.command_of(run, plugin="words")) == as_read(records.json_of(said))


def test_what_stands_beside_runs(
    conn: psycopg.Connection, run: uuid.UUID, printed: Callable[[str], Any]
) -> None:
    """A workflow's grid, the workflows of late, and the audit log."""
    grid = workflows.workflow_grid(conn, "film")
    assert [row.run for row in grid.rows] == [run]
    assert printed(workflows.command_of("film")) == as_read(workflows.json_of(grid))
    recent = workflows.recent_workflows(conn)
    assert printed(workflows.command_of_workflows()) == as_read(workflows.json_of_workflows(recent))
    asked = {"actor": "ann", "target": f"run:{run}"}
    page = audit.audit(conn, **asked)
    assert len(page.entries) == 1
    assert printed(audit.command_of(**asked)) == as_read(audit.json_of(page))


def test_schedules_and_programs(conn: psycopg.Connection, printed: Callable[[str], Any]) -> None:
    """Every schedule, the next ticks of one and of an expression, and the programs of a machine."""
    conn.execute("TRUNCATE schedules")
    ScheduleRepository(conn).upsert("nightly", cron="30 4 * * *", task_name="tidy", queue="fetch")
    found = schedules.schedules(conn)
    assert printed(schedules.command_of()) == as_read(schedules.json_of(found))
    assert schedules.schedule(conn, "nightly").cron == "30 4 * * *"
    for ticks in (
        preview.preview_of_schedule(conn, "nightly", count=3),
        preview.preview_of_expression("30 4 * * *", "Europe/Berlin", count=3),
    ):
        assert printed(preview.command_of(ticks, count=3)) == as_read(preview.json_of(ticks))
    conn.execute("TRUNCATE schedules")
    machine = MachineRepository(conn).seen("h")
    conn.execute("INSERT INTO binaries (machine_id, name) VALUES (%s, 'ffmpeg')", [machine])
    programs = binaries.binaries(conn, host_label="h")
    assert printed(binaries.command_of(host_label="h")) == as_read(binaries.json_of(programs))
    conn.execute("TRUNCATE machines CASCADE")
