"""Two migrations at once, one that is killed, one that is blocked, one that is interrupted."""

from __future__ import annotations

import signal
import threading

import psycopg
import psycopg2
import pytest
import sqlalchemy as sa
from support.rows.revisions import REVISIONS
from support.rows.schemas import as_user, blocked, catalog, holding, query, sa_engine, start_qwf, until
from support.servers.postgres_versions import each_version, newest_version

from queue_workflows.db import bootstrap, migrations
from queue_workflows.db.migrations.chain.chains import engine_chain
from queue_workflows.db.migrations.session import LOCK_CLASS, LOCK_KEY, SessionTerms, migration_session
from queue_workflows.errors import (
    ConfigurationError,
    DatabaseUnreachable,
    MigrationBlocked,
    MigrationRefused,
    SchemaError,
)

pytestmark = pytest.mark.slow

ENGINE = [engine_chain()]
HEAD = migrations.history(ENGINE)[-1].revision
TAKE_LOCK = f"SELECT pg_advisory_lock({LOCK_CLASS}, {LOCK_KEY})"
LOCK_NODE_JOBS = "LOCK TABLE workflow_node_jobs IN ACCESS SHARE MODE"


def at(dsn: str) -> str:
    """The revision that the database is at."""
    ((revision,),) = query(dsn, "SELECT version_num FROM queue_schema_version")
    return revision


def connected(dsn: str) -> int:
    """How many migrations of this database are connected."""
    ((number,),) = query(
        dsn,
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE application_name LIKE 'qwf:migrate%' AND datname = current_database()",
    )
    return number


@newest_version
def test_two_processes_upgrade_at_once(empty: str) -> None:
    """Both are let loose from one lock; one does all the work, the other finds it done, both succeed."""
    with holding(empty, TAKE_LOCK) as lock:
        holder = f"pid {lock.info.backend_pid} (the-holder)"
        processes = [start_qwf("db", "upgrade", QWF_DB_URL=empty) for _ in range(2)]
        said = [process.stderr.readline() for process in processes if process.stderr]
        lock.execute("SELECT pg_advisory_unlock_all()")
        outcomes = [process.communicate(timeout=150) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outcomes
    assert said == [f"waiting for another migration: {holder}\n"] * 2
    lines = sorted(len(out.splitlines()) for out, _err in outcomes)
    assert lines == [1, int(HEAD)]
    assert at(empty) == HEAD


def test_threads_of_one_process_may_all_bootstrap(empty: str, second: str) -> None:
    """Alembic keeps its running environment in module globals; on two databases nobody trips over it."""
    done: list[int] = []
    failed: list[BaseException] = []
    start = threading.Barrier(4)

    def one(dsn: str) -> None:
        try:
            start.wait()
            done.append(len(bootstrap(dsn)))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=one, args=(dsn,)) for dsn in (empty, second) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(150)
    assert failed == []
    assert sorted(done) == [0, 0, int(HEAD), int(HEAD)]
    assert catalog(empty) == catalog(second)


@each_version
def test_a_killed_upgrade_is_completed_by_the_next(empty: str, at_head: dict[tuple[str, str], str]) -> None:
    """kill -9 in the middle of a revision leaves the last whole one, and nothing to clean up by hand."""
    migrations.upgrade(empty, chains=ENGINE, revision="0003")
    with holding(empty, LOCK_NODE_JOBS) as holder:
        process = start_qwf("db", "upgrade", "--lock-timeout", "60", QWF_DB_URL=empty)
        until(lambda: blocked(empty, holder.info.backend_pid), "the upgrade waits for the table")
        process.kill()
        process.communicate(timeout=150)
        assert at(empty) == "0005"
    bootstrap(empty)
    assert at(empty) == HEAD
    assert catalog(empty) == at_head


@newest_version
def test_a_blocked_revision_names_who_blocks_it(empty: str) -> None:
    """After lock_timeout the revision is rolled back, and the error says which session to look at."""
    migrations.upgrade(empty, chains=ENGINE, revision="0003")
    with holding(empty, LOCK_NODE_JOBS) as holder:
        pid = holder.info.backend_pid
        with pytest.raises(MigrationBlocked, match=rf"0006 .*held by pid {pid} \(the-holder\)"):
            migrations.upgrade(empty, chains=ENGINE, terms=SessionTerms(lock_timeout_s=0.4))
    assert at(empty) == "0005"
    assert bootstrap(empty)[0].revision == "0006"


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 0, -1, 1e9])
def test_a_wait_that_is_none_is_refused(empty: str, seconds: float) -> None:
    """Postgres would take some of them for no bound at all."""
    with pytest.raises(ConfigurationError, match="lock_timeout_s is above 0"):
        bootstrap(empty, lock_timeout_s=seconds)
    assert catalog(empty) == {}


