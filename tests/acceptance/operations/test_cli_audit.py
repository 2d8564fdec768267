"""`qwf audit`: what operators did, page by page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.commands import Said, qwf_here
from support.rows.jobs import CLEAR

from queue_workflows.repositories.audit_log import AuditRepository
from queue_workflows.views import audit


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """An empty log, but for five acts."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR)
        for actor, action, kind, subject, reason in (
            ("ann", "job.cancel", "ingest job", "7", "twice"),
            ("bob", "run.retry", "run", "0190", None),
            ("ann", "workers.pause", "worker_control", "* fetch", None),
            ("ann", "limits.set", "concurrency_limit", "api", "too many"),
            ("bob", "job.retry", "ingest job", "7", None),
        ):
            connection.execute(
                "INSERT INTO audit_log (actor, action, subject_kind, subject_id, reason, details)"
                " VALUES (%s, %s, %s, %s, %s, '{\"n\": 1}')",
                [actor, action, kind, subject, reason],
            )
        yield connection
        connection.execute(CLEAR)


@pytest.fixture
def qwf(qwf_dsn: str, conn: psycopg.Connection) -> Callable[..., Said]:
    """`qwf audit` on the test's database."""

    def run(*arguments: object, status: int = 0) -> Said:
        return qwf_here("--db", qwf_dsn, "audit", *map(str, arguments), status=status)

    return run


def told(said: Said) -> list[tuple[str, str, str]]:
    return [(one["actor"], one["action"], one["target"]) for one in json.loads(said.stdout)]


def test_the_latest_first_and_page_by_page(qwf: Callable[..., Said]) -> None:
    """In the words in which an operator names what was acted on."""
    everything = [
        ("bob", "job.retry", "ingest:7"),
        ("ann", "limits.set", "limit:api"),
        ("ann", "workers.pause", "workers:* fetch"),
        ("bob", "run.retry", "run:0190"),
        ("ann", "job.cancel", "ingest:7"),
    ]
    said = qwf("--json")
    assert told(said) == everything
    last = json.loads(said.stdout)[-1]
    assert (last["reason"], last["details"]) == ("twice", {"n": 1})
    first = qwf("--limit", 2, "--json")
    assert told(first) == everything[:2]
    before = json.loads(first.stdout)[-1]["id"]
    assert first.stderr == f"--before {before} shows what came earlier\n"
    rest = qwf("--limit", 3, "--before", before)
    lines = rest.stdout.splitlines()
    assert lines[0].split() == ["ID", "AT", "ACTOR", "ACTION", "TARGET", "REASON"]
    assert [line.split()[-1] for line in lines[1:]] == ["fetch", "run:0190", "twice"]
    assert rest.stderr == ""


def test_what_is_asked_for(qwf: Callable[..., Said]) -> None:
    """By actor, by kind of act, by what it was done to, and by all of it; or nothing."""
    assert told(qwf("--actor", "bob", "--json")) == [
        ("bob", "job.retry", "ingest:7"),
        ("bob", "run.retry", "run:0190"),
    ]
    assert told(qwf("--action", "limits.set", "--json")) == [("ann", "limits.set", "limit:api")]
    assert told(qwf("--target", "workers:* fetch", "--json")) == [("ann", "workers.pause", "workers:* fetch")]
    assert told(qwf("--target", "ingest:7", "--actor", "ann", "--json")) == [
        ("ann", "job.cancel", "ingest:7")
    ]
    nothing = qwf("--actor", "eve")
    assert (nothing.stdout, nothing.stderr) == ("", "nothing was done that matches\n")


def test_a_target_that_is_none(qwf: Callable[..., Said]) -> None:
    """Says what it could be."""
    said = qwf("--target", "job:7", status=2).stderr
    assert said.startswith("qwf: 'job:7' is no target — write one of node:…, ingest:…, run:…")


def test_a_search_goes_on_where_it_ended(conn: psycopg.Connection) -> None:
    """A bounded number of entries is looked at, and the rest by the pages after it."""
    log, found, before, pages = AuditRepository(conn), [], None, 0
    while pages == 0 or before is not None:
        page = log.page(action="job.cancel", before=before, most=2)
        found += [one.action for one in page.entries]
        before, pages = page.next, pages + 1
    assert (found, pages) == (["job.cancel"], 3)


def test_the_command_of_a_page() -> None:
    """Is quoted for a shell."""
    assert audit.command_of(target="workers:* fetch", before=7) == (
        "qwf audit --target 'workers:* fetch' --before 7"
    )
