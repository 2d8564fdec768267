"""Whether a pooling proxy stands between us and the server, and which kind.

What identifies a proxy is a backend that is not ours alone. Its process id as told at start-up differs from
what the server itself says when the proxy invented the first. And two connections that are both open and
meet the same backend, or one that meets two, share backends from transaction to transaction: LISTEN,
advisory locks and session settings do not hold there.

No look waits for one backend while it holds another: where all backends of a small pool are taken, several
that look at once would wait for each other.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

import psycopg
from psycopg.pq import TransactionStatus

from queue_workflows.db.connections.bounded_wire import Note, Wire, WireLost
from queue_workflows.errors import QwfError

ANSWER_WITHIN_S: Final = 5.0
BACKEND: Final = "SELECT pg_backend_pid()"
BEGIN: Final = "BEGIN"
ROLLBACK: Final = "ROLLBACK"
NOTIFY: Final = "SELECT pg_notify($1, $2)"

# Hosted poolers are known by their host names; PgBouncer usually by its port.
_HOSTED = (
    (r"\.pooler\.supabase\.com$", "Supavisor"),
    (r"-pooler\..*\.neon\.tech$", "Neon's PgBouncer"),
    (r"\.proxy-[^.]+\.[^.]+\.rds\.amazonaws\.com$", "RDS Proxy"),
)
_PGBOUNCER_PORT = "6432"

# How often each of two connections asks for its backend before they are taken to have one each.
ROUNDS: Final = 6
# What PgBouncer says where a statement is all that a backend is lent for.
_ONE_STATEMENT: Final = "statement pooling"

Pooling = Literal["none", "session", "transaction", "statement"]


@dataclass(frozen=True)
class Proxy:
    """What stands in between, and by what it was recognised."""

    pooling: Pooling = "none"
    product: str = ""
    sign: str = ""

    @property
    def is_absent(self) -> bool:
        """Whether a session of the server is its client's alone, from its beginning to its end."""
        return self.pooling == "none"

    @property
    def keeps_sessions(self) -> bool:
        """Whether LISTEN, advisory locks of a session, its settings and prepared statements hold."""
        return self.pooling in {"none", "session"}

    def describe(self) -> str:
        """What it is, for a person."""
        if self.is_absent:
            return "no pooling proxy in between"
        return f"{_KINDS[self.pooling]} ({self.product}): {self.sign}"


_KINDS: Final[Mapping[Pooling, str]] = {
    "session": "a proxy that pools whole sessions",
    "transaction": "a transaction-pooling proxy",
    "statement": "a proxy that pools single statements",
}


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
    """How it shows that two connections share backends, or nothing."""
    return _sharing(asker(connection), asker(another))


def find_proxy(
    params: Mapping[str, str],
    connection: psycopg.Connection[Any],
    open_another: Callable[[], psycopg.Connection[Any]],
    *,
    within_s: float = ANSWER_WITHIN_S,
) -> Proxy:
    """Look from a connection, and where that is not on the announced backend from another one as well.

    Where only the second look fails nothing is known but that there is a proxy, and the stricter kind is
    assumed.
    """
    first = Wire(connection, answer_within_s=within_s)
    if is_announced(first, connection):
        return Proxy()
    product = _product(params)
    try:
        with closing(open_another()) as another:
            second = Wire(another, answer_within_s=within_s)
            sign = _sharing(first, second)
            if _takes_no_transaction(second):
                return Proxy("statement", product, "it refuses BEGIN")
    except (psycopg.Error, QwfError) as exc:
        # Where the first look's connection is gone too, the proxy has just ended, and was not looked at.
        first.ask(BACKEND)
        return Proxy("transaction", product, f"a second connection did not show its kind: {_one_line(exc)}")
    except WireLost as exc:
        if connection.pgconn.transaction_status != TransactionStatus.IDLE:
            raise  # it is still at the question
        first.ask(BACKEND)
        sign = f"a second connection did not show its kind: {_one_line(exc)}"
    if sign:
        return Proxy("transaction", product, sign)
    return Proxy("session", product, "the backend is not the one announced at start-up")


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
    """How it shows that backends are shared, or nothing.

    Each asks twice in a row, so that a proxy that hands out two backends in turn does not seem to keep them.
    """
    met: dict[Asks, Any] = {}
    for asks in (first, *(second, second, first, first) * ROUNDS):
        (backend,) = asks.ask(BACKEND)
        if met.setdefault(asks, backend) != backend:
            return f"one connection met the backends {met[asks]} and {backend}"
        if len(met) > 1 and met[first] == met[second]:
            return f"two open connections met the same backend {backend}"
    return ""


def _takes_no_transaction(asks: Wire) -> bool:
    """Whether a transaction is refused, as such; whatever else is wrong with it is not said here."""
    try:
        asks.ask(BEGIN)
        asks.ask(ROLLBACK)
    except (psycopg.Error, WireLost) as exc:
        if _ONE_STATEMENT in str(exc):
            return True
        raise
    return False


def _one_line(exc: BaseException) -> str:
    return " ".join(str(exc).split())


def _product(params: Mapping[str, str]) -> str:
    host = params.get("host", "")
    for pattern, name in _HOSTED:
        if re.search(pattern, host):
            return name
    return "PgBouncer, by its port" if params.get("port") == _PGBOUNCER_PORT else "PgBouncer or the like"