def test_waiting_for_another_migration_has_an_end(empty: str) -> None:
    """Past the bound the error names the session that holds the lock, and nothing was done."""
    with holding(empty, TAKE_LOCK) as holder:
        told: list[str] = []
        with pytest.raises(MigrationBlocked, match=rf"pid {holder.info.backend_pid} \(the-holder\)"):
            bootstrap(empty, wait_s=0.3, notify=told.append)
        assert told == [f"waiting for another migration: pid {holder.info.backend_pid} (the-holder)"]
    assert ("table", "workflow_runs") not in catalog(empty)


def test_the_lock_is_polled_for_not_sat_in(empty: str) -> None:
    """A blocking lock call would hold a snapshot, and a CREATE INDEX CONCURRENTLY in front never end."""
    with holding(empty, TAKE_LOCK) as holder:
        process = start_qwf("db", "upgrade", QWF_DB_URL=empty)
        until(lambda: connected(empty) == 1, "the upgrade polls")
        assert blocked(empty, holder.info.backend_pid) == []
        holder.execute("SELECT pg_advisory_unlock_all()")
        holder.commit()
        out, err = process.communicate(timeout=150)
    assert process.returncode == 0, err
    assert out.count("ok\n") == int(HEAD)


@pytest.mark.parametrize(("how", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_upgrade_rolls_its_revision_back(empty: str, how: int, status: int) -> None:
    """Ctrl-C and SIGTERM end the waiting statement, in one line and at once, and the next run goes on."""
    migrations.upgrade(empty, chains=ENGINE, revision="0003")
    with holding(empty, LOCK_NODE_JOBS) as holder:
        process = start_qwf("db", "upgrade", "--lock-timeout", "60", QWF_DB_URL=empty)
        until(lambda: blocked(empty, holder.info.backend_pid), "the upgrade waits for the table")
        process.send_signal(how)
        out, err = process.communicate(timeout=150)
        until(lambda: not blocked(empty, holder.info.backend_pid), "the server lets go")
    assert process.returncode == status, err
    assert out.splitlines()[-1].startswith("0006")
    assert out.endswith("rolled back\n")
    assert len(err.splitlines()) == 1
    assert at(empty) == "0005"
    bootstrap(empty)


def test_a_cancelled_statement_is_said_so(empty: str) -> None:
    """Whether by a person or by a statement_timeout of the revision's own: rolled back, with what to do."""
    migrations.upgrade(empty, chains=ENGINE, revision="0003")
    with holding(empty, LOCK_NODE_JOBS) as holder:
        process = start_qwf("db", "upgrade", "--lock-timeout", "600", QWF_DB_URL=empty)
        until(lambda: blocked(empty, holder.info.backend_pid), "the upgrade waits for the table")
        (pid,) = blocked(empty, holder.info.backend_pid)
        query(empty, f"SELECT pg_cancel_backend({pid})")
        _out, err = process.communicate(timeout=150)
    assert process.returncode == 73, err
    assert "0006" in err
    assert "canceling statement due to user request — run it again" in err
    assert at(empty) == "0005"


def test_a_lost_connection_is_said_so(empty: str) -> None:
    """A server that ends the session in the middle is no traceback, and the next run goes on."""
    migrations.upgrade(empty, chains=ENGINE, revision="0003")
    failure: list[BaseException] = []

    def upgrade() -> None:
        with pytest.raises(DatabaseUnreachable, match="0006") as caught:
            migrations.upgrade(empty, chains=ENGINE, terms=SessionTerms(lock_timeout_s=60))
        failure.append(caught.value)

    with holding(empty, LOCK_NODE_JOBS) as holder:
        thread = threading.Thread(target=upgrade)
        thread.start()
        until(lambda: blocked(empty, holder.info.backend_pid), "the upgrade waits for the table")
        (pid,) = blocked(empty, holder.info.backend_pid)
        query(empty, f"SELECT pg_terminate_backend({pid})")
        thread.join(150)
    assert len(failure) == 1
    assert bootstrap(empty)[0].revision == "0006"


def test_a_failing_revision_takes_nothing_else_with_it(empty: str) -> None:
    """Each revision is its own transaction: those before the failing one stand, and are not run again."""
    query(empty, "CREATE TABLE schedules (mine integer)")
    seen: list[str] = []
    with pytest.raises(Exception, match=r"0012 .* failed and was rolled back: .*already exists"):
        bootstrap(empty, report=lambda step: seen.append(step.revision) if step.done else None)
    assert seen[-1] == at(empty) == "0011"
    query(empty, "DROP TABLE schedules")
    assert [step.revision for step in bootstrap(empty)] == REVISIONS[11:]


def test_a_borrowed_connection_comes_back_as_it_was(empty: str) -> None:
    """Timeouts and locks of a migration do not leak into the caller's session or pool."""
    engine = sa_engine(empty)
    with engine.connect() as connection:
        for name, value in (("lock_timeout", "123ms"), ("statement_timeout", "77s")):
            connection.exec_driver_sql(f"SET {name} = '{value}'")
        connection.commit()
        with migration_session(connection) as session:
            assert session.connection.exec_driver_sql("SHOW lock_timeout").scalar() == "5s"
            session.connection.rollback()
        assert bootstrap(conn=connection)
        assert connection.exec_driver_sql("SHOW lock_timeout").scalar() == "123ms"
        assert connection.exec_driver_sql("SHOW statement_timeout").scalar() == "77s"
        held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        assert connection.exec_driver_sql(held).scalar() == 0
    assert bootstrap(engine=engine) == []


def test_a_lost_connection_is_not_made_anew_to_let_go_of_its_lock(empty: str) -> None:
    """What is heard is the loss, also where the server takes nobody back for a while."""
    connections: list[psycopg.Connection[tuple[object, ...]]] = []
    is_away = threading.Event()

    def connect() -> psycopg.Connection[tuple[object, ...]]:
        if is_away.is_set():
            raise DatabaseUnreachable("the database system is not yet accepting connections")
        connections.append(psycopg.connect(empty))
        return connections[-1]

    engine = sa.create_engine("postgresql+psycopg://", creator=connect)

    def lose_it() -> None:
        with migration_session(engine) as session:
            query(empty, f"SELECT pg_terminate_backend({connections[0].info.backend_pid})")
            is_away.set()
            session.connection.exec_driver_sql("SELECT 1")

    with pytest.raises(sa.exc.OperationalError, match="terminat"):
        lose_it()
    engine.dispose()


AUTOCOMMIT = {
    "by SQLAlchemy": lambda dsn: sa.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(dsn), isolation_level="AUTOCOMMIT"
    ),
    "by psycopg": lambda dsn: sa.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(dsn, autocommit=True)
    ),
    "by psycopg2": lambda dsn: sa.create_engine(
        "postgresql+psycopg2://", creator=lambda: psycopg2.connect(dsn), isolation_level="AUTOCOMMIT"
    ),
}


