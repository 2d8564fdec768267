"""`qwf doctor`: each ailment is made for real, and found with what to do about it."""

import json
import os
import re
import time

import psycopg
import pytest
import sqlalchemy as sa
from support.processes.embedded_users import acquire
from support.processes.environments import LINGER, LOCKS
from support.servers.cluster import PASSWORD, Cluster
from support.servers.pgbouncer import PgBouncer

from queue_workflows.cli.main import run
from queue_workflows.config import reset_config
from queue_workflows.db.connections.engine import Database
from queue_workflows.db.doctor import checkup, examine
from queue_workflows.db.doctor.findings import Check, Report, Status
from queue_workflows.db.listen.listener import Listener, Pace, Wake
from queue_workflows.db.migrations import bootstrap
from queue_workflows.errors import EmbeddedServerError, ExitCode


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
        cluster = Cluster.primary({"fsync": "on"})
    except EmbeddedServerError as missing:
        pytest.skip(f"no Postgres binaries for a server of the test's own: {missing}")
    with cluster:
        bootstrap(cluster.dsn())
        yield cluster


@pytest.fixture
def admin(cluster):
    with cluster.connect() as connection:
        yield connection


def finding(report, name):
    (check,) = [check for check in report.checks if check.name == name]
    return check


def troubles(report):
    """What is neither fine nor skipped."""
    return [check.name for check in report.checks if check.status in (Status.WARN, Status.FAIL)]


def test_a_healthy_database_has_nothing_to_complain_of(cluster, monkeypatch):
    """On a migrated, durable server every check is made and fine, and says what it saw."""
    monkeypatch.setenv("QWF_DB_URL", cluster.dsn())
    report = examine()
    assert troubles(report) == []
    assert report.exit_code == ExitCode.DONE
    assert [check.name for check in report.checks] == ["database", *checkup.CHECKS]
    assert {check.status for check in report.checks} == {Status.OK}
    assert finding(report, "database").found.endswith("(from QWF_DB_URL)")
    assert re.search(r"PostgreSQL \d\d", finding(report, "server").found)
    assert re.search(r"engine at \d{4}, as this code wants it", finding(report, "schema").found)


def test_no_connection_is_69_and_the_rest_is_skipped_by_name(capsys):
    """An unreachable database is one failure; what could not be looked at is named."""
    assert run(["--db", f"postgresql://u:{PASSWORD[:4]}x@127.0.0.1:1/app", "doctor"]) == ExitCode.UNREACHABLE
    told = capsys.readouterr().out
    assert "nothing listens there" in told
    assert all(name in told for name in checkup.CHECKS)
    assert PASSWORD[:4] not in told


def test_an_unreadable_dsn_is_78(capsys):
    """A configuration that cannot be read is a finding, not a crash."""
    assert run(["--db", "postgresql://u:s3cr3t/x@h/d", "doctor"]) == ExitCode.CONFIGURATION
    told = capsys.readouterr().out
    assert "percent-encode" in told
    assert "s3cr3t" not in told


def test_a_wrong_password_is_78(cluster):
    """What the server refuses is configuration."""
    report = examine(cluster.dsn(password="wrong"))
    assert finding(report, "connection").advice
    assert report.exit_code == ExitCode.CONFIGURATION


def test_a_server_that_takes_no_writes_is_69_even_when_the_dsn_asks_for_any(cluster, admin):
    """`target_session_attrs=any` lets a read-only server through; nothing could be enqueued there."""
    admin.execute("ALTER ROLE app SET default_transaction_read_only = on")
    try:
        report = examine(cluster.dsn(target_session_attrs="any"))
    finally:
        admin.execute("ALTER ROLE app RESET default_transaction_read_only")
    assert finding(report, "server").status is Status.FAIL
    assert "takes no writes" in finding(report, "server").found
    assert report.exit_code == ExitCode.UNREACHABLE


def test_a_database_without_the_schema_is_79(cluster, admin):
    """A schema that is absent is a failure of its own, with the command that mends it."""
    admin.execute("CREATE DATABASE empty OWNER app")
    report = examine(cluster.dsn(dbname="empty"))
    assert report.exit_code == ExitCode.SCHEMA
    assert finding(report, "schema").advice == "run `qwf db upgrade`"
    assert troubles(report) == ["schema"]


