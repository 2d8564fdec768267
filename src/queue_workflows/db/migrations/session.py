"""The connection that migrations run on, alone.

One session-level advisory lock per database makes migrations queue up. It is polled for: a session that
sits in a blocking lock call holds a snapshot, and a CREATE INDEX CONCURRENTLY of the session in front would
wait for it for ever. The lock dies with its connection, so a killed migration leaves nothing to clean up.

DDL waits for table locks no longer than `lock_timeout`, because everybody else queues behind a waiting DDL
statement. What was in the way is asked over a second connection while the statement waits; afterwards nobody
knows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import psycopg
import sqlalchemy as sa
from sqlalchemy.pool import NullPool, PoolProxiedConnection

from queue_workflows.config import effective_settings
from queue_workflows.db.connections.bounded_wire import WireLost
from queue_workflows.db.connections.engine import Database, classify_failure
from queue_workflows.db.connections.proxies import asker, is_announced, shares_backend
from queue_workflows.errors import (
    ConfigurationError,
    MigrationBlocked,
    MigrationRefused,
    QwfError,
    SessionsNotKept,
)
from queue_workflows.settings import DAY_S

Target = str | sa.Engine | sa.Connection | None
Notify = Callable[[str], None]

LOCK_CLASS: Final = 0x71776600
LOCK_KEY: Final = 1
POLL_S: Final = 0.2
# What the settings of the same name allow.
LONGEST_S: Final = DAY_S

TRY_LOCK: Final = sa.text("SELECT pg_try_advisory_lock(:class, :key)")
UNLOCK: Final = sa.text("SELECT pg_advisory_unlock(:class, :key)")

# Two-key advisory locks show as classid, objid and objsubid 2.
LOCK_HOLDER: Final = sa.text("""
    SELECT a.pid, a.application_name
    FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2
      AND l.classid = CAST(:class AS integer) AND l.objid = CAST(:key AS integer)
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
""")

# A process that holds the lock is at our migration still, and at nobody else's statement.
CANCEL: Final = """
    SELECT pg_cancel_backend(pid) FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND objsubid = 2 AND pid = %(pid)s::int
      AND classid = %(class)s::oid AND objid = %(key)s::oid
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""

BLOCKERS: Final = """
    SELECT a.pid, a.application_name FROM pg_stat_activity a
    WHERE a.pid = ANY (pg_blocking_pids(%s)) ORDER BY a.pid
"""


def one_target(dsn: str | None, engine: sa.Engine | None, conn: sa.Connection | None) -> Target:
    """Exactly one way to name the database, or none for what the settings say."""
    given: list[Target] = [one for one in (dsn, engine, conn) if one is not None]
    if len(given) > 1:
        raise ConfigurationError("give one of dsn, engine and conn, not several")
    return given[0] if given else None


@contextmanager
def connection_to(
    target: Target, *, role: str = "migrate", for_lock: bool = False, inside_transaction: bool = False
) -> Iterator[sa.Connection]:
    """A connection to what the caller named: a DSN, an engine, a connection, or what the settings say.

    `inside_transaction` is for a use that only looks, and leaves a transaction of the caller's alone.
    """
    if isinstance(target, sa.Connection):
        if target.in_transaction() and not inside_transaction:
            raise MigrationRefused(
                "the connection is inside a transaction",
                advice="commit it first: each revision runs in a transaction of its own",
            )
        yield target
    elif isinstance(target, sa.Engine):
        with _connected(target) as connection:
            yield connection
    else:
        with Database.open(target, role=role, creates=for_lock) as database:
            # QWF_LISTEN=off is about wakes: whether the lock holds is seen at the connection.
            session = partial(database.connect_session, though_forgone=True)
            creator = session if for_lock else partial(database.connect, direct=True)
            engine = sa.create_engine("postgresql+psycopg://", creator=creator, poolclass=NullPool)
            try:
                with engine.connect() as connection:
                    yield connection
            except SessionsNotKept as shared:
                raise _lock_needs_session(shared.message) from None
            finally:
                engine.dispose()


def _lock_needs_session(sign: str) -> ConfigurationError:
    return ConfigurationError(
        f"migrations hold a session-level lock, which a transaction-pooling proxy cannot carry ({sign})",
        advice="set QWF_DIRECT_DB_URL to the server itself, or hand in an engine that connects to it",
    )


