"""Databases for the migration tests; what may depend on the version runs on both ends of the range."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count

import psycopg
import pytest
from support.rows.schemas import ROLE_PASSWORD, catalog
from support.servers.postgres_versions import bindir_of

from queue_workflows.config import reset_config
from queue_workflows.testing.plugin import qwf_run
from queue_workflows.testing.servers import QwfServer, open_embedded

NUMBERS = count(1)
AT_HEAD: dict[str, dict[tuple[str, str], str]] = {}


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    """No test sees the wiring of another."""
    reset_config()
    yield
    reset_config()


class Started(dict[str, QwfServer]):
    """The servers by version, each opened when it is asked for; the run's own serves for its version."""

    def __init__(self, config: pytest.Config, chosen: QwfServer, stack: ExitStack) -> None:
        super().__init__({str(chosen.major): chosen})
        self._config, self._stack = config, stack

    def __missing__(self, version: str) -> QwfServer:
        opening = open_embedded(bindir_of(version), qwf_run(self._config), f"pg{version}")
        self[version] = self._stack.enter_context(opening)
        return self[version]


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest, qwf_server: QwfServer) -> Iterator[Started]:
    """The run's server, and those of other versions beside it."""
    with ExitStack() as stack:
        yield Started(request.config, qwf_server, stack)


@pytest.fixture
def server(request: pytest.FixtureRequest, qwf_server: QwfServer, servers: Started) -> QwfServer:
    """The run's server, or one of the version that `each_version` says."""
    version = getattr(request, "param", None)
    return qwf_server if version is None else servers[version]


@pytest.fixture
def empty(server: QwfServer) -> Iterator[str]:
    """The DSN of an empty database."""
    with server.database(template=False) as dsn:
        yield dsn


@pytest.fixture
def at_head(server: QwfServer) -> dict[tuple[str, str], str]:
    """What a database of this server holds whose engine chain has been brought to head at once."""
    if server.version not in AT_HEAD:
        with server.database() as dsn:
            AT_HEAD[server.version] = catalog(dsn)
    return AT_HEAD[server.version]


@pytest.fixture
def second(server: QwfServer) -> Iterator[str]:
    """Another empty one, to compare with."""
    with server.database(template=False) as dsn:
        yield dsn


@pytest.fixture
def migrated(server: QwfServer) -> Iterator[str]:
    """The DSN of a database whose engine chain is at head."""
    with server.database() as dsn:
        yield dsn


@pytest.fixture
def limited_role(server: QwfServer) -> str:
    """The name of a role that may log in and nothing else; the run drops it with its databases."""
    name = f"limited{next(NUMBERS)}_{server.databases.role_suffix}"
    with psycopg.connect(server.dsn("postgres")) as admin:
        try:
            admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD '{ROLE_PASSWORD}'")
        except psycopg.errors.InsufficientPrivilege:
            pytest.skip("the tests' role may not create roles")
    return name
