"""The pytest plugin `queue_workflows`: fixtures for tests against a real, migrated Postgres.

It is loaded in every pytest run of a host app, so it imports nothing of weight until a fixture is used. The
server is chosen as `testing.choice` says, started when the first test wants it, and shared by all xdist
workers.

    qwf_server        session   the server; `qwf_server.database()` for fixtures of another scope
    qwf_template      session   the name of the migrated template database
    qwf_dsn           module    the DSN of the test file's own clone of it
    qwf_engine        module    a SQLAlchemy engine on that
    qwf_session       function  a SQLAlchemy Session on that
    qwf_conn          function  a psycopg connection to that
    qwf_jobs          function  the helpers of `queue_workflows.testing` on that, emptied before the test
    qwf_async_jobs    function  the same helpers for async tests
    qwf_configured    function  that clone is the configured database, for code that brings no connection
    qwf_new_database  function  `qwf_new_database(template=True)` makes another, `False` an empty one
    qwf_role_suffix   session   ends the names of the roles that tests make, which are dropped with the run
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import psycopg
    from sqlalchemy import Engine
    from sqlalchemy.orm import Session

    from queue_workflows.db.connections.engine import Database
    from queue_workflows.testing.choice import Choice
    from queue_workflows.testing.runs import Run
    from queue_workflows.testing.servers import QwfServer
    from queue_workflows.testing.tester import AsyncJobTester, JobTester

_RUN: pytest.StashKey[tuple[Run, AbstractContextManager[Run] | None]] = pytest.StashKey()
_CHOICE: pytest.StashKey[Choice] = pytest.StashKey()


def _choice(config: pytest.Config) -> Choice:
    """Chosen once for all processes of a run, so that they cannot differ."""
    from queue_workflows.testing.choice import Choice, choose

    if _CHOICE not in config.stash:
        given = getattr(config, "workerinput", {}).get("qwf_choice")
        config.stash[_CHOICE] = Choice(**given) if given else choose(os.environ)
    return config.stash[_CHOICE]


def qwf_run(config: pytest.Config) -> Run:
    """The run that this process belongs to; for fixtures that open servers beside the chosen one."""
    from queue_workflows.testing.runs import Run, new_run

    if _RUN not in config.stash:
        given = getattr(config, "workerinput", {}).get("qwf_run")
        if given:
            worker = config.workerinput["workerid"]  # type: ignore[attr-defined]
            config.stash[_RUN] = (Run(given["id"], Path(given["directory"]), worker), None)
        else:
            manager = new_run(in_memory=True)
            config.stash[_RUN] = (manager.__enter__(), manager)
    return config.stash[_RUN][0]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell an xdist worker which server and which run it shares."""
    from dataclasses import asdict

    run = qwf_run(node.config)
    node.workerinput["qwf_run"] = {"id": run.id, "directory": str(run.directory)}
    node.workerinput["qwf_choice"] = asdict(_choice(node.config))


@pytest.hookimpl(trylast=True)
def pytest_report_header(config: pytest.Config) -> str:
    """Which Postgres the tests use; last among the plugins is first on the screen."""
    from queue_workflows.errors import QwfError
    from queue_workflows.testing.header import describe

    try:
        return f"queue_workflows: {describe(_choice(config))}"
    except QwfError as error:
        return f"queue_workflows: {error}"


def pytest_unconfigure(config: pytest.Config) -> None:
    """The run's first process removes what its workers shared."""
    run, manager = config.stash.get(_RUN, (None, None))
    if run is None or manager is None:
        return
    from queue_workflows.errors import QwfError
    from queue_workflows.testing.servers import drop_run

    del config.stash[_RUN]
    try:
        drop_run(_choice(config), run)
    except QwfError as error:
        print(f"queue_workflows: the next run drops this one's databases: {error}", file=sys.stderr)
    finally:
        manager.__exit__(None, None, None)


@pytest.fixture(scope="session")
def qwf_server(request: pytest.FixtureRequest) -> Iterator[QwfServer]:
    """The server that the run's databases are on."""
    from queue_workflows.errors import QwfError
    from queue_workflows.testing.servers import open_server

    with ExitStack() as stack:
        try:
            server = stack.enter_context(open_server(_choice(request.config), qwf_run(request.config)))
        except QwfError as error:
            pytest.fail(f"no Postgres for this test: {error}", pytrace=False)
        yield server


@pytest.fixture(scope="session")
def qwf_template(qwf_server: QwfServer) -> str:
    """The name of the migrated database that is cloned; it takes no connections itself."""
    return qwf_server.databases.template()


@pytest.fixture(scope="session")
def qwf_role_suffix(qwf_server: QwfServer) -> str:
    """Roles belong to the server: name them `something_{qwf_role_suffix}` and no other worker meets them."""
    return qwf_server.databases.role_suffix


@pytest.fixture
def qwf_new_database(qwf_server: QwfServer) -> Iterator[Callable[..., str]]:
    """Make databases beside the test file's own; they are dropped after the test."""
    with ExitStack() as stack:

        def new_database(template: bool = True) -> str:
            return stack.enter_context(qwf_server.database(template))

        yield new_database


@pytest.fixture(scope="module")
def qwf_dsn(qwf_server: QwfServer) -> Iterator[str]:
    """The DSN of this test file's own migrated database."""
    with qwf_server.database() as dsn:
        yield dsn


@pytest.fixture(scope="module")
def _qwf_database(qwf_dsn: str) -> Iterator[Database]:
    from queue_workflows.db.connections.engine import Database

    with Database.open(qwf_dsn, role="test") as database:
        yield database


@pytest.fixture(scope="module")
def qwf_engine(_qwf_database: Database) -> Engine:
    """An engine pinned as the package's own connections are."""
    return _qwf_database.engine


@pytest.fixture
def qwf_session(qwf_engine: Engine) -> Iterator[Session]:
    """A Session; what the test does not commit is rolled back."""
    from sqlalchemy.orm import Session

    with Session(qwf_engine) as session:
        yield session


@pytest.fixture
def qwf_conn(_qwf_database: Database) -> Generator[psycopg.Connection[Any]]:
    """A psycopg connection, in no transaction; what the test does not commit is rolled back."""
    connection = _qwf_database.connect()
    try:
        yield connection
    finally:
        connection.close()


@pytest.fixture
def qwf_jobs(_qwf_database: Database) -> Iterator[JobTester]:
    """Asserts what is enqueued and runs it here; the file's database has no jobs and no runs at first."""
    from queue_workflows.testing.tester import job_tester

    with job_tester(_qwf_database) as tester:
        yield tester


@pytest.fixture
def qwf_async_jobs(qwf_jobs: JobTester) -> AsyncJobTester:
    """`qwf_jobs` for async tests: each of its methods is awaited."""
    from queue_workflows.testing.tester import AsyncJobTester

    return AsyncJobTester(qwf_jobs)


@pytest.fixture
def qwf_configured(qwf_dsn: str) -> Iterator[str]:
    """The test file's own database is the configured one: what brings no connection is there too."""
    from queue_workflows.testing.databases import configured_database

    with configured_database(qwf_dsn):
        yield qwf_dsn
