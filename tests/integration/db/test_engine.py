"""Connections: pinned, checked, pooled, and clear about what is wrong."""

import logging
import os
import signal
import time
from datetime import UTC, datetime

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus
from support.processes.embedded_users import alive, until
from support.processes.environments import LINGER, LOCKS
from support.servers.cluster import PASSWORD, Cluster
from support.servers.odd_servers import hangs_up, says_nothing, serving, speaks_http
from support.servers.transaction_pooler import TransactionPooler

from queue_workflows.config import reset_config
from queue_workflows.db.connections.engine import Database, classify_failure
from queue_workflows.db.connections.pins import Timeouts, application_name, pin
from queue_workflows.errors import (
    AccessRefused,
    ConfigurationError,
    DatabaseError,
    DatabaseUnreachable,
    EmbeddedServerError,
    ExitCode,
    OptionsRefused,
    QwfError,
    ReadOnlyServer,
    SchemaError,
    UnsupportedServer,
)

MOMENT = datetime(2026, 2, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch, tmp_path):
    for name in [*os.environ]:
        if name.startswith(("PG", "QWF_", "AI_LEADS_")) and name not in (LOCKS, LINGER):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    reset_config()


@pytest.fixture(scope="module")
def cluster():
    try:
        cluster = Cluster.primary()
    except EmbeddedServerError as missing:
        pytest.skip(f"no Postgres binaries for a server of the test's own: {missing}")
    with cluster:
        yield cluster


@pytest.fixture
def database(cluster):
    with Database.open(cluster.dsn(), role="test") as database:
        yield database


def settings_of(connection):
    """What the session runs with, each with its source."""
    rows = connection.execute("SELECT name, setting, source FROM pg_settings").fetchall()
    return {name: setting for name, setting, _ in rows}


def test_every_connection_is_pinned(database):
    """Whatever the server's defaults: READ COMMITTED, UTC, bounded waits, a name that says who we are."""
    for connection in (database.connect(), database.engine.raw_connection()):
        held = settings_of(connection.cursor())
        assert held["default_transaction_isolation"] == "read committed"
        assert held["transaction_isolation"] == "read committed"
        assert held["TimeZone"] == "UTC"
        assert held["lock_timeout"] == "10000"
        assert held["idle_in_transaction_session_timeout"] == "60000"
        assert held["client_connection_check_interval"] == "10000"
        assert held["client_encoding"] == "UTF8"
        assert held["application_name"].startswith("qwf:test@")
        connection.close()


def test_times_are_read_however_the_database_writes_them(cluster):
    """Older applications have set a style of dates for their database, which nobody but them can read."""
    with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
        (name,) = connection.execute("SELECT current_database()").fetchone()
        connection.execute(f"ALTER DATABASE {name} SET datestyle TO 'German, DMY'")
        try:
            with Database.open(cluster.dsn(), role="test") as database:
                with database.connect() as ours:
                    assert ours.execute("SELECT timestamptz '2026-02-01 12:00Z'").fetchone() == (MOMENT,)
                with database.engine.connect() as ours:
                    assert ours.scalar(sa.text("SELECT timestamptz '2026-02-01 12:00Z'")) == MOMENT
        finally:
            connection.execute(f"ALTER DATABASE {name} RESET datestyle")


@pytest.mark.parametrize("said_by", ["options", "PGOPTIONS", "PGDATESTYLE"])
def test_a_style_of_dates_that_nobody_can_read_does_not_win(cluster, monkeypatch, said_by):
    """All other settings are the user's to say; with this one every time would fail in the driver."""
    dsn = cluster.dsn()
    if said_by == "options":
        dsn = cluster.dsn(options="-c DateStyle=German -c work_mem=5MB")
    else:
        monkeypatch.setenv(said_by, "German" if said_by == "PGDATESTYLE" else "-c DateStyle=German")
    with Database.open(dsn, role="test") as database:
        for autocommit in (True, False):
            with database.connect(autocommit=autocommit) as ours:
                assert ours.info.transaction_status is TransactionStatus.IDLE
                assert ours.execute("SELECT timestamptz '2026-02-01 12:00Z'").fetchone() == (MOMENT,)
                ours.rollback()
                assert ours.execute("SELECT timestamptz '2026-02-01 12:00Z'").fetchone() == (MOMENT,)
        with database.engine.connect() as ours:
            assert ours.scalar(sa.text("SELECT timestamptz '2026-02-01 12:00Z'")) == MOMENT


