"""Which code goes on with what is stored: over rounds, in copies, and where no version was said before."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from queue_workflows.cli.main import cli
from queue_workflows.engine.registry.ingest_task import IngestTask
from queue_workflows.engine.registry.tasks import current_tasks, ingest_task
from queue_workflows.repositories import IngestJobRepository
from queue_workflows.testing import drain


@pytest.fixture(autouse=True)
def conn(qwf_configured: str) -> Iterator[psycopg.Connection]:
    """Nothing is stored, and the task has no code yet."""
    _forget()
    with psycopg.connect(qwf_configured, autocommit=True) as connection:
        connection.execute("TRUNCATE ingest_jobs, durable_steps, durable_events")
        yield connection
    _forget()


def _forget() -> None:
    tasks = current_tasks()
    tasks._known.pop("deployed", None)
    for name in [one for one in tasks.names() if one.startswith("deployed")]:
        tasks._names.pop(name)


def deployed(code: Callable[..., Any], **said: Any) -> IngestTask[..., Any]:
    """The task after a deploy."""
    _forget()
    return current_tasks().register("deployed", code, queue="fetch", durable=True, **said)


def of(label: str) -> Callable[..., Any]:
    """Code with two steps, and a pause between; the second says by which code it was done."""

    def code(reason: str | None, args: dict[str, Any], *, ctx: Any) -> str:
        ctx.step(f"before, {label}" if args.get("differs") else "before", lambda: label)
        ctx.sleep(60)
        return ctx.step("after", lambda: f"after, by {label}")

    return code


def woken(conn: psycopg.Connection) -> None:
    """Let an hour pass."""
    conn.execute("UPDATE durable_steps SET wake_at = wake_at - interval '1 h' WHERE status = 'waiting'")
    conn.execute("UPDATE ingest_jobs SET run_at = now() WHERE hold_reason = 'asleep'")


def qwf(*words: str) -> str:
    result = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def last_result(conn: psycopg.Connection) -> Any:
    """What the job ended with that was run last."""
    return drain(conn=conn, with_scheduled=True)[-1].result


def test_a_round_is_stored_under_the_version_that_makes_it(conn: psycopg.Connection):
    """A round that the old code began, and the new code first ran, is the new one's to its end."""

    def old(reason: str | None, args: dict[str, Any], *, ctx: Any) -> None:
        ctx.step("work, old", lambda: 1)
        deployed(new, version="2", versions={"1": old})
        ctx.continue_as_new({"done": 1})

    def new(reason: str | None, args: dict[str, Any], *, ctx: Any) -> str:
        ctx.step("work, new", lambda: 2)
        ctx.sleep(60)
        return "new"

    job = deployed(old, version="1").enqueue({}, conn=conn)
    assert last_result(conn) == "new"
    rows = conn.execute(
        "SELECT name, version FROM durable_steps WHERE job_id = %s AND kind = 'step'", [job.id]
    ).fetchall()
    assert rows == [("work, new", "2")]


@pytest.mark.parametrize(
    ("versions", "by"),
    [({"1": "old"}, "old"), ({"1": "between", "": "old"}, "old"), ({}, "new")],
)
def test_what_began_before_there_were_versions(conn: psycopg.Connection, versions: dict[str, str], by: str):
    """It goes on with the one version before, or with what stands for none."""
    deployed(of("old")).enqueue({"differs": bool(versions)}, conn=conn)
    drain(conn=conn)
    deployed(of("new"), version="2", versions={name: of(label) for name, label in versions.items()})
    assert last_result(conn) == f"after, by {by}"


def test_of_several_versions_before_none_is_guessed(conn: psycopg.Connection):
    """The job waits for code that says which is its own."""
    job = deployed(of("old")).enqueue({}, conn=conn)
    drain(conn=conn)
    deployed(of("new"), version="3", versions={"1": of("old"), "2": of("between")})
    woken(conn)
    drain(conn=conn)
    row = IngestJobRepository(conn).fetch(job.id)
    assert row is not None
    assert (row.hold_reason, row.hold_key) == ("unknown_task", "deployed@")


@pytest.mark.parametrize(("words", "by"), [([], "new"), (["--keep-version"], "old")])
def test_a_copy_runs_the_code_that_is_asked_for(conn: psycopg.Connection, words: list[str], by: str):
    """The current one, with the steps before as they were done; or the one that the job began under."""
    job = deployed(of("old"), version="1").enqueue({}, conn=conn)
    drain(conn=conn, with_scheduled=True)
    deployed(of("new"), version="2", versions={"1": of("old")})
    made = qwf("job", "fork", f"ingest:{job.id}", "--from", "sleep", *words).removeprefix("ingest:")
    drain(conn=conn)
    assert last_result(conn) == f"after, by {by}"
    versions = conn.execute(
        "SELECT name, version FROM durable_steps WHERE job_id = %s AND position > 0 ORDER BY position", [made]
    ).fetchall()
    assert versions[-1] == ("after", "2" if by == "new" else "1")
    told = conn.execute("SELECT details FROM audit_log WHERE action = 'job.fork' AND subject_id = %s", [made])
    assert told.fetchone() == ({"copy_of": f"ingest:{job.id}", "from": 2},)


@ingest_task("draws", queue="fetch", durable=True)
def draws(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """What it does goes by chance."""
    drawn = ctx.random().random()
    ctx.step(f"drawn {drawn}", lambda: drawn)
    return [drawn, ctx.step("last", lambda: "done")]


def test_a_copy_draws_as_its_original(conn: psycopg.Connection):
    """And a copy of that."""
    name = f"ingest:{draws.enqueue({}, conn=conn).id}"
    (first,) = [one.result for one in drain(conn=conn)]
    for _ in range(2):
        name = qwf("job", "fork", name, "--from", "last")
        assert [one.result for one in drain(conn=conn)] == [first]


@ingest_task("long_one", queue="fetch", durable=True)
def long_one(reason: str | None, args: dict[str, Any], *, ctx: Any) -> int:
    """More steps than a listing shows; then it sleeps."""
    ctx.step("first", lambda: 1)
    ctx.sleep(3600)
    return ctx.step("later", lambda: 2)


def test_beyond_a_thousand_steps(conn: psycopg.Connection):
    """A copy can begin at any of them; what it waits for is told."""
    job = long_one.enqueue({}, conn=conn).id
    drain(conn=conn)
    conn.execute(
        "INSERT INTO durable_steps"
        " (job_family, job_id, name, call, position, kind, status, attempt, finished_at)"
        " SELECT 'ingest', %s, 's', n, n + 1, 'step', 'done', 1, now() FROM generate_series(1, 1500) AS n",
        [job],
    )
    conn.execute("UPDATE durable_steps SET position = 1502 WHERE name = 'sleep'")
    assert "it is asleep until" in qwf("explain", f"ingest:{job}")
    shown = json.loads(qwf("job", "show", f"ingest:{job}", "--json"))["steps"]
    assert [shown[0]["position"], shown[-1]["position"]] == [503, 1502]
    assert qwf("job", "fork", f"ingest:{job}", "--from", "s#1400").startswith("ingest:")


def test_a_job_that_is_not_there_is_named(conn: psycopg.Connection):
    """Rather than that it has no such step."""
    refused = CliRunner().invoke(cli, ["job", "fork", "ingest:99999", "--from", "a"])
    assert refused.exit_code != 0
    assert "no step" not in refused.output
