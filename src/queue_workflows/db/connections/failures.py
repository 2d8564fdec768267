"""What a driver's complaint means: the one mapping from psycopg's and SQLAlchemy's errors to ours.

A refusal at connection time carries no SQLSTATE in libpq, only the server's words; after that the SQLSTATE
decides.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import psycopg

from queue_workflows.db.connections.dsn import mask_secrets, parse_dsn, place_of
from queue_workflows.errors import (
    AccessRefused,
    ConfigurationError,
    DatabaseError,
    DatabaseUnreachable,
    OptionsRefused,
    QwfError,
    ReadOnlyServer,
    SchemaError,
    UnsupportedServer,
)

OLDEST_MAJOR = 15
# No answer, or none that says more than to ask again: what was asked may have been done or not.
DATABASE_AWAY: Final = (psycopg.OperationalError, psycopg.InterfaceError, DatabaseError, OSError)
# Away, or it refuses what it was asked: for callers that have to live with the one as with the other.
DATABASE_FAILED: Final = (psycopg.Error, QwfError, OSError)
PROXY_ADVICE: Final = (
    "behind a transaction-pooling proxy set QWF_DIRECT_DB_URL to the server itself, for LISTEN and migrations"
)
STATEMENT_POOLING_ADVICE: Final = (
    "set pool_mode = transaction or session for this database, or name the server itself"
)
# On a connection of a host app's own; ours notice it by themselves.
_PREPARED_ADVICE: Final = (
    "prepare nothing through a transaction-pooling proxy: psycopg.connect(…, prepare_threshold=None), for an"
    " engine create_engine(…, connect_args={'prepare_threshold': None})"
)
_GRANTS = "check the role's grants"
# An upgrade may have nothing to do although something is gone: then the comparison says what.
_UPGRADE = "run `qwf db upgrade`, then `qwf db check`, which names what is missing"
_CREDENTIALS = "check the user and the password in the DSN, PGPASSWORD or ~/.pgpass"


@dataclass(frozen=True)
class _Meaning:
    """What a pattern in the text of a failure means; `reason` None passes the server's own words on."""

    pattern: re.Pattern[str]
    kind: type[DatabaseError]
    reason: str | None
    advice: str


def _means(pattern: str, kind: type[DatabaseError], reason: str | None, advice: str) -> _Meaning:
    return _Meaning(re.compile(pattern, re.IGNORECASE), kind, reason, advice)


# In the order of what tells a user most: with several hosts the text holds one complaint for each of them.
_CONNECTING = (
    _means(
        r"unsupported startup parameter|command-line options|startup (?:parameter|option)s? .*not supported",
        OptionsRefused,
        "a pooling proxy in between refuses our startup options",
        PROXY_ADVICE,
    ),
    _means(
        r'unrecognized configuration parameter "(?:client_connection_check_interval|idle_session_timeout'
        r'|idle_in_transaction_session_timeout)"|unsupported frontend protocol',
        UnsupportedServer,
        f"the server is older than PostgreSQL {OLDEST_MAJOR}",
        f"use PostgreSQL {OLDEST_MAJOR} or newer",
    ),
    _means(
        r"unrecognized configuration parameter|(?:invalid value for|cannot be changed).*parameter|"
        r'parameter "[^"]+" cannot',
        AccessRefused,
        None,
        "check `options` in the DSN and PGOPTIONS",
    ),
    _means(
        r"invalid response to (?:SSL|GSSAPI|GSS)|expected authentication request|received unencrypted data"
        r"|unexpected message from server|unexpected response from server|lost synchronization",
        UnsupportedServer,
        "what answers there is not PostgreSQL",
        "check host and port",
    ),
    _means(
        r"password authentication failed|no password supplied|empty password|ident authentication failed"
        r"|peer authentication failed|authentication failed|SASL|no such user",
        AccessRefused,
        None,
        _CREDENTIALS,
    ),
    _means(
        r'role "[^"]*" does not exist|is not permitted to log in',
        AccessRefused,
        None,
        "create the role, or name another user in the DSN",
    ),
    _means(
        r'database "[^"]*" does not exist|no such database',
        AccessRefused,
        None,
        "create the database, or name another one in the DSN",
    ),
    _means(
        r'permission denied for database|database "[^"]*" is not currently accepting',
        AccessRefused,
        None,
        _GRANTS,
    ),
    _means(r"pg_hba\.conf", AccessRefused, None, "allow this client in the server's pg_hba.conf"),
    _means(
        r"session is read-only|server is in hot standby mode",
        ReadOnlyServer,
        "the server takes no writes (a standby, or default_transaction_read_only is on)",
        "name the primary in the DSN, or all hosts of the cluster; we connect to the one that takes writes",
    ),
    _means(
        r"too many clients|too many connections|remaining connection slots|max_client_conn"
        r"|query_wait_timeout",
        DatabaseUnreachable,
        None,
        "raise max_connections or lower what connects; `qwf doctor` shows the headroom",
    ),
    _means(
        r"starting up|shutting down|in recovery mode|not (?:yet )?accepting connections|recovery state",
        DatabaseUnreachable,
        None,
        "try again in a moment",
    ),
    _means(
        r"certificate|does not support SSL|SSL error|\bTLS\b|sslmode|channel binding",
        AccessRefused,
        None,
        "check sslmode and sslrootcert in the DSN",
    ),
    _means(
        r"failed to resolve host|could not translate host name|Name or service not known",
        DatabaseUnreachable,
        "the host name does not resolve",
        "check the host in the DSN, and the network",
    ),
    _means(
        r"connection timeout expired|timeout expired|timed out",
        DatabaseUnreachable,
        "no answer in time",
        "check host, port and firewalls; QWF_CONNECT_TIMEOUT_S is how long we wait",
    ),
    _means(
        r"Connection refused|No such file or directory|No route to host|Network is unreachable",
        DatabaseUnreachable,
        "nothing listens there",
        "start the server, or check host and port in the DSN",
    ),
    _means(
        r'on socket "[^"]*" failed: Permission denied',
        AccessRefused,
        "this user may not open the server's socket",
        "run as the user that owns it, or name a host and a port in the DSN",
    ),
    _means(
        r"server closed the connection|Connection reset|the connection is (?:closed|lost)"
        r"|consuming input failed|sending query failed"
        r"|connection is bad|terminating connection|EOF detected|Broken pipe",
        DatabaseUnreachable,
        "the connection was closed from the other side",
        "see the server's log; a proxy or load balancer without a server behind it does this too",
    ),
    _means(r"\bFATAL\b", AccessRefused, None, "see the server's log"),
)