def test_a_schema_ahead_of_the_code_is_79(cluster, admin):
    """A revision that this code has never heard of is named."""
    admin.execute("CREATE TABLE kept AS SELECT * FROM queue_schema_version")
    admin.execute("UPDATE queue_schema_version SET version_num = '9999'")
    try:
        report = examine(cluster.dsn())
    finally:
        admin.execute("UPDATE queue_schema_version SET version_num = (SELECT version_num FROM kept)")
        admin.execute("DROP TABLE kept")
    assert report.exit_code == ExitCode.SCHEMA
    assert "9999" in finding(report, "schema").found
    assert "newer queue-workflows" in finding(report, "schema").advice


def test_json_says_the_same_and_no_password(cluster, capsys):
    """The machine's form holds each check with its data, and the status the process ends with."""
    assert run(["--db", cluster.dsn(), "doctor", "--json"]) == 0
    text = capsys.readouterr().out
    told = json.loads(text)
    assert told["exit_code"] == 0
    by_name = {check["name"]: check for check in told["checks"]}
    assert by_name["listen"]["data"]["listen"] is True
    assert by_name["schema"]["data"]["engine"]["status"] == "current"
    assert PASSWORD not in text


def test_an_old_transaction_is_named_with_its_session(cluster, monkeypatch):
    """Who holds the oldest transaction: pid, application and state, and how to end it."""
    monkeypatch.setattr(checkup, "OLD_TRANSACTION_S", 0)
    with psycopg.connect(cluster.dsn(), application_name="sleeper") as held:
        held.execute("SELECT 1")
        check = finding(examine(cluster.dsn()), "transactions")
        assert check.status is Status.WARN
        assert f"pid {held.info.backend_pid}, sleeper, idle in transaction" in check.found
        assert f"pg_terminate_backend({held.info.backend_pid})" in check.advice
    assert finding(examine(cluster.dsn()), "transactions").status is Status.OK


def test_what_holds_old_rows_is_named(cluster, admin, monkeypatch):
    """A forgotten prepared transaction and a replication slot without a reader."""
    monkeypatch.setattr(checkup, "OLD_TRANSACTION_S", 0)
    admin.execute("BEGIN")
    admin.execute("SELECT pg_current_xact_id()")
    admin.execute("PREPARE TRANSACTION 'forgotten'")
    admin.execute("SELECT pg_create_physical_replication_slot('abandoned', true)")
    try:
        check = finding(examine(cluster.dsn()), "holders")
    finally:
        admin.execute("ROLLBACK PREPARED 'forgotten'")
        admin.execute("SELECT pg_drop_replication_slot('abandoned')")
    assert check.status is Status.WARN
    assert "'forgotten'" in check.found
    assert "abandoned" in check.found


@pytest.mark.parametrize(("seconds", "says"), [(60, "behind"), (-60, "ahead of")])
def test_a_clock_that_differs(cluster, seconds, says):
    """The difference of the clocks is measured, told with its sign, and its meaning said."""
    check = finding(examine(cluster.dsn(), clock=lambda: time.time() + seconds), "clock")
    assert check.status is Status.WARN
    assert says in check.found
    assert abs(check.data["server_ahead_s"] + seconds) < 1


@pytest.mark.slow
def test_a_filling_notify_queue(admin):
    """A listener asleep in a transaction fills the queue; it is seen before it fails every enqueue."""
    if admin.info.server_version < 170000:
        pytest.skip("the size of the NOTIFY queue cannot be set before PostgreSQL 17")
    with (
        Cluster.primary({"max_notify_queue_pages": "64"}) as small,
        psycopg.connect(small.dsn()) as sleeper,
        small.connect() as writer,
    ):
        sleeper.execute("LISTEN noise")
        sleeper.commit()
        sleeper.execute("SELECT 1")
        statuses = []
        for _ in range(60):
            writer.execute("SELECT pg_notify('noise', repeat('x', 7900))")
            usage = writer.execute("SELECT pg_notification_queue_usage()").fetchone()[0]
            if (usage > 0.3 and not statuses) or usage > 0.8:
                statuses.append(finding(examine(small.dsn()), "notify queue").status)
            if usage > 0.8:
                break
    assert statuses == [Status.WARN, Status.FAIL]