def test_behind_a_pooling_proxy_a_style_of_dates_that_nobody_can_read_is_refused(cluster, monkeypatch):
    """There nothing can be set, so the role has to be mended: said at once, not at the first time read."""
    monkeypatch.setenv("QWF_LISTEN", "off")
    with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
        (name,) = connection.execute("SELECT quote_ident(current_user)").fetchone()
        connection.execute(f"ALTER ROLE {name} SET datestyle TO 'German'")
        try:
            with (
                TransactionPooler(cluster.dsn()) as proxy,
                Database.open(proxy.dsn(), role="test") as database,
            ):
                with pytest.raises(ConfigurationError, match=r"'German, DMY'.*ALTER ROLE") as refused:
                    database.connect()
                assert "\n" not in str(refused.value)
                with pytest.raises(ConfigurationError, match="ALTER ROLE"):
                    database.engine.connect()
        finally:
            connection.execute(f"ALTER ROLE {name} RESET datestyle")


def test_settings_of_the_user_set_the_bounds(cluster, monkeypatch):
    """The timeouts are settings; 0 means none."""
    monkeypatch.setenv("QWF_LOCK_TIMEOUT_S", "0.25")
    monkeypatch.setenv("QWF_CLIENT_CONNECTION_CHECK_INTERVAL_S", "0")
    monkeypatch.setenv("QWF_HOST_LABEL", "h" * 80)
    with Database.open(cluster.dsn(), role="worker") as database, database.connect() as connection:
        held = settings_of(connection)
    assert (held["lock_timeout"], held["client_connection_check_interval"]) == ("250", "0")
    assert held["application_name"] == "qwf:worker@" + "h" * 52


def test_the_users_own_options_win(cluster, monkeypatch):
    """`options` of the DSN are merged with ours, theirs last; PGOPTIONS and PGAPPNAME count too."""
    dsn = cluster.dsn(options=r"-c lock_timeout=7s --work-mem=5MB -csearch_path=a,\ b")
    with Database.open(dsn, role="test") as database, database.connect() as connection:
        held = settings_of(connection)
        assert (held["lock_timeout"], held["work_mem"], held["search_path"]) == ("7000", "5120", "a, b")
        assert held["TimeZone"] == "UTC"
    monkeypatch.setenv("PGOPTIONS", "-c lock_timeout=3s")
    monkeypatch.setenv("PGAPPNAME", "billing")
    with Database.open(cluster.dsn(), role="test") as database, database.connect() as connection:
        held = settings_of(connection)
        assert (held["lock_timeout"], held["application_name"]) == ("3000", "billing")
        assert held["idle_in_transaction_session_timeout"] == "60000"


def test_a_setting_that_the_user_names_is_not_sent_by_us():
    """A server that cannot take one of our pins is usable once the user names that setting."""
    given = {"options": "-c Client-Connection-Check-Interval=0"}
    options = pin(given, name="n", timeouts=Timeouts(), environ={})["options"]
    assert options.lower().replace("-", "_").count("client_connection_check_interval") == 1


def test_a_workers_own_connection_plans_once_and_by_index(database):
    """Only where it is asked for: everybody else's planner is as the server has it."""
    wanted = ("plan_cache_mode", "enable_seqscan", "enable_bitmapscan", "jit")
    with database.connect(hot=True) as hot, database.connect() as plain:
        assert [settings_of(hot)[name] for name in wanted] == ["force_generic_plan", "off", "off", "off"]
        assert [settings_of(plain)[name] for name in wanted[:3]] == ["auto", "on", "on"]


def test_isolation_is_read_committed_even_where_the_database_says_serializable(cluster):
    """The user's options cannot change the isolation that the engine's SQL is written for."""
    dsn = cluster.dsn(options=r"-c default_transaction_isolation=serializable")
    with Database.open(dsn, role="test") as database:
        with database.engine.connect() as connection:
            assert connection.scalar(sa.text("SHOW transaction_isolation")) == "read committed"
        with database.connect() as connection:
            assert connection.execute("SHOW transaction_isolation").fetchone() == ("read committed",)


def test_a_caller_may_still_raise_the_isolation_of_one_transaction(database):
    """SQLAlchemy's per-connection isolation works, and goes back with the connection."""
    with database.engine.connect().execution_options(isolation_level="SERIALIZABLE") as connection:
        assert connection.scalar(sa.text("SHOW transaction_isolation")) == "serializable"
    with database.engine.connect() as connection:
        assert connection.scalar(sa.text("SHOW transaction_isolation")) == "read committed"


