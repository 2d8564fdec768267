"""A session of the server is ended only where it provably was its dead owner's, and by what is in between.

Behind a pooling proxy a session is anybody's. So none is ended there, what belongs to a session is not used,
and each new connection is looked at: a proxy may be put in between, taken away or told another mode.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from support.connections.kept import own_connection
from support.processes.workers import until
from support.servers.pgbouncer import PgBouncer, tracks_nothing
from support.servers.statement_proxy import StatementProxy
from support.servers.tcp_proxy import TcpProxy

from queue_workflows.db.connections import sessions
from queue_workflows.db.connections.engine import Database
from queue_workflows.db.connections.route import Form
from queue_workflows.db.listen.listener import Listener, Pace
from queue_workflows.errors import ExitCode, QwfError, SessionsNotKept, UnsupportedServer
from queue_workflows.settings import load_settings

OWNER = "here-1-abc"
# What a worker would hold if it took the process that a proxy invented for its session's.
MARK_UNSEEN = """
SELECT pg_advisory_lock(hashtextextended(%(owner)s::text || ' ' || %(announced)s::text, 7716003))
"""
OPTIONS = {"ignored": {"ignore_startup_parameters": "options,extra_float_digits"}, "refused": {}}


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QWF_LISTEN", "QWF_DB_URL", "QWF_DIRECT_DB_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(params=list(OPTIONS))
def options(request: pytest.FixtureRequest) -> dict[str, str]:
    """Both ways in which a PgBouncer deals with startup options."""
    return OPTIONS[request.param]


@pytest.fixture(params=["transaction", "session"])
def pooler(request: pytest.FixtureRequest, qwf_dsn: str, options: dict[str, str]) -> Iterator[PgBouncer]:
    with PgBouncer(qwf_dsn, request.param, default_pool_size="10", **options) as pooler:
        yield pooler


@pytest.fixture
def eyes(qwf_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """The test's own connection, with nothing in between."""
    with own_connection(qwf_dsn) as connection:
        yield connection


def opened(dsn: str, **settings: Any) -> Database:
    return Database.open(dsn, role="test", settings=load_settings(arguments=settings))


def plain(dsn: str) -> psycopg.Connection[Any]:
    """A stranger's, as a host app connects behind such a proxy."""
    return psycopg.connect(dsn, autocommit=True, prepare_threshold=None)


def poll_only(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "poll-only" in record.getMessage()]


def test_a_session_of_its_own_is_ended_by_its_mark(qwf_dsn: str, eyes: psycopg.Connection[Any]) -> None:
    """Past no proxy: the dead owner's, and neither another's nor the one that asks."""
    with opened(qwf_dsn) as database, closing(database.connect(autocommit=True)) as lost:
        pid = sessions.mark(lost, OWNER)
        assert pid == lost.info.backend_pid
        with plain(qwf_dsn) as other:
            assert sessions.mark(other, "another") == other.info.backend_pid
            assert sessions.mark(eyes, OWNER) == eyes.info.backend_pid
            assert sessions.end(eyes, "another", pid, within_s=10)
            assert lost.execute("SELECT 1").fetchone() == (1,)
            assert sessions.end_all(eyes, OWNER, within_s=10)
            with pytest.raises(psycopg.errors.AdminShutdown):
                lost.execute("SELECT 1")
            assert other.execute("SELECT 1").fetchone() == (1,)


def test_behind_a_proxy_nobodys_session_is_marked_or_ended(
    pooler: PgBouncer, eyes: psycopg.Connection[Any]
) -> None:
    """Not even where a mark was left on a backend that a stranger's transaction has by now."""
    with opened(pooler.dsn()) as database, closing(database.connect(autocommit=True)) as ours:
        assert not ours.between.is_absent
        assert sessions.mark(ours, OWNER) is None
        announced = ours.info.backend_pid
        with plain(pooler.dsn()) as stranger, stranger.transaction():
            stranger.execute(MARK_UNSEEN, {"owner": OWNER, "announced": announced})
            for asking in (eyes, ours):
                assert sessions.end(asking, OWNER, announced, within_s=1)
                assert sessions.end_all(asking, OWNER, within_s=1)
            assert stranger.execute("SELECT 1").fetchone() == (1,)
            stranger.execute("SELECT pg_advisory_unlock_all()")


def test_every_connection_has_the_form_for_what_is_in_between(
    pooler: PgBouncer, caplog: pytest.LogCaptureFixture
) -> None:
    """What is found decides; said once, however many connections are made."""
    caplog.set_level(logging.INFO, "queue_workflows")
    with opened(pooler.dsn()) as database:
        for _ in range(3):
            database.connect().close()
        with database.connect(autocommit=True) as connection:
            for number in range(12):
                assert connection.execute("SELECT %s::int", [number]).fetchone() == (number,)
            kept = connection.between.keeps_sessions
        assert kept is (database.between.pooling == "session")
        if kept:
            database.connect_session().close()
            assert poll_only(caplog) == []
        else:
            assert connection.prepare_threshold is None
            with pytest.raises(SessionsNotKept, match="QWF_DIRECT_DB_URL"):
                database.connect_session()
            assert len(poll_only(caplog)) == 1
    assert len([one for one in caplog.records if "pool" in one.getMessage()]) == 1