def test_few_connections_left(cluster, admin):
    """The narrowest of the server's, the role's and the database's limits counts."""
    admin.execute("ALTER ROLE app CONNECTION LIMIT 8")
    try:
        check = finding(examine(cluster.dsn()), "connections")
    finally:
        admin.execute("ALTER ROLE app CONNECTION LIMIT -1")
    assert check.status is Status.WARN
    assert "of 8 that this role may have" in check.found


def test_durability_that_is_switched_off(cluster, admin):
    """Asynchronous commit for everything loses committed jobs, so it is said, with who set it."""
    admin.execute("ALTER DATABASE app SET synchronous_commit = off")
    try:
        check = finding(examine(cluster.dsn()), "durability")
    finally:
        admin.execute("ALTER DATABASE app RESET synchronous_commit")
    assert (check.status, check.found) == (Status.WARN, "synchronous_commit is off (database)")


@pytest.mark.slow
def test_a_setting_that_waits_for_a_restart():
    """What was changed and is not in force is named."""
    with Cluster.primary() as changed:
        with changed.connect() as admin:
            admin.execute("ALTER SYSTEM SET max_wal_senders = 7")
            admin.execute("SELECT pg_reload_conf()")
        until = time.monotonic() + 150
        while (check := finding(examine(changed.dsn()), "pending restart")).status is Status.OK:
            assert time.monotonic() < until
        assert "max_wal_senders" in check.found


def test_a_pin_that_was_undone(cluster):
    """A session whose waits nothing bounds is told where to look."""
    check = finding(examine(cluster.dsn(options="-c lock_timeout=0")), "session")
    assert check.status is Status.WARN
    assert "lock_timeout" in check.advice
    assert "idle_in_transaction" not in check.advice


def test_an_encoding_that_cannot_hold_every_payload(cluster, admin):
    """A database of another encoding than UTF8 is a warning."""
    admin.execute("CREATE DATABASE latin OWNER app ENCODING LATIN1 LOCALE 'C' TEMPLATE template0")
    assert finding(examine(cluster.dsn(dbname="latin")), "server").status is Status.WARN


@pytest.mark.filterwarnings("ignore::queue_workflows.settings.UnknownVariable")
def test_what_the_environment_says_in_vain(cluster, monkeypatch):
    """A misspelt variable, a driver that is not used and a direct DSN that does not belong are told."""
    monkeypatch.setenv("QWF_LEASE", "5")
    monkeypatch.setenv("QWF_DIRECT_DB_URL", cluster.dsn())
    params = psycopg.conninfo.conninfo_to_dict(cluster.dsn())
    url = f"postgresql+asyncpg://app@127.0.0.1:{params['port']}/app"
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    report = examine(url)
    assert "QWF_LEASE_S" in finding(report, "environment").found
    assert "asyncpg" in finding(report, "database").advice
    assert "not used" in finding(report, "direct").found
    assert report.exit_code == ExitCode.DONE


def test_a_server_without_a_dsn_is_the_embedded_one(data_dir, monkeypatch):
    """With nothing configured the embedded server is looked at, and where its data really lies is told."""
    monkeypatch.setenv("QWF_DATA_DIR", str(data_dir))
    absent = examine()
    assert "no embedded one" in finding(absent, "database").found
    assert absent.exit_code == ExitCode.CONFIGURATION
    assert not data_dir.exists()
    acquire(data_dir).release()
    report = examine()
    assert finding(report, "database").found == f"embedded server in {data_dir / 'postgres'}"
    assert troubles(report) == ["schema"]


def test_the_exit_code_is_the_failures_own_if_they_agree():
    """One kind of failure gives its own code, several give 1, warnings none."""

    def ends(*codes):
        checks = [Check("w", Status.WARN, "")] + [Check("f", Status.FAIL, "", code=code) for code in codes]
        return Report(tuple(checks)).exit_code

    assert ends() == 0
    assert ends(ExitCode.SCHEMA) == 79
    assert ends(ExitCode.CONFIGURATION, ExitCode.CONFIGURATION) == 78
    assert ends(ExitCode.CONFIGURATION, ExitCode.SCHEMA) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [{}, {"default_pool_size": "1"}, {"server_round_robin": "1"}],
    ids=["plain", "one backend", "round robin"],
)
def test_a_transaction_pooling_proxy_is_detected_and_named(cluster, how):
    """Behind PgBouncer in transaction mode workers poll, and doctor says which setting brings LISTEN back."""
    with PgBouncer(cluster, "transaction", ignore_startup_parameters="options", **how) as proxy:
        report = examine(proxy.dsn())
    check = finding(report, "pooling")
    assert check.status is Status.WARN
    assert "transaction-pooling proxy (PgBouncer" in check.found
    assert "QWF_DIRECT_DB_URL" in check.advice
    assert finding(report, "listen").data == {"listen": False}
    assert report.exit_code == ExitCode.DONE