def test_behind_a_pooling_proxy_nothing_touches_the_session(cluster, monkeypatch):
    """With QWF_LISTEN=off: no startup options, no prepared statements, isolation in BEGIN itself."""
    monkeypatch.setenv("QWF_LISTEN", "off")
    with Database.open(cluster.dsn(), role="test") as database:
        assert not database.can_listen
        with database.engine.connect() as connection:
            for _ in range(12):
                connection.execute(sa.text("SELECT 1"))
            assert connection.scalar(sa.text("SHOW transaction_isolation")) == "read committed"
            assert connection.scalar(sa.text("SHOW lock_timeout")) == "0"
            assert connection.scalar(sa.text("SELECT count(*) FROM pg_prepared_statements")) == 0
            ours = "SELECT name FROM pg_settings WHERE source = 'session' AND name NOT LIKE 'transaction%'"
            assert connection.scalars(sa.text(ours)).all() == []


def test_a_direct_dsn_goes_past_the_proxy(cluster, monkeypatch):
    """LISTEN and migrations get a full session over the direct DSN; the rest stays on the proxy."""
    monkeypatch.setenv("QWF_LISTEN", "off")
    monkeypatch.setenv("QWF_DB_URL", cluster.dsn())
    monkeypatch.setenv("QWF_DIRECT_DB_URL", cluster.dsn(user="postgres", dbname="postgres"))
    with Database.open(role="test") as database:
        assert database.can_listen
        assert database.source == "QWF_DB_URL"
        with database.connect(direct=True) as direct, database.connect() as proxied:
            assert (direct.info.dbname, proxied.info.dbname) == ("postgres", "app")
            assert settings_of(direct)["lock_timeout"] == "10000"
            assert settings_of(proxied)["lock_timeout"] == "0"


@pytest.mark.parametrize(
    ("words", "error", "says"),
    [
        ({"password": "wrong-one"}, AccessRefused, "password authentication failed"),
        ({"password": None}, AccessRefused, "no password supplied"),
        ({"user": "stranger"}, AccessRefused, "stranger"),
        ({"dbname": "nowhere"}, AccessRefused, 'database "nowhere" does not exist'),
        ({"port": "1"}, DatabaseUnreachable, "nothing listens"),
        ({"host": "no-such-host.invalid"}, DatabaseUnreachable, "does not resolve"),
        ({"host": "/nowhere"}, DatabaseUnreachable, "nothing listens"),
        ({"sslmode": "require"}, AccessRefused, "sslmode"),
        ({"options": "-c no_such_setting=1"}, AccessRefused, "no_such_setting"),
        ({"options": "-c default_transaction_read_only=on"}, ReadOnlyServer, "takes no writes"),
    ],
)
def test_what_is_wrong_is_one_clear_line(cluster, words, error, says):
    """Each way not to connect is its own error with advice, from the engine and from connect alike."""
    dsn = cluster.dsn(**{"password": PASSWORD, **words})
    with Database.open(dsn, role="test") as database:
        for attempt in (database.connect, database.engine.connect):
            with pytest.raises(error) as caught:
                attempt()
            text = str(caught.value)
            assert says in text
            assert caught.value.advice
            assert "\n" not in text
            assert not any(secret in text for secret in (PASSWORD, "wrong-one"))
            assert caught.value.__cause__ is None


@pytest.mark.slow
def test_a_standby_is_refused_and_the_primary_is_found(cluster):
    """A read-only standby is no place for a queue; among several hosts the one that takes writes is used."""
    with Cluster.standby_of(cluster) as standby:
        with Database.open(standby.dsn(), role="test") as database, pytest.raises(ReadOnlyServer):
            database.connect()
        both = {"host": "127.0.0.1,127.0.0.1", "port": f"{standby.port},{cluster.port}"}
        with Database.open(cluster.dsn(**both), role="test") as database, database.connect() as connection:
            assert connection.info.port == cluster.port


@pytest.mark.parametrize(
    ("behaviour", "error", "says"),
    [
        (speaks_http, UnsupportedServer, "not PostgreSQL"),
        (hangs_up, DatabaseUnreachable, "closed from the other side"),
        (says_nothing, DatabaseUnreachable, "no answer in time"),
    ],
)
@pytest.mark.parametrize("sslmode", ["prefer", "disable"])
def test_what_is_no_postgres_is_named_within_the_connect_timeout(
    behaviour, error, says, sslmode, monkeypatch
):
    """A web server, a hung-up line and a silent one end in a clear error in bounded time."""
    monkeypatch.setenv("QWF_CONNECT_TIMEOUT_S", "2")
    with serving(behaviour) as port:
        dsn = make_conninfo("", host="127.0.0.1", port=port, user="u", password=PASSWORD, sslmode=sslmode)
        began = time.monotonic()
        with Database.open(dsn, role="test") as database, pytest.raises(error) as caught:
            database.connect()
        assert time.monotonic() - began < 30
    assert says in str(caught.value)
    assert PASSWORD not in str(caught.value)