@pytest.mark.parametrize("how", AUTOCOMMIT)
def test_autocommit_makes_no_half_revision(empty: str, how: str) -> None:
    """A revision that fails at its end leaves nothing of its beginning; the caller keeps autocommit."""
    engine = AUTOCOMMIT[how](empty)
    query(empty, "CREATE TABLE binaries (mine integer)")
    with engine.connect() as connection:
        with pytest.raises(SchemaError, match=r"0013 .* was rolled back"):
            bootstrap(conn=connection)
        assert not {("table", "machines"), ("table", "hook_records")} & set(catalog(empty))
        query(empty, "DROP TABLE binaries")
        assert bootstrap(conn=connection)[0].revision == "0013"
        assert connection.connection.driver_connection.autocommit
    assert bootstrap(engine=engine) == []
    engine.dispose()


def test_a_connection_inside_a_transaction_is_refused(empty: str) -> None:
    """A revision cannot commit what the caller has not finished."""
    with sa_engine(empty).connect() as connection:
        connection.exec_driver_sql("SELECT 1")
        with pytest.raises(MigrationRefused, match="inside a transaction"):
            bootstrap(conn=connection)


def test_the_watch_needs_no_second_connection(empty: str, limited_role: str) -> None:
    """Where the role may connect only once, the upgrade works, and the error names no one."""
    query(
        empty, f"ALTER ROLE {limited_role} CONNECTION LIMIT 1; GRANT ALL ON SCHEMA public TO {limited_role}"
    )
    dsn = as_user(empty, limited_role)
    migrations.upgrade(dsn, chains=ENGINE, revision="0003")
    until(lambda: connected(empty) == 0, "its connection is gone")
    with holding(empty, LOCK_NODE_JOBS), pytest.raises(MigrationBlocked, match="another session"):
        migrations.upgrade(dsn, chains=ENGINE, terms=SessionTerms(lock_timeout_s=0.3))
    until(lambda: connected(empty) == 0, "its connection is gone")
    assert bootstrap(dsn)
