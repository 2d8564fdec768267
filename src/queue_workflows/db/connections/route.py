"""The way to the server: how its connections are made, and what each of them was found to go through.

Every new connection is looked at, because a pooling proxy may be put in between, taken away or told another
mode while a process runs. What was found decides what the connection may use:

    found          startup options, LISTEN, session locks,    ended by another session
                   prepared statements                        when its client has lost it
    ------------------------------------------------------------------------------------
    nothing        yes                                        yes
    session        yes, options only where the proxy          no
                   takes them
    transaction    no                                         no
    statement      refused: nothing here works without transactions

A proxy that is believed to keep sessions and does not shows it when a prepared statement is unknown to the
server, or known to it already. Such a sign is kept until a connection meets the server itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg

from queue_workflows.db.connections.asking_connection import AskingConnection
from queue_workflows.db.connections.bounded_wire import WireLost
from queue_workflows.db.connections.dsn import place_of
from queue_workflows.db.connections.failures import (
    OLDEST_MAJOR,
    STATEMENT_POOLING_ADVICE,
    classify_failure,
    unusable,
)
from queue_workflows.db.connections.pins import Timeouts, pin
from queue_workflows.db.connections.proxies import Proxy, find_proxy
from queue_workflows.errors import ConfigurationError, OptionsRefused, QwfError, UnsupportedServer

_log = logging.getLogger(__name__)

# How often a connection is opened anew because it met something else than the one before.
_REOPENED: Final = 2
POLL_ONLY: Final = (
    "poll-only from now on, and no lost session is ended; with QWF_DIRECT_DB_URL set to the server itself"
    " LISTEN works"
)


@dataclass(frozen=True)
class Form:
    """What a connection is opened with: our session settings as startup options, and prepared statements."""

    options: bool = True
    prepares: bool = True


class Route:
    """One DSN's way to the server; `connect` may be called from any thread.

    `forgoes` says that the user wants nothing of a session to be used, whatever is found. What a proxy that
    keeps no sessions leads to is said in `follows`, for the log.
    """

    def __init__(
        self,
        params: Mapping[str, str],
        *,
        name: str,
        timeouts: Timeouts,
        forgoes: bool = False,
        follows: str = POLL_ONLY,
    ) -> None:
        self.params = params
        self._name = name
        self._timeouts = timeouts
        self._forgoes = forgoes
        self._follows = follows
        self._guard = threading.Lock()
        self._between = Proxy()
        self._takes_options = True
        self._doubt: str | None = None

    @property
    def between(self) -> Proxy:
        """What the last connection was found to go through; nothing before the first."""
        return self._between

    @property
    def form(self) -> Form:
        """How the next connection is opened."""
        with self._guard:
            keeps = self._between.keeps_sessions and not self._forgoes
            return Form(options=keeps and self._takes_options, prepares=keeps)

    def options(self) -> dict[str, Any]:
        """What psycopg is given for a connection in the form that suits what was found last."""
        form = self.form
        pinned = pin(self.params, name=self._name, timeouts=self._timeouts, options=form.options)
        return {**pinned, "prepare_threshold": 5 if form.prepares else None}

    def connect(self, *, autocommit: bool = False, hot: bool = False) -> AskingConnection:
        """A pinned and checked connection of the form that suits what it goes through, or one of our errors.

        One that met something else than the one before is opened again, in the form for that.
        """
        connection, form = self._looked_at(autocommit=autocommit, hot=hot)
        for _ in range(_REOPENED):
            if form == self.form:
                break
            connection.close()
            connection, form = self._looked_at(autocommit=autocommit, hot=hot)
        return connection

    def _looked_at(self, *, autocommit: bool, hot: bool) -> tuple[AskingConnection, Form]:
        form = self.form
        try:
            connection = self._open(form, autocommit=autocommit, hot=hot)
        except OptionsRefused:
            if not form.options:
                raise
            with self._guard:
                self._takes_options = False
            form = replace(form, options=False)
            connection = self._open(form, autocommit=autocommit, hot=hot)
        try:
            connection.between = self._find(connection)
        except BaseException:
            connection.close()
            raise
        connection.on_doubt = self._doubted
        return connection, form

    def _open(self, form: Form, *, autocommit: bool = False, hot: bool = False) -> AskingConnection:
        return connect(
            self.params,
            name=self._name,
            timeouts=self._timeouts,
            form=form,
            autocommit=autocommit,
            hot=hot,
        )

    def _find(self, connection: AskingConnection) -> Proxy:
        plain = Form(options=False, prepares=False)
        try:
            found = find_proxy(
                self.params,
                connection,
                lambda: self._open(plain, autocommit=True),
                within_s=self._timeouts.connect_s,
            )
        except WireLost as lost:
            raise classify_failure(psycopg.OperationalError(str(lost)), self.params) from None
        except psycopg.Error as exc:
            raise classify_failure(exc, self.params) from None
        if found.pooling == "statement":
            raise UnsupportedServer(
                f"{place_of(self.params)}: {found.describe()}", advice=STATEMENT_POOLING_ADVICE
            )
        with self._guard:
            if found.is_absent:
                self._doubt, self._takes_options = None, True
            elif self._doubt is not None and found.keeps_sessions:
                found = replace(found, pooling="transaction", sign=self._doubt)
        self._note(found)
        return found

    def _doubted(self, said: str) -> None:
        """What seemed to keep sessions does not; believed until a connection meets the server itself."""
        with self._guard:
            self._doubt = f"the server did not keep what was prepared: {said}"
            found = replace(self._between, pooling="transaction", sign=self._doubt)
        self._note(found)

    def _note(self, found: Proxy) -> None:
        """Said once for each change, not for each connection."""
        with self._guard:
            before, self._between = self._between, found
        if found.pooling == before.pooling or self._forgoes:
            return
        follows = "no lost session is ended" if found.keeps_sessions else self._follows
        _log.info(
            "%s: %s%s", place_of(self.params), found.describe(), "" if found.is_absent else f"; {follows}"
        )


def connect(
    params: Mapping[str, str],
    *,
    name: str,
    timeouts: Timeouts,
    form: Form = Form(),
    autocommit: bool = False,
    hot: bool = False,
) -> AskingConnection:
    """One pinned and checked connection, or one of our errors."""
    pinned: dict[str, Any] = dict(pin(params, name=name, timeouts=timeouts, options=form.options, hot=hot))
    try:
        connection = AskingConnection.connect(
            autocommit=autocommit, prepare_threshold=5 if form.prepares else None, **pinned
        )
    except psycopg.ProgrammingError as exc:
        raise unusable(exc, params) from None
    except (psycopg.Error, OSError) as exc:
        # From None: the driver's text may quote what the DSN says.
        raise classify_failure(exc, params) from None
    try:
        _refuse_unsupported(connection)
        _have_readable_times(connection, params, may_set=form.prepares)
    except psycopg.Error as exc:
        connection.close()
        raise classify_failure(exc, params) from None
    except QwfError:
        connection.close()
        raise
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    return connection


def _refuse_unsupported(connection: psycopg.Connection[Any]) -> None:
    """Old servers, and databases that only speak the protocol: their locks are not Postgres's."""
    info = connection.info
    says = info.parameter_status("server_version") or "no version"
    if info.parameter_status("crdb_version"):
        raise UnsupportedServer(
            f"{info.host}: this is CockroachDB", advice=f"use PostgreSQL {OLDEST_MAJOR} or newer"
        )
    if info.server_version < OLDEST_MAJOR * 10_000:
        raise UnsupportedServer(
            f"{info.host}: the server says version {says}", advice=f"use PostgreSQL {OLDEST_MAJOR} or newer"
        )


def _have_readable_times(connection: AskingConnection, params: Mapping[str, str], *, may_set: bool) -> None:
    """The driver reads times in one style alone, so this pin wins over whatever the user's variables say.

    Behind a pooling proxy it would be set for others too, and not for our own next transaction.
    """
    style = connection.info.parameter_status("DateStyle") or "ISO"
    if style.startswith("ISO"):
        return
    if not may_set:
        raise ConfigurationError(
            f"cannot use {place_of(params)}: its sessions write times in the style {style!r}, and behind a "
            "pooling proxy nothing of a session can be set",
            advice="ALTER ROLE … SET datestyle TO 'ISO' for the role that connects, or PGDATESTYLE=ISO where "
            "the proxy takes that, as PgBouncer does",
        )
    connection.execute("SET datestyle TO ISO")
    if not connection.autocommit:
        connection.commit()