def test_an_unreadable_dsn_is_refused_when_it_is_opened(monkeypatch, tmp_path):
    """A DSN that cannot be read is refused before anything is tried, and the error says where it stands."""
    wrong = "postgresql://u:s3cr3t/x@h/d"
    with pytest.raises(ConfigurationError, match="from argument"):
        Database.open(wrong, role="test")
    monkeypatch.setenv("QWF_DB_URL", "postgresql://h/d")
    monkeypatch.setenv("QWF_DIRECT_DB_URL", wrong)
    with pytest.raises(ConfigurationError, match="from QWF_DIRECT_DB_URL"):
        Database.open(role="test")
    monkeypatch.setenv("QWF_DB_URL", wrong)
    with pytest.raises(ConfigurationError, match="from QWF_DB_URL"):
        Database.open(role="test")
    monkeypatch.delenv("QWF_DB_URL")
    monkeypatch.delenv("QWF_DIRECT_DB_URL")
    (tmp_path / "qwf.toml").write_text(f'db_url = "{wrong}"')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"from .*qwf\.toml"):
        Database.open(role="test")


def test_an_unreadable_variable_of_libpq_is_a_configuration_error(cluster, monkeypatch):
    """PGCONNECT_TIMEOUT=abc is found by the driver, not by a server; it is told apart from a bug of ours."""
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "abc")
    with Database.open(cluster.dsn(), role="test") as database, pytest.raises(ConfigurationError) as caught:
        database.connect()
    assert "connect_timeout" in str(caught.value)
    assert "PG* variables" in str(caught.value)


def test_the_password_is_in_no_log_and_no_repr(cluster, caplog):
    """SQLAlchemy's loudest logging and every repr stay free of the password."""
    for logger in ("sqlalchemy", "psycopg"):
        caplog.set_level(logging.DEBUG, logger=logger)
    with Database.open(cluster.dsn(), role="test") as database:
        with database.engine.connect() as connection:
            connection.execute(sa.text("SELECT 1"))
        seen = f"{caplog.text}{database!r}{database.engine!r}{database.redacted}"
    assert "SELECT 1" in caplog.text
    assert PASSWORD not in seen


def test_the_pool_survives_a_killed_backend(database, cluster):
    """A connection that the server ended in the pool is replaced without the caller noticing."""
    with database.engine.connect() as connection:
        pid = connection.scalar(sa.text("SELECT pg_backend_pid()"))
    with cluster.connect() as admin:
        admin.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))
    with database.engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT pg_backend_pid()")) != pid


def test_the_pool_survives_a_restarted_server(database, cluster):
    """After a restart every dead connection of the pool is replaced, not only the first."""
    held = [database.engine.connect() for _ in range(3)]
    for connection in held:
        connection.close()
    cluster.stop("immediate")
    cluster.start()
    held = [database.engine.connect() for _ in range(3)]
    assert [connection.scalar(sa.text("SELECT 1")) for connection in held] == [1, 1, 1]
    for connection in held:
        connection.close()


def test_a_notice_on_an_idle_connection_does_not_end_it(database):
    """What arrives on a healthy connection at rest is read, not taken for the end."""
    with database.engine.connect() as connection:
        connection.execute(sa.text("LISTEN rest"))
        pid = connection.scalar(sa.text("SELECT pg_backend_pid()"))
        connection.commit()
    with database.connect(autocommit=True) as other:
        other.execute("NOTIFY rest")
    with database.engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT pg_backend_pid()")) == pid