def _refuse_shared(connection: sa.Connection) -> None:
    """A lock on a backend that others are given too keeps nobody out, however the connection came to us."""
    driver = connection.connection.driver_connection
    if is_announced(asker(driver), driver):
        return
    pool = connection.engine.pool.recreate()
    failures = (connection.dialect.loaded_dbapi.Error, sa.exc.SQLAlchemyError, QwfError, WireLost)
    try:
        with closing(pool.connect()) as another:
            sign = shares_backend(driver, another.driver_connection)
            another.invalidate()
    except failures as error:
        raise _lock_needs_session(f"there is a proxy, and it did not show its kind: {error}") from error
    finally:
        pool.dispose()
    if sign:
        raise _lock_needs_session(sign)


def _connected(engine: sa.Engine) -> sa.Connection:
    try:
        return engine.connect()
    except sa.exc.DBAPIError as error:
        raise classify_failure(error, engine.url.render_as_string(hide_password=True)) from None


@dataclass
class Watch:
    """Remembers what was last seen in the way of a backend."""

    pid: int
    every_s: float
    doing: str = ""
    blockers: list[tuple[int, str]] = field(default_factory=list)
    # Whether the revision went on after a commit of its own, as where it builds an index beside writers.
    is_in_parts: bool = False
    _has_committed: bool = False
    _done: threading.Event = field(default_factory=threading.Event)

    def begin(self, doing: str) -> None:
        """A new revision begins: what blocked the one before is of no interest."""
        self.doing, self.blockers = doing, []
        self.is_in_parts = self._has_committed = False

    @property
    def fate(self) -> str:
        """What became of the revision that failed or was stopped."""
        return "broken off, and begun anew by the next run" if self.is_in_parts else "rolled back"

    @contextmanager
    def following(self, connection: sa.Connection) -> Iterator[None]:
        """Notice commits; one that fails itself is followed by nothing, so the revision was in one part."""

        def committed(_connection: sa.Connection) -> None:
            self._has_committed = True

        def executed(*_statement: object) -> None:
            self.is_in_parts = self.is_in_parts or self._has_committed

        sa.event.listen(connection, "commit", committed)
        sa.event.listen(connection, "before_cursor_execute", executed)
        try:
            yield
        finally:
            sa.event.remove(connection, "commit", committed)
            sa.event.remove(connection, "before_cursor_execute", executed)

    def describe(self) -> str:
        """The blockers for a person."""
        return ", ".join(name_session(*one) for one in self.blockers) or "another session"

    def look(self, connection: psycopg.Connection[Any]) -> None:
        """Ask until told to stop; a watch that loses its connection only knows less."""
        with suppress(psycopg.Error):
            while not self._done.wait(self.every_s):
                seen = connection.execute(BLOCKERS, [self.pid]).fetchall()
                if seen:
                    self.blockers = [(pid, name) for pid, name in seen]

    def stop(self) -> None:
        self._done.set()


@contextmanager
def watching(connection: sa.Connection, lock_timeout_s: float) -> Iterator[Watch]:
    """Watch a connection's backend from a second one, opened the same way but outside the caller's pool."""
    pid = connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
    connection.commit()
    watch = Watch(pid, min(POLL_S, lock_timeout_s / 4))
    pool = connection.engine.pool.recreate()
    spare: PoolProxiedConnection | None = None
    with suppress(psycopg.Error, sa.exc.SQLAlchemyError, QwfError):
        spare = pool.connect()
    driver = spare.driver_connection if spare else None
    thread = None
    if isinstance(driver, psycopg.Connection):
        driver.autocommit = True
        thread = threading.Thread(target=watch.look, args=(driver,), name="qwf-migration-watch", daemon=True)
        thread.start()
    interrupted = False
    try:
        yield watch
    except BaseException as error:
        interrupted = not isinstance(error, Exception)
        raise
    finally:
        watch.stop()
        if thread:
            thread.join()
        if interrupted and isinstance(driver, psycopg.Connection):
            # The statement under way would go on waiting, with all its locks, until the server misses us.
            with suppress(psycopg.Error):
                driver.execute(CANCEL, {"class": LOCK_CLASS, "key": LOCK_KEY, "pid": pid})
        if spare:
            spare.invalidate()
        pool.dispose()


def name_session(pid: int, application: str | None) -> str:
    """A session as an operator can find it."""
    return f"pid {pid} ({application})" if application else f"pid {pid}"


