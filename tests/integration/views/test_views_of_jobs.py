"""Views of jobs: what the page answers is what the command prints, and each view names its command."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.commands import qwf_here
from support.rows.jobs import CLEAR_WITH_WORKERS, Jobs, ending

from queue_workflows.config import effective_settings
from queue_workflows.db.connections.snapshot_read import at_one_moment
from queue_workflows.engine.explain.job import Knowledge
from queue_workflows.errors import UnknownJob
from queue_workflows.repositories.reports.job_listing import JobFilter
from queue_workflows.repositories.sql.families import INGEST, NODE
from queue_workflows.views.filters.jobs import text_of
from queue_workflows.views.jobs import explain, failures, job, listing
from queue_workflows.views.json_values import plain
from queue_workflows.views.queues import next_jobs, stats


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """A failed job with an audit entry, a waiting one, and a node job."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        ingest, node = Jobs("ingest", connection), Jobs("node", connection)
        ingest.enqueue(priorities=(9,), max_attempts=1)
        held = ingest.one()
        error = {"kind": "exception", "type": "ValueError", "message": "order 17 timed out"}
        ingest.repository.end(ending(held, "failed", error=error, counts=True))
        (waiting,) = ingest.enqueue(host_lock="disk")
        ingest.repository.cancel_many([waiting], actor="ann", reason="old")
        node.enqueue()
        yield connection


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


def newest(conn: psycopg.Connection, table: str) -> int:
    """The id of the newest row."""
    (found,) = conn.execute(f"SELECT max(id) FROM {table}").fetchone() or (0,)
    return int(found)


def without_clock(told: Any) -> Any:
    """What does not depend on when it was asked."""
    return {name: value for name, value in told.items() if name not in ("at", "stored_estimated")}


def test_lists_are_what_their_commands_print(conn: psycopg.Connection, printed: Callable[[str], Any]) -> None:
    """With a filter, a limit, and from a cursor on."""
    wanted = JobFilter(family="ingest", status=("failed", "cancelled"))
    page = listing.job_page(conn, wanted, limit=1)
    assert [line.status for line in page.lines] == ["cancelled"]
    assert printed(listing.command_of(wanted, limit=1)) == as_read(listing.json_of(page))
    rest = listing.job_page(conn, wanted, limit=1, before=page.cursor)
    assert [line.status for line in rest.lines] == ["failed"]
    assert printed(listing.command_of(wanted, limit=1, before=page.cursor)) == as_read(listing.json_of(rest))
    assert printed(listing.command_of(JobFilter())) == as_read(
        listing.json_of(listing.job_page(conn, JobFilter()))
    )
    assert listing.command_of(JobFilter(queue="fetch", error="timed out")) == (
        "qwf job list --where 'queue:fetch error:\"timed out\"'"
    )
    assert listing.command_of(JobFilter()) == "qwf job list"


def test_a_job_is_what_its_commands_print(conn: psycopg.Connection, printed: Callable[[str], Any]) -> None:
    """Its row and audit, and why it does not run."""
    cancelled, waiting = newest(conn, "ingest_jobs"), newest(conn, "workflow_node_jobs")
    stored = job.stored_job(conn, INGEST, cancelled)
    assert [(one.action, one.actor, one.reason) for one in stored.audit] == [("job.cancel", "ann", "old")]
    assert printed(job.command_of(stored.name)) == as_read(job.json_of(stored))
    settings = effective_settings()
    known = Knowledge(settings.stale_heartbeat_s, settings.poll_s)
    with at_one_moment(conn):
        told = explain.explained_job(conn, NODE, waiting, known, foretells=True)
    # How long it has waited by now stands in `past`.
    shown, asked = printed(explain.command_of(told.name)), as_read(explain.json_of(told))
    assert shown.pop("past")["begin"] == asked.pop("past")["begin"]
    assert shown == asked
    assert (job.command_of("node:7"), explain.command_of("node:7")) == (
        "qwf job show node:7",
        "qwf explain node:7",
    )


def test_a_job_that_is_not_there(conn: psycopg.Connection) -> None:
    """It is named as it was asked for."""
    with pytest.raises(UnknownJob, match="ingest:99999999"):
        job.stored_job(conn, INGEST, 99_999_999)
    with pytest.raises(UnknownJob, match="node:99999999"):
        explain.explained_job(conn, NODE, 99_999_999, Knowledge(30.0, 1.0))


def test_a_group_of_failures_finds_its_jobs(conn: psycopg.Connection, printed: Callable[[str], Any]) -> None:
    """Its filter is exact, so that a command with it runs them again."""
    found = failures.failure_groups(conn)
    assert printed(failures.command_of()) == as_read(failures.json_of(found))
    (group,) = found.groups
    page = listing.job_page(conn, failures.filter_of(group))
    assert [line.id for line in page.lines] == group.latest
    where = text_of(failures.filter_of(group))
    assert where == (
        'family:ingest queue:fetch status:failed task:task error:"ValueError: order # timed out"'
    )
    assert printed(shlex.join(["qwf", "job", "retry", "--where", where, "--yes"])) == {"retried": 1}
    assert (
        failures.command_of(since_s=3600.0, queue="fetch", most=10, before="ingest17.3")
        == "qwf job failures --since 1h --queue fetch --limit 10 --before ingest17.3"
    )


def test_failures_are_shown_in_parts(conn: psycopg.Connection, qwf_dsn: str) -> None:
    """The command says how far it looked, how many there are in all, and how to go on."""
    ingest = Jobs("ingest", conn)
    ingest.enqueue(max_attempts=1, priorities=(9,))
    error = {"kind": "exception", "type": "KeyError", "message": "no such page"}
    ingest.repository.end(ending(ingest.one(), "failed", error=error, counts=True))
    first = failures.failure_groups(conn, most=1)
    rest = failures.failure_groups(conn, most=1, before=first.cursor)
    assert [[group.error for group in part.groups] for part in (first, rest)] == [
        ["KeyError: no such page"],
        ["ValueError: order # timed out"],
    ]
    assert (first.failed, first.is_cut, rest.is_cut) == (2, True, True)
    done = qwf_here("--db", qwf_dsn, "job", "failures", "--limit", "1")
    assert "KeyError: no such page" in done.stdout
    assert "2 jobs failed in the last 7d" in done.stderr
    assert f"--before {first.cursor} goes on" in done.stderr


def test_queues_are_what_their_commands_print(
    conn: psycopg.Connection, printed: Callable[[str], Any]
) -> None:
    """How full they are, and what comes next on one."""
    stale_s = effective_settings().stale_heartbeat_s
    seen = stats.queue_stats(conn, stale_s=stale_s, window_s=60.0, queue="fetch")
    told = printed(stats.command_of(queue="fetch", window_s=60.0))
    assert without_clock(told) == without_clock(as_read(stats.json_of(seen)))
    assert stats.command_of() == "qwf queue stats"
    line = next_jobs.next_jobs(conn, "cpu", stale_s=stale_s)
    assert len(line.jobs) == 1
    assert printed(next_jobs.command_of("cpu")) == as_read(next_jobs.json_of(line))