def test_a_forked_child_gets_connections_of_its_own(database):
    """After a fork the child neither uses nor closes what belongs to its parent."""
    with database.engine.connect() as connection:
        pid = connection.scalar(sa.text("SELECT pg_backend_pid()"))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with database.engine.connect() as connection:
                mine = connection.scalar(sa.text("SELECT pg_backend_pid()"))
            database.close()
            os.write(writer, str(mine).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    in_child = int(os.read(reader, 20) or 0)
    os.close(reader)
    assert in_child not in (0, pid)
    with database.engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT pg_backend_pid()")) == pid


def test_a_forked_child_that_closes_says_no_good_bye(database):
    """Closing in a child leaves the parent's sockets alone."""
    with database.engine.connect() as connection:
        pid = connection.scalar(sa.text("SELECT pg_backend_pid()"))
    child = os.fork()
    if child == 0:
        try:
            database.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    with database.engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT pg_backend_pid()")) == pid


@pytest.mark.slow
def test_without_a_dsn_the_embedded_server_lives_as_long_as_the_database(data_dir, monkeypatch):
    """No DSN at all: the embedded server starts on open, holds, and is released by close."""
    monkeypatch.setenv("QWF_DATA_DIR", str(data_dir))
    with Database.open(role="test") as database:
        assert database.source == "embedded server"
        with database.connect(autocommit=True) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        params = database.params
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(**params)


@pytest.mark.slow
def test_an_embedded_server_that_crashed_is_started_again_by_the_next_connection(data_dir, monkeypatch):
    """On demand also means: again; whoever only asks for a connection need not know."""
    monkeypatch.setenv("QWF_DATA_DIR", str(data_dir))
    with Database.open(role="test") as database:
        with database.connect(autocommit=True) as connection:
            connection.execute("CREATE TABLE note AS SELECT 'kept' AS text")
        postmaster = int((data_dir / "postgres" / "data" / "postmaster.pid").read_text().split("\n")[0])
        os.kill(postmaster, signal.SIGKILL)
        until(lambda: not alive(postmaster), "the crash")
        with database.connect() as connection:
            assert connection.execute("SELECT text FROM note").fetchone() == ("kept",)


def test_failures_of_statements_have_their_own_meaning(database):
    """SQLSTATEs map to the error that says what to do; a row's data in DETAIL is not repeated."""

    def failure(statement):
        with pytest.raises(sa.exc.DBAPIError) as caught, database.engine.begin() as connection:
            connection.execute(sa.text(statement))
        return classify_failure(caught.value, database.dsn)

    missing = failure("SELECT * FROM workflow_runs_of_nobody")
    assert isinstance(missing, SchemaError)
    assert missing.exit_code == ExitCode.SCHEMA
    assert isinstance(failure("SELECT * FROM pg_authid"), AccessRefused)
    assert isinstance(failure("SET TRANSACTION READ ONLY; CREATE TABLE t ()"), ReadOnlyServer)
    other = failure(
        "CREATE TEMP TABLE u (x text UNIQUE); INSERT INTO u VALUES ('secret-row'), ('secret-row')"
    )
    assert type(other) is QwfError
    assert "duplicate key" in str(other)
    assert "secret-row" not in str(other)
    ended = failure("SELECT pg_terminate_backend(pg_backend_pid())")
    assert isinstance(ended, DatabaseUnreachable)


def test_a_lock_wait_is_bounded(cluster, monkeypatch):
    """A statement that waits behind another's lock ends with an error that says so."""
    monkeypatch.setenv("QWF_LOCK_TIMEOUT_S", "0.1")
    with Database.open(cluster.dsn(), role="test") as database, cluster.connect() as other:
        other.execute("SELECT pg_advisory_lock(1)")
        with pytest.raises(sa.exc.DBAPIError) as caught, database.engine.begin() as connection:
            connection.execute(sa.text("SELECT pg_advisory_xact_lock(1)"))
    error = classify_failure(caught.value, database.dsn)
    assert isinstance(error, DatabaseError)
    assert "QWF_LOCK_TIMEOUT_S" in str(error)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("FATAL:  unsupported startup parameter: options", OptionsRefused),
        ("FATAL:  unsupported startup parameter in options: lock_timeout", OptionsRefused),
        (
            "FATAL: Feature not supported: RDS Proxy currently doesn't support command-line options.",
            OptionsRefused,
        ),
        (
            'FATAL:  unrecognized configuration parameter "client_connection_check_interval"',
            UnsupportedServer,
        ),
        ("FATAL:  sorry, too many clients already", DatabaseUnreachable),
        ("FATAL:  the database system is starting up", DatabaseUnreachable),
        ('FATAL:  no pg_hba.conf entry for host "1.2.3.4", user "a"', AccessRefused),
        ("FATAL:  Passwort-Authentifizierung für Benutzer »a« fehlgeschlagen", AccessRefused),
        ("something never heard of", DatabaseUnreachable),
        (
            'connection is bad: connection to server on socket "/s/.s.PGSQL.5432" failed: Permission denied',
            AccessRefused,
        ),
    ],
)
def test_words_of_servers_that_are_not_at_hand(text, error):
    """Proxies, old, full and foreign-language servers are told apart by what they say."""
    found = classify_failure(
        psycopg.OperationalError(f"connection failed: {text}\nDETAIL: more"), "host=h password=pw12"
    )
    assert type(found) is error
    assert "\n" not in str(found)


def test_the_name_fits_and_is_ascii():
    """Postgres cuts names at 63 bytes and mangles what is not ASCII; we do it first, readably."""
    assert application_name("worker", "büro") == "qwf:worker@b?ro"
    assert len(application_name("worker", "x" * 99)) == 63
