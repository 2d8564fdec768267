"""Whether a pooling proxy stands between us and the server, and which kind.

What identifies a proxy is a backend that is not ours alone. Its process id as told at start-up differs from
what the server itself says when the proxy invented the first. And two connections that are both open and
meet the same backend, or one that meets two, share backends from transaction to transaction: LISTEN,
advisory locks and session settings do not hold there.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import psycopg

from queue_workflows.db.wire import Note, Wire, WireLost

ANSWER_WITHIN_S: Final = 5.0
BACKEND: Final = "SELECT pg_backend_pid()"
BEGIN: Final = "BEGIN"
ROLLBACK: Final = "ROLLBACK"
NOTIFY: Final = "SELECT pg_notify($1, $2)"

# Hosted poolers say who they are by their host names; PgBouncer usually by its port.
_HOSTED = (
    (r"\.pooler\.supabase\.com$", "Supavisor"),
    (r"-pooler\..*\.neon\.tech$", "Neon's PgBouncer"),
    (r"\.proxy-[^.]+\.[^.]+\.rds\.amazonaws\.com$", "RDS Proxy"),
)
_PGBOUNCER_PORT = "6432"

Pooling = Literal["none", "session", "transaction"]


@dataclass(frozen=True)
class Proxy:
    """What stands in between, and by what it was recognised."""

    pooling: Pooling
    product: str = ""
    sign: str = ""


class Asks(Protocol):
    """A connection that is asked one statement at a time, outside a transaction unless one was begun."""

    def ask(self, statement: str, *parameters: str) -> tuple[Any, ...]:
        """The first row of the answer."""
        ...


class AnyDriver:
    """What `Wire` is for psycopg, for the connections of other drivers; its answers come without a bound."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._begun = False

    def ask(self, statement: str, *_parameters: str) -> tuple[Any, ...]:
        self._begun = statement == BEGIN or (self._begun and statement != ROLLBACK)
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(statement)
            row = tuple(cursor.fetchone()) if cursor.description else ()
        if not self._begun:
            # The driver began a transaction by itself, which would keep the backend.
            self._connection.rollback()
        return row


def asker(connection: Any) -> Asks:
    """Any driver's connection as one to ask; psycopg's is not disturbed in what it believes of itself."""
    if isinstance(connection, psycopg.Connection):
        return Wire(connection, answer_within_s=ANSWER_WITHIN_S)
    return AnyDriver(connection)


def shares_backend(connection: Any, another: Any) -> str:
    """How it shows that two connections share backends; looks thrice, for a busy proxy may part them once."""
    first, second = asker(connection), asker(another)
    return next(filter(None, (_sharing(first, second) for _ in range(3))), "")


def find_proxy(
    params: Mapping[str, str],
    connection: psycopg.Connection[Any],
    open_another: Callable[[], psycopg.Connection[Any]],
) -> Proxy:
    """Look from two autocommit connections at once."""
    first = Wire(connection, answer_within_s=ANSWER_WITHIN_S)
    with closing(open_another()) as another:
        sign = _sharing(first, Wire(another, answer_within_s=ANSWER_WITHIN_S))
    if sign:
        return Proxy("transaction", _product(params), sign)
    if is_announced(first, connection):
        return Proxy("none")
    return Proxy("session", _product(params), "the backend is not the one announced at start-up")


def is_announced(asks: Asks, connection: Any) -> bool:
    """Whether the backend is the one that the start-up message named; a proxy names one of its own making."""
    announced = getattr(getattr(connection, "info", None), "backend_pid", None)
    return [str(pid) for pid in asks.ask(BACKEND)] == [str(announced)]


def notify_round_trip(
    listening: psycopg.Connection[Any],
    notifying: psycopg.Connection[Any],
    *,
    within_s: float = ANSWER_WITHIN_S,
) -> bool:
    """Whether what the second connection notifies reaches the first."""
    note = Note(f"qwf_doctor_{uuid.uuid4().hex}", "ping")
    ear, mouth = (Wire(one, answer_within_s=within_s) for one in (listening, notifying))
    try:
        ear.listen(note.channel)
        mouth.ask(NOTIFY, *note)
        return ear.expect(note)
    except WireLost:
        return False


def _sharing(first: Asks, second: Asks) -> str:
    """How it shows that backends are shared, or nothing; an open transaction keeps one busy."""
    before = first.ask(BACKEND)
    second.ask(BEGIN)
    held = second.ask(BACKEND)
    sign = ""
    if held == before:
        sign = f"two open connections met the same backend {held[0]}"
    elif (after := first.ask(BACKEND)) != before:
        sign = f"one connection met the backends {before[0]} and {after[0]}"
    second.ask(ROLLBACK)
    return sign


def _product(params: Mapping[str, str]) -> str:
    host = params.get("host", "")
    for pattern, name in _HOSTED:
        if re.search(pattern, host):
            return name
    return "PgBouncer, by its port" if params.get("port") == _PGBOUNCER_PORT else "PgBouncer or the like"
