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
from typing import Any, Final, Literal

import psycopg

from queue_workflows.db.wire import Note, Wire, WireLost

ANSWER_WITHIN_S: Final = 5.0
BACKEND: Final = "SELECT pg_backend_pid()"
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


def is_announced(wire: Wire, connection: psycopg.Connection[Any]) -> bool:
    """Whether the backend is the one that the start-up message named; a proxy names one of its own making."""
    return wire.ask(BACKEND) == (str(connection.info.backend_pid),)


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


def _sharing(first: Wire, second: Wire) -> str:
    """How it shows that backends are shared, or nothing; an open transaction keeps one busy."""
    before = first.ask(BACKEND)
    second.ask("BEGIN")
    held = second.ask(BACKEND)
    sign = ""
    if held == before:
        sign = f"two open connections met the same backend {held[0]}"
    elif (after := first.ask(BACKEND)) != before:
        sign = f"one connection met the backends {before[0]} and {after[0]}"
    second.ask("ROLLBACK")
    return sign


def _product(params: Mapping[str, str]) -> str:
    host = params.get("host", "")
    for pattern, name in _HOSTED:
        if re.search(pattern, host):
            return name
    return "PgBouncer, by its port" if params.get("port") == _PGBOUNCER_PORT else "PgBouncer or the like"