def test_a_proxy_that_refuses_startup_options_is_told_apart(cluster):
    """PgBouncer refuses what it cannot track: we connect without, and doctor finds the same as else."""
    with PgBouncer(cluster, "transaction") as proxy:
        report = examine(proxy.dsn())
    assert [check.name for check in report.checks if check.status is Status.FAIL] == []
    assert "transaction-pooling proxy (PgBouncer" in finding(report, "pooling").found


def test_a_proxy_that_pools_single_statements_is_refused(cluster):
    """There nothing can work, and the one finding says what to set."""
    with PgBouncer(cluster, "statement", ignore_startup_parameters="options") as proxy:
        report = examine(proxy.dsn())
    check = finding(report, "connection")
    assert check.status is Status.FAIL
    assert "pools single statements" in check.found
    assert "pool_mode = transaction" in check.advice
    assert report.exit_code == ExitCode.CONFIGURATION


def test_polling_behind_a_transaction_pooling_proxy_is_fine(cluster, monkeypatch):
    """With QWF_LISTEN=off everything works through it, and doctor knows that this is how it must be."""
    monkeypatch.setenv("QWF_LISTEN", "off")
    with PgBouncer(cluster, "transaction") as proxy:
        report = examine(proxy.dsn())
        assert troubles(report) == []
        assert "QWF_LISTEN is off, which suits it" in finding(report, "pooling").found
        with Database.open(proxy.dsn(), role="test") as database:
            connections = [database.engine.connect() for _ in range(5)]
            for number in range(50):
                connection = connections[number % 5]
                assert connection.scalar(sa.text("SELECT :n"), {"n": number}) == number
                connection.commit()
            for connection in connections:
                connection.close()


def test_a_direct_dsn_makes_listening_work_behind_the_proxy(cluster, monkeypatch):
    """LISTEN goes past the proxy, work goes through it."""
    with PgBouncer(cluster, "transaction") as proxy:
        monkeypatch.setenv("QWF_LISTEN", "off")
        monkeypatch.setenv("QWF_DB_URL", proxy.dsn())
        monkeypatch.setenv("QWF_DIRECT_DB_URL", cluster.dsn())
        report = examine()
        assert troubles(report) == []
        assert finding(report, "listen").data["listen"] is True
        with Database.open(role="test") as database, Listener.on(database, ["ready"]) as listener:
            assert listener.wait(150) == Wake("listening")
            with database.connect(autocommit=True) as connection:
                connection.execute("SELECT pg_notify('ready', 'x')")
            assert listener.wait(150).reason == "notified"


def test_a_proxy_that_pools_sessions_is_told_apart(cluster):
    """In session mode everything of ours works, so it is only mentioned."""
    with PgBouncer(cluster, "session", ignore_startup_parameters="options") as proxy:
        check = finding(examine(proxy.dsn()), "pooling")
    assert check.status is Status.OK
    assert "pools whole sessions" in check.found


def test_a_listener_behind_a_transaction_pooling_proxy_never_believes_that_it_listens(cluster):
    """Where its own canary does not come back it polls, and says which setting to change."""
    with PgBouncer(cluster, "transaction") as proxy:
        pace = Pace(answer_within=0.3, retry_first=0.02, retry_most=0.05)
        connect = lambda: psycopg.connect(proxy.dsn(), autocommit=True)  # noqa: E731
        with Listener(connect, ["ready"], pace=pace) as listener:
            until = time.monotonic() + 150
            while listener.trouble is None:
                assert listener.wait(0.05) is None
                assert time.monotonic() < until
            assert "QWF_DIRECT_DB_URL" in listener.trouble
            assert listener.must_look_again()