def take_lock(
    connection: sa.Connection,
    wait_s: float,
    notify: Notify,
    *,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> None:
    """Become the only migration of this database, within `wait_s`."""
    names = {"class": LOCK_CLASS, "key": LOCK_KEY}
    deadline = now() + wait_s
    told = False
    while not connection.execute(TRY_LOCK, names).scalar_one():
        found = connection.execute(LOCK_HOLDER, names).all()
        connection.commit()
        holders = ", ".join(name_session(pid, name) for pid, name in found) or "a session that just ended"
        if now() >= deadline:
            raise MigrationBlocked(
                f"another migration has been running for more than {wait_s:g} s: {holders}",
                advice="wait for it, or end that session with pg_terminate_backend",
            )
        if found and not told:
            notify(f"waiting for another migration: {holders}")
            told = True
        sleep(POLL_S)
    connection.commit()


def release_lock(connection: sa.Connection) -> None:
    """Let the next migration begin."""

    def unlock() -> None:
        connection.execute(UNLOCK, {"class": LOCK_CLASS, "key": LOCK_KEY})
        connection.commit()

    _at_last(connection, unlock)


def _at_last(connection: sa.Connection, put_back: Callable[[], None]) -> None:
    """Leave a session as it was; one that is lost took everything with it, and is not made anew for that."""
    if connection.invalidated:
        return
    with suppress(sa.exc.DBAPIError, sa.exc.InvalidRequestError):
        if connection.in_transaction():
            connection.rollback()
        put_back()


def silent(_thing: Any) -> None:
    """Library callers read what is returned instead."""


@dataclass(frozen=True)
class SessionTerms:
    """How long to wait for a table lock and for another migration (None: as set), and how to report it."""

    lock_timeout_s: float | None = None
    wait_s: float | None = None
    notify: Notify = silent

    def settled(self) -> tuple[float, float]:
        """Both waits in seconds."""
        settings = effective_settings()
        waits = (
            settings.migration_lock_timeout_s if self.lock_timeout_s is None else self.lock_timeout_s,
            settings.migration_wait_s if self.wait_s is None else self.wait_s,
        )
        # Also refuses what is no number; to Postgres a lock_timeout of 0 would be none at all.
        if not (0 < waits[0] <= LONGEST_S and 0 <= waits[1] <= LONGEST_S):
            raise ConfigurationError(
                f"a migration cannot wait {waits[0]:g} s for a table and {waits[1]:g} s for another one",
                advice=f"lock_timeout_s is above 0, wait_s may be 0, and both are {LONGEST_S:g} at most",
            )
        return waits


DEFAULT_TERMS: Final = SessionTerms()


@dataclass(frozen=True)
class MigrationSession:
    """A connection that holds the migration lock, and the watch over it."""

    connection: sa.Connection
    watch: Watch
    lock_timeout_s: float


@contextmanager
def migration_session(
    target: Target = None, terms: SessionTerms = DEFAULT_TERMS
) -> Iterator[MigrationSession]:
    """The only migration of a database: alone under the lock, patient with work, impatient with tables."""
    lock_timeout_s, wait_s = terms.settled()
    timeouts = {"lock_timeout": f"{max(1, round(lock_timeout_s * 1000))}ms", "statement_timeout": "0"}
    with connection_to(target, for_lock=True) as connection, _in_transactions(connection):
        _refuse_shared(connection)
        take_lock(connection, wait_s, terms.notify)
        try:
            with _settings(connection, timeouts), watching(connection, lock_timeout_s) as watch:
                yield MigrationSession(connection, watch, lock_timeout_s)
        finally:
            release_lock(connection)


@contextmanager
def _in_transactions(connection: sa.Connection) -> Iterator[None]:
    """A revision is a transaction, also on a connection that came in autocommit; it goes back as it came."""
    driver: Any = connection.connection.driver_connection
    autocommit = getattr(driver, "autocommit", False)
    if not autocommit:
        yield
        return
    driver.autocommit = False
    try:
        yield
    finally:
        if not connection.closed and not driver.closed:
            driver.rollback()
            driver.autocommit = True


@contextmanager
def _settings(connection: sa.Connection, values: dict[str, str]) -> Iterator[None]:
    before = {
        name: connection.execute(sa.text("SELECT current_setting(:name)"), {"name": name}).scalar_one()
        for name in values
    }
    _set(connection, values)
    try:
        yield
    finally:
        _at_last(connection, partial(_set, connection, before))


def _set(connection: sa.Connection, values: dict[str, str]) -> None:
    for name, value in values.items():
        connection.execute(sa.text("SELECT set_config(:name, :value, false)"), {"name": name, "value": value})
    connection.commit()
