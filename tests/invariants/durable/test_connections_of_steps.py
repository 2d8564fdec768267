"""`ctx.connection()`: an unseen commit is no failure, and no step meets what another left behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from support.servers.statement_proxy import Moment, StatementProxy

from queue_workflows.engine.registry.ingest_task import IngestTask
from queue_workflows.engine.registry.tasks import ingest_task
from queue_workflows.errors import StepFailed
from queue_workflows.repositories import IngestJobRepository
from queue_workflows.testing import drain
from queue_workflows.testing.databases import configured_database

COMMIT = "COMMIT"
CHARGE = "INSERT INTO charges VALUES ('charged')"
SERVER_CLOSES = """
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
WHERE pid = %s AND pid <> pg_backend_pid()
"""
LEAVES_MUCH_BEHIND = (
    "SET search_path = pg_catalog",
    "SET statement_timeout = 1234",
    "CREATE TEMP TABLE left_behind (n int)",
    "SELECT pg_advisory_lock(4711)",
)
SEEN = """
SELECT current_setting('search_path'), current_setting('statement_timeout'), to_regclass('left_behind')::text,
    (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())
"""


@ingest_task("charges", queue="fetch", durable=True, max_attempts=1)
def charges(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """Compensates a charge that failed, and goes on in another attempt."""
    try:
        ctx.step("charge", lambda: ctx.connection().execute(CHARGE).rowcount)
        how = "charged"
    except StepFailed:
        how = ctx.step("refund", lambda: "refunded")
    ctx.sleep(60)
    return how


@ingest_task("charges_async", queue="fetch", durable=True, max_attempts=1)
async def charges_async(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """`charges`, awaited."""

    async def charge() -> int:
        return (await (await ctx.connection()).execute(CHARGE)).rowcount

    try:
        await ctx.step("charge", charge)
        how = "charged"
    except StepFailed:
        how = await ctx.step("refund", lambda: "refunded")
    await ctx.sleep(60)
    return how


@ingest_task("has_its_session_closed", queue="fetch", durable=True, max_attempts=1)
def has_its_session_closed(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """The server ends the session between two steps, as after a failover."""
    pid = ctx.step("first", lambda: ctx.connection().info.backend_pid)
    with psycopg.connect(args["dsn"], autocommit=True) as other:
        other.execute(SERVER_CLOSES, [pid])
    return pid != ctx.step("second", lambda: ctx.connection().info.backend_pid)


@ingest_task("has_its_session_closed_async", queue="fetch", durable=True, max_attempts=1)
async def has_its_session_closed_async(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """`has_its_session_closed`, awaited."""

    async def own_pid() -> int:
        return (await ctx.connection()).info.backend_pid

    pid = await ctx.step("first", own_pid)
    with psycopg.connect(args["dsn"], autocommit=True) as other:
        other.execute(SERVER_CLOSES, [pid])
    return pid != await ctx.step("second", own_pid)


@ingest_task("leaves_much_behind", queue="fetch", durable=True, max_attempts=1)
def leaves_much_behind(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """A step changes its session, and another one looks at its own."""

    def change() -> int:
        connection = ctx.connection()
        for statement in LEAVES_MUCH_BEHIND[args["from"] :]:
            connection.execute(statement)
        connection.row_factory = dict_row
        connection.adapters.register_loader("int8", psycopg.adapters.get_loader(25, 0))
        return connection.info.backend_pid

    def look() -> list[Any]:
        connection = ctx.connection()
        return [connection.info.backend_pid, *connection.execute(SEEN).fetchone()]

    changed = ctx.step("change", change)
    looked, *seen = ctx.step("look", look)
    return [changed == looked, *seen]


@ingest_task("leaves_much_behind_async", queue="fetch", durable=True, max_attempts=1)
async def leaves_much_behind_async(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """`leaves_much_behind`, awaited."""

    async def change() -> int:
        connection = await ctx.connection()
        for statement in LEAVES_MUCH_BEHIND[args["from"] :]:
            await connection.execute(statement)
        connection.row_factory = dict_row
        connection.adapters.register_loader("int8", psycopg.adapters.get_loader(25, 0))
        return connection.info.backend_pid

    async def look() -> list[Any]:
        connection = await ctx.connection()
        return [connection.info.backend_pid, *await (await connection.execute(SEEN)).fetchone()]

    changed = await ctx.step("change", change)
    looked, *seen = await ctx.step("look", look)
    return [changed == looked, *seen]


@ingest_task("ends_its_transaction", queue="fetch", durable=True, max_attempts=1)
def ends_its_transaction(reason: str | None, args: dict[str, Any], *, ctx: Any) -> Any:
    """What is committed by the step itself could not be told from what is not."""

    def end() -> None:
        connection = ctx.connection()
        if args["how"] == "autocommit":
            connection.autocommit = True
        elif args["how"] == "commit":
            connection.commit()
        else:
            connection.execute(args["how"])

    ctx.step("end", end)


@pytest.fixture
def conn(qwf_configured: str) -> Iterator[psycopg.Connection]:
    """An empty queue, and a table that steps write to."""
    with psycopg.connect(qwf_configured, autocommit=True) as connection:
        connection.execute("TRUNCATE ingest_jobs, durable_steps, durable_events")
        connection.execute("CREATE TABLE IF NOT EXISTS charges (what text); TRUNCATE charges")
        yield connection


def result_of(conn: psycopg.Connection, task: IngestTask, args: dict[str, Any]) -> Any:
    """What a job of that task comes to."""
    job = task.enqueue(args, conn=conn)
    drain(conn=conn, with_scheduled=True)
    row = IngestJobRepository(conn).fetch(job.id)
    assert row is not None
    assert (row.status, row.failures) == ("completed", 0), [one["message"] for one in row.errors]
    return row.result


@pytest.mark.parametrize("moment", [Moment.UNSENT, Moment.UNREAD], ids=["not_committed", "committed"])
@pytest.mark.parametrize("task", [charges, charges_async], ids=["sync", "async"])
def test_a_commit_without_an_answer_is_no_failure(
    conn: psycopg.Connection, qwf_configured: str, task: IngestTask, moment: Moment
):
    """Cut before the server has it or after: it is charged once, and nothing is compensated."""
    with StatementProxy(qwf_configured) as proxy, configured_database(proxy.dsn):
        trap = proxy.trap(COMMIT, moment=moment)
        trap.drop()
        assert result_of(conn, task, {}) == "charged"
        assert trap.has_sprung
    assert conn.execute("SELECT what FROM charges").fetchall() == [("charged",)]
    assert conn.execute("SELECT name FROM durable_steps ORDER BY position").fetchall() == [
        ("charge",),
        ("sleep",),
    ]


@pytest.mark.parametrize(
    "task", [has_its_session_closed, has_its_session_closed_async], ids=["sync", "async"]
)
def test_a_session_that_the_server_closed_fails_no_step(
    conn: psycopg.Connection, qwf_configured: str, task: IngestTask
):
    """The next step has another one."""
    assert result_of(conn, task, {"dsn": qwf_configured}) is True


@pytest.mark.parametrize("task", [leaves_much_behind, leaves_much_behind_async], ids=["sync", "async"])
def test_what_a_step_sets_is_gone_with_it(conn: psycopg.Connection, task: IngestTask):
    """Settings, temporary tables, locks, the kind of rows and adapters; the session is kept all the same."""
    row = conn.execute("SELECT current_setting('search_path')").fetchone()
    assert row is not None
    is_kept, search_path, timeout, table, locks = result_of(conn, task, {"from": 1})
    assert (is_kept, search_path, timeout, table, locks) == (True, row[0], "0", None, 0)


@pytest.mark.parametrize("how", ["autocommit", "commit", "COMMIT", "ROLLBACK"])
def test_a_step_does_not_end_the_transaction_that_stores_it(conn: psycopg.Connection, how: str):
    """It is refused, rather than that 'exactly once' is off and nobody knows."""
    ends_its_transaction.enqueue({"how": how}, conn=conn)
    (outcome,) = drain(conn=conn)
    assert isinstance(outcome.exception, StepFailed)
    assert conn.execute("SELECT count(*) FROM durable_steps").fetchone() == (0,)
