"""Connections to the one database: parsed, pinned, checked and pooled in one place.

A connection that comes out of here speaks to a writable PostgreSQL 15 or newer at READ COMMITTED; whatever
is in the way of that is one of our errors, also from SQLAlchemy's engine.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from queue_workflows.config import DsnChoice, effective_settings, resolve_dsn
from queue_workflows.db.connections.asking_connection import AskingConnection
from queue_workflows.db.connections.dsn import parse_dsn, redact_dsn
from queue_workflows.db.connections.failures import PROXY_ADVICE, classify_failure
from queue_workflows.db.connections.pins import Timeouts, application_name
from queue_workflows.db.connections.proxies import Proxy
from queue_workflows.db.connections.route import POLL_ONLY, Route, connect
from queue_workflows.errors import ConfigurationError, DatabaseUnreachable, SessionsNotKept
from queue_workflows.settings import Settings

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from queue_workflows.db.embedded.server import EmbeddedServer

__all__ = ["Database", "acquire_embedded", "classify_failure", "connect", "parse_dsn", "redact_dsn"]

_PAST_PROXY = "no lost session is ended; LISTEN and migrations go to QWF_DIRECT_DB_URL"


class Database:
    """The configured database, or the embedded server for as long as this is open; connects on first use."""

    def __init__(
        self,
        choice: DsnChoice,
        *,
        role: str,
        settings: Settings,
        pool_size: int = 5,
        embedded: EmbeddedServer | None = None,
    ) -> None:
        self.dsn = choice.dsn if choice.dsn is not None else _needed(embedded).dsn()
        self.direct_dsn = choice.direct_dsn
        self.source = choice.source
        self.redacted = redact_dsn(self.dsn)
        self.role = role
        self.forgoes_sessions = not settings.listen
        self.params = _parsed(self.dsn, self.source)
        direct_params = _parsed(self.direct_dsn, choice.direct_source) if self.direct_dsn else None
        pinned: dict[str, Any] = {
            "name": application_name(role, settings.host_label),
            "timeouts": Timeouts.from_settings(settings),
        }
        self._direct = Route(direct_params, **pinned) if direct_params else None
        self._route = Route(
            self.params,
            forgoes=self.forgoes_sessions,
            follows=_PAST_PROXY if self._direct else POLL_ONLY,
            **pinned,
        )
        # Where an embedded server keeps its data, which need not be below the configured directory.
        self.data_dir = embedded.data_dir if embedded else None
        self._embedded = embedded
        self._opened_in = os.getpid()
        self._pool_size = pool_size

    @classmethod
    def open(
        cls,
        dsn: str | None = None,
        *,
        role: str,
        settings: Settings | None = None,
        pool_size: int = 5,
        creates: bool = True,
        lingers: bool = True,
    ) -> Self:
        """Open what argument, `configure()`, environment or file name, else the embedded server.

        `creates=False` is for callers that only look: it makes no embedded server where there is none yet.
        `lingers=False` is for those that leave none behind, as far as nobody else uses it.
        """
        settings = settings or effective_settings()
        choice = resolve_dsn(dsn)
        if choice.dsn is not None:
            return cls(choice, role=role, settings=settings, pool_size=pool_size)
        server = acquire_embedded(settings, creates=creates, lingers=lingers)
        try:
            return cls(choice, role=role, settings=settings, pool_size=pool_size, embedded=server)
        except BaseException:
            server.release()
            raise

    @cached_property
    def engine(self) -> Engine:
        """A pool of these connections for callers that use SQLAlchemy, which is loaded for them alone."""
        from queue_workflows.db.connections.pool import new_engine

        return new_engine(self.connect, self._pool_size)

    @property
    def can_listen(self) -> bool:
        """Whether LISTEN may be tried: on a connection of our own, or on the direct one past a proxy."""
        return not self.forgoes_sessions or self._direct is not None

    @property
    def between(self) -> Proxy:
        """What the last connection, not the direct one, was found to go through."""
        return self._route.between

    def connect(
        self, *, autocommit: bool = False, direct: bool = False, hot: bool = False
    ) -> AskingConnection:
        """A connection outside the pool, the caller's to close; `direct` goes past a proxy.

        `hot` is for a worker's claims and ends: the planner plans each prepared statement once, by index.
        """
        route = self._direct if direct and self._direct is not None else self._route
        try:
            return route.connect(autocommit=autocommit, hot=hot)
        except DatabaseUnreachable:
            if self._embedded is None or os.getpid() != self._opened_in:
                raise
            # On demand also means: again after a crash.
            self._embedded.ensure_running()
            return route.connect(autocommit=autocommit, hot=hot)

    def options(self) -> dict[str, Any]:
        """What an asynchronous connection is opened with; what can be checked has been, on one of these."""
        self.connect().close()
        return self._route.options()

    def connect_session(
        self, *, autocommit: bool = False, though_forgone: bool = False, hot: bool = False
    ) -> AskingConnection:
        """A connection that keeps a server session of its own, past a proxy that keeps none.

        With `though_forgone` only what is found counts, and not that QWF_LISTEN is off.
        """
        if not (self.can_listen or though_forgone):
            raise SessionsNotKept("QWF_LISTEN is off", advice=PROXY_ADVICE)
        connection = self.connect(autocommit=autocommit, direct=True, hot=hot)
        if not connection.between.keeps_sessions:
            connection.close()
            raise SessionsNotKept(connection.between.describe(), advice=PROXY_ADVICE)
        return connection

    def close(self) -> None:
        """Close the pool and let go of the embedded server; a forked child closes nothing of its parent's."""
        ours = os.getpid() == self._opened_in
        if "engine" in self.__dict__:
            self.engine.dispose(close=ours)
        server, self._embedded = self._embedded, None
        if server is not None and ours:
            server.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Database {self.redacted} ({self.source})>"


def acquire_embedded(settings: Settings, *, creates: bool = True, lingers: bool = True) -> EmbeddedServer:
    """The embedded server of these settings, for as long as it is held; its code is loaded for that alone.

    Without `lingers` it is stopped at once where we are its last user.
    """
    from queue_workflows.db.embedded.server import EmbeddedServer

    return EmbeddedServer.acquire(
        settings.data_dir,
        bindir=settings.pg_bindir,
        run_as=settings.embedded_user,
        creates=creates,
        linger_s=settings.embedded_linger_s if lingers else 0.0,
    )


def stop_embedded(settings: Settings) -> bool:
    """Stop the embedded server of these settings where nobody uses it; whether one ran."""
    from queue_workflows.db.embedded.server import EmbeddedServer

    return EmbeddedServer.stop(settings.data_dir, run_as=settings.embedded_user)


def _parsed(dsn: str, source: str) -> dict[str, str]:
    try:
        return parse_dsn(dsn)
    except ConfigurationError as error:
        raise ConfigurationError(f"{error.message} (from {source})", advice=error.advice) from None


def _needed(server: EmbeddedServer | None) -> EmbeddedServer:
    if server is None:
        raise ValueError("no DSN is configured, and no embedded server was given")
    return server