def test_a_direct_dsn_is_listened_on_without_being_told(
    qwf_dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """LISTEN goes past the proxy, which is said in the one line; nothing else has to be set."""
    caplog.set_level(logging.INFO, "queue_workflows")
    with PgBouncer(qwf_dsn, "transaction", **OPTIONS["ignored"]) as pooler:
        monkeypatch.setenv("QWF_DB_URL", pooler.dsn())
        monkeypatch.setenv("QWF_DIRECT_DB_URL", qwf_dsn)
        with Database.open(role="test") as database, Listener.on(database, ["ready"]) as listener:
            database.connect().close()
            assert until(lambda: listener.wait(1)).reason == "listening"
            with database.connect(autocommit=True) as connection:
                connection.execute("SELECT pg_notify('ready', 'x')")
            assert until(lambda: listener.wait(1)).reason == "notified"
    said = [record.getMessage() for record in caplog.records if "proxy" in record.getMessage()]
    assert len(said) == 1
    assert "LISTEN and migrations go to QWF_DIRECT_DB_URL" in said[0]


def test_a_proxy_that_comes_and_goes_is_found_at_the_next_connection(
    qwf_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each time the connections are of the other form, and a listener listens again when it can."""
    caplog.set_level(logging.INFO, "queue_workflows")
    words = conninfo_to_dict(qwf_dsn)
    with StatementProxy(qwf_dsn) as straight, PgBouncer(qwf_dsn, **OPTIONS["refused"]) as pooler:
        direct = int(conninfo_to_dict(straight.dsn)["port"])
        with TcpProxy(direct) as way:
            where = {"host": "127.0.0.1", "hostaddr": "", "port": way.port, "sslmode": "disable"}
            dsn = make_conninfo("", **{**words, **where})
            pace = Pace(retry_first=0.02, retry_most=0.1)
            with opened(dsn) as database, Listener.on(database, ["ready"], pace=pace) as listener:
                for port, pooling in ((direct, "none"), (pooler.port, "transaction"), (direct, "none")):
                    way.lead_to(port)
                    with database.connect(autocommit=True) as connection:
                        assert connection.between.pooling == pooling
                        assert (connection.prepare_threshold is None) is (pooling == "transaction")
                        marked = sessions.mark(connection, OWNER)
                        assert (marked is None) is (pooling == "transaction")
                    if pooling == "none":
                        until(lambda: listener.wait(0.1) or listener.state == "listening")
                    else:
                        until(lambda: listener.wait(0.1) or "transaction-pooling" in (listener.trouble or ""))
                        assert listener.state != "listening"
    assert len(poll_only(caplog)) == 1


def number_on(connection: psycopg.Connection[Any], number: int) -> None:
    """One statement, which is prepared after a few times."""
    assert connection.execute("SELECT %s::int", [number]).fetchone() == (number,)


def disturb(dsn: str, *statements: str) -> None:
    """Strangers at two backends at once."""
    with plain(dsn) as one, plain(dsn) as other, one.transaction(), other.transaction():
        for stranger in (one, other):
            for statement in statements:
                stranger.execute(statement)


@pytest.mark.parametrize("state", ["26000", "42P05"])
def test_a_statement_that_the_server_forgot_is_the_sign_of_a_proxy(
    qwf_dsn: str, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Told another mode while a connection lasts, which no look at a new one can see."""
    caplog.set_level(logging.INFO, "queue_workflows")
    foreign = ["PREPARE _pg3_0 AS SELECT 'not ours'"] if state == "42P05" else []
    with PgBouncer(qwf_dsn, "session", **tracks_nothing()) as pooler, opened(pooler.dsn()) as database:
        connection = database.connect(autocommit=True)
        assert database.between.pooling == "session"
        for number in range(4 if foreign else 12):
            number_on(connection, number)
        pooler.reload(pool_mode="transaction")
        connection.execute("SELECT 1")  # with which it lets go of its backend
        disturb(pooler.dsn(), "DEALLOCATE ALL", *foreign)
        with pytest.raises(psycopg.OperationalError, match="changed the session of the server"):
            any(number_on(connection, number) for number in range(12))
        assert connection.closed
        pooler.reload(pool_mode="session")
        with database.connect(autocommit=True) as again:
            assert again.prepare_threshold is None
            assert not again.between.keeps_sessions
    assert len(poll_only(caplog)) == 1


def test_many_that_look_at_once_do_not_wait_for_each_other(qwf_dsn: str) -> None:
    """With two backends for all of them; each would otherwise hold one and ask for another."""

    def look(_number: int) -> str:
        with opened(pooler.dsn()) as database:
            database.connect().close()
            return database.between.sign

    with (
        PgBouncer(qwf_dsn, "transaction", default_pool_size="2", **OPTIONS["ignored"]) as pooler,
        ThreadPoolExecutor(12) as threads,
    ):
        signs = list(threads.map(look, range(48)))
    assert [sign for sign in signs if "met the" not in sign] == []


def test_a_proxy_without_transactions_is_refused(qwf_dsn: str, options: dict[str, str]) -> None:
    """One clear line, with what to set."""
    with PgBouncer(qwf_dsn, "statement", **options) as pooler, opened(pooler.dsn()) as database:
        for attempt in (database.connect, database.engine.connect):
            with pytest.raises(UnsupportedServer, match="pools single statements") as caught:
                attempt()
            assert "pool_mode = transaction" in str(caught.value)
            assert "\n" not in str(caught.value)
            assert caught.value.exit_code == ExitCode.CONFIGURATION


def test_what_the_user_forgoes_stays_so(qwf_dsn: str) -> None:
    """QWF_LISTEN=off is the same form with nothing in between."""
    with opened(qwf_dsn, listen=False) as database:
        with database.connect() as connection:
            assert connection.prepare_threshold is None
        assert database._route.form == Form(options=False, prepares=False)
        with pytest.raises(QwfError, match="QWF_LISTEN is off"):
            database.connect_session()