# SQLSTATE prefixes, longest first, for what a statement may meet on an established connection.
_STATES: tuple[tuple[str, type[DatabaseError | SchemaError], str], ...] = (
    ("25006", ReadOnlyServer, "name the primary in the DSN"),
    ("25P03", DatabaseError, "commit sooner, or raise QWF_IDLE_IN_TRANSACTION_SESSION_TIMEOUT_S"),
    ("55P03", DatabaseError, "see what holds the lock with `qwf doctor`, or raise QWF_LOCK_TIMEOUT_S"),
    (
        "57014",
        DatabaseError,
        "try again, or raise the statement_timeout of the role, the database or the DSN",
    ),
    ("26000", DatabaseError, _PREPARED_ADVICE),
    ("42P05", DatabaseError, _PREPARED_ADVICE),
    ("42501", AccessRefused, _GRANTS),
    ("42P01", SchemaError, _UPGRADE),
    ("42703", SchemaError, _UPGRADE),
    ("42883", SchemaError, _UPGRADE),
    ("3F000", SchemaError, f"check the search_path of the role; {_UPGRADE}"),
    ("28", AccessRefused, _CREDENTIALS),
    ("3D", AccessRefused, "create the database, or name another one in the DSN"),
    ("53", DatabaseUnreachable, "the server is out of a resource; see its log, and `qwf doctor`"),
    ("57P", DatabaseUnreachable, "the server ended the connection; try again in a moment"),
    ("08", DatabaseUnreachable, "try again in a moment"),
)
_FATAL = re.compile(r"FATAL:\s+(.*)", re.DOTALL)
_HOW_IT_GOT_THERE = re.compile(
    r"\A(?:connection (?:failed|is bad): )?connection to server .*? failed: ", re.DOTALL
)


def classify_failure(exc: BaseException, dsn: str | Mapping[str, str]) -> QwfError:
    """Our error for a driver's: one line, what to do, no password; `dsn` may be parsed already."""
    cause = drivers_own(exc)
    if isinstance(cause, QwfError):
        return cause
    try:
        params: Mapping[str, str] = dsn if isinstance(dsn, Mapping) else parse_dsn(dsn) if dsn.strip() else {}
    except ConfigurationError as unreadable:
        return unreadable
    if _is_of_sqlalchemy(cause, "TimeoutError"):
        return DatabaseError(
            "every connection of this process's pool is in use",
            advice="hold connections for shorter, or allow more with pool_size",
        )
    state = getattr(cause, "sqlstate", None)
    if state:
        return _of_state(state, cause, params)
    if isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError | OSError):
        return _of_connecting(str(cause), params)
    return QwfError(mask_secrets(f"{type(cause).__name__}: {cause}", params))


def drivers_own(exc: BaseException) -> BaseException:
    """The driver's exception where SQLAlchemy has wrapped it; any other as it is."""
    if _is_of_sqlalchemy(exc, "DBAPIError"):
        return getattr(exc, "orig", None) or exc
    return exc


def _is_of_sqlalchemy(exc: BaseException, name: str) -> bool:
    # Looked up, not imported: what was never loaded cannot have raised.
    module = sys.modules.get("sqlalchemy.exc")
    return module is not None and isinstance(exc, getattr(module, name))


def unusable(exc: psycopg.ProgrammingError, params: Mapping[str, str]) -> ConfigurationError:
    """The driver cannot read what it is to connect with; no server was asked."""
    return ConfigurationError(
        f"cannot use {place_of(params)}: {_first_line(str(exc), params)}",
        advice="check the options of the DSN and the PG* variables, which the Postgres client reads",
    )


def _of_state(state: str, cause: BaseException, params: Mapping[str, str]) -> QwfError:
    text = _first_line(str(cause), params)
    for prefix, kind, advice in _STATES:
        if state.startswith(prefix):
            return kind(f"{place_of(params)}: {text}", advice=advice)
    return QwfError(f"{place_of(params)}: {text} (SQLSTATE {state})")


def _of_connecting(text: str, params: Mapping[str, str]) -> DatabaseError:
    for meaning in _CONNECTING:
        if meaning.pattern.search(text):
            reason = meaning.reason or _server_words(text, params)
            return meaning.kind(f"cannot use {place_of(params)}: {reason}", advice=meaning.advice)
    return DatabaseUnreachable(f"cannot use {place_of(params)}: {_server_words(text, params)}")


def _server_words(text: str, params: Mapping[str, str]) -> str:
    """The server's own sentence, without libpq's account of how it got there."""
    fatal = _FATAL.search(text)
    return _first_line(fatal.group(1) if fatal else _HOW_IT_GOT_THERE.sub("", text), params)


def _first_line(text: str, params: Mapping[str, str]) -> str:
    """The message without the DETAIL, HINT and position lines below it: those may quote a row's data."""
    first = next((line for line in text.splitlines() if line.strip()), "no reason given")
    return mask_secrets(first, params)
