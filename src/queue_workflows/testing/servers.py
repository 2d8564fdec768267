"""The server that a test run uses, opened by each of its processes that needs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from queue_workflows.db.connections.dsn import as_url, parse_dsn
from queue_workflows.db.connections.engine import classify_failure, redact_dsn
from queue_workflows.db.embedded.binaries import OLDEST_MAJOR
from queue_workflows.db.embedded.server import EmbeddedServer
from queue_workflows.errors import ConfigurationError, DatabaseUnreachable, UnsupportedServer
from queue_workflows.testing.choice import HOW_TO_GET_ONE, Choice
from queue_workflows.testing.containers import shared_container
from queue_workflows.testing.databases import Databases
from queue_workflows.testing.runs import Run

# Tests lose nothing with the machine; many processes of a run share the server.
TEST_SETTINGS = {"fsync": "off", "full_page_writes": "off", "max_connections": "300"}
_USED = "named-server-used"


@dataclass(frozen=True)
class QwfServer:
    """A server for tests. `database()` gives a fresh database, the rest of `databases` is the plugin's."""

    label: str
    version: str
    params: dict[str, str] = field(repr=False)
    databases: Databases = field(repr=False)

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])

    def dsn(self, dbname: str) -> str:
        """Where a database of this server is."""
        return _dsn(self.params, dbname)

    def database(self, template: bool = True) -> AbstractContextManager[str]:
        """A context manager: the DSN of a new database, migrated or else empty, dropped at its end."""
        return self.databases.database(template)


@contextmanager
def open_server(choice: Choice, run: Run) -> Iterator[QwfServer]:
    """Use the chosen server; starts it if this is the run's first process to do so."""
    if choice.kind == "url":
        params = parse_dsn(choice.detail)
        with _opened(params, _stem(params), choice.source, run) as server:
            (run.directory / _USED).touch()
            yield server
    elif choice.kind == "container":
        with (
            shared_container(run.directory, choice.detail, choice.source) as dsn,
            _opened(parse_dsn(dsn), "qwf", f"container {choice.detail}", run) as server,
        ):
            yield server
    elif choice.kind == "embedded":
        with open_embedded(Path(choice.detail) if choice.detail else None, run, "pg") as server:
            yield server
    else:
        raise DatabaseUnreachable(
            f"there is no Postgres for the tests: {'; '.join(choice.passed_over)}", advice=HOW_TO_GET_ONE
        )


def drop_run(choice: Choice, run: Run) -> None:
    """At the end of a run, drop what it has on a named server: the template, and what killed workers left."""
    if choice.kind == "url" and (run.directory / _USED).exists():
        params = parse_dsn(choice.detail)
        with _opened(params, _stem(params), choice.source, run) as server:
            server.databases.drop_run(run.id)


def describe_named(choice: Choice) -> str:
    """Where on a named server the run's databases will be."""
    params = parse_dsn(choice.detail)
    where = redact_dsn(_dsn(params, f"{_stem(params)}_*_test"))
    return f"PostgreSQL from {choice.source}, databases {where}"


@contextmanager
def open_embedded(bindir: Path | None, run: Run, name: str) -> Iterator[QwfServer]:
    """Use the run's embedded server of these binaries; `name`, which starts with pg, tells several apart."""
    data_dir = run.directory / name
    with (
        EmbeddedServer.acquire(data_dir, bindir=bindir, server_settings=TEST_SETTINGS) as embedded,
        _opened(parse_dsn(embedded.dsn()), "qwf", "embedded", run, copies_files=run.is_in_memory) as server,
    ):
        yield server


@contextmanager
def _opened(
    params: dict[str, str], stem: str, label: str, run: Run, *, copies_files: bool = False
) -> Iterator[QwfServer]:
    with _maintenance(params) as admin:
        version = _checked_version(admin)
        databases = Databases(
            admin,
            lambda name: _dsn(params, name),
            stem=stem,
            run_id=run.id,
            worker=run.worker,
            copies_files=copies_files,
        )
        databases.sweep()
        try:
            yield QwfServer(label, version, params, databases)
        finally:
            databases.drop_roles()


def _maintenance(params: dict[str, str]) -> psycopg.Connection[tuple[object, ...]]:
    """Connect to `postgres`, so that the named database is not even connected to."""
    try:
        return psycopg.connect(_dsn(params, "postgres"), autocommit=True, connect_timeout=10)
    except psycopg.Error as error:
        raise classify_failure(error, params) from None


def _checked_version(admin: psycopg.Connection[tuple[object, ...]]) -> str:
    version = (admin.info.parameter_status("server_version") or "0").split()[0]
    if admin.info.server_version < OLDEST_MAJOR * 10_000:
        raise UnsupportedServer(
            f"the tests' server is PostgreSQL {version}", advice=f"use PostgreSQL {OLDEST_MAJOR} or newer"
        )
    allowed = admin.execute(
        "SELECT rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user"
    ).fetchone()
    if allowed != (True,):
        raise ConfigurationError(
            f"the tests' role {admin.info.user} may not create databases, and each test file gets its own",
            advice=f"ALTER ROLE {admin.info.user} CREATEDB, or name another with QWF_TEST_DB_URL",
        )
    return version


def _dsn(params: dict[str, str], dbname: str) -> str:
    return as_url({**params, "dbname": dbname})


def _stem(params: dict[str, str]) -> str:
    """What the test databases' names on a named server begin with: the database that was named."""
    return (params.get("dbname") or params.get("user") or "qwf").removesuffix("_test")
