"""The checks that need a connection: each says what it found and what to do about it, and changes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import psycopg
import sqlalchemy as sa
from psycopg.rows import dict_row

from queue_workflows.db.connections.asking_connection import AskingConnection
from queue_workflows.db.connections.bounded_wire import WireLost
from queue_workflows.db.connections.engine import Database, classify_failure
from queue_workflows.db.connections.failures import PROXY_ADVICE
from queue_workflows.db.connections.proxies import notify_round_trip
from queue_workflows.db.doctor.findings import Check, Status, failed
from queue_workflows.db.migrations.authoring import refuse_drift
from queue_workflows.db.migrations.chain.chains import Chain, host_chain, select_chains
from queue_workflows.db.migrations.chain.tables import engine_tables
from queue_workflows.db.migrations.refusals import behind, misfit
from queue_workflows.db.migrations.state import ChainState, read_state
from queue_workflows.errors import ExitCode, QwfError, ReadOnlyServer, SchemaError, SessionsNotKept

CLOCK_WARN_S: Final = 2.0
OLD_TRANSACTION_S: Final = 300.0
NOTIFY_WARN: Final = 0.25
NOTIFY_FAIL: Final = 0.75
FEW_CONNECTIONS: Final = 10

# Client sessions only: autovacuum and the like hold transactions as well, and end them by themselves.
OLDEST_TRANSACTION: Final = """
SELECT pid, datname, application_name, state,
       extract(epoch FROM clock_timestamp() - xact_start)::float8 AS age_s
FROM pg_stat_activity
WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() AND backend_type = 'client backend'
ORDER BY xact_start LIMIT 1
"""
SEES_OTHERS: Final = "SELECT pg_has_role('pg_read_all_stats', 'USAGE') AS all_of_them"
PREPARED: Final = """
SELECT gid, extract(epoch FROM clock_timestamp() - prepared)::float8 AS age_s
FROM pg_prepared_xacts ORDER BY prepared LIMIT 5
"""
# A slot that nobody reads keeps dead rows (by its xmin) or the write-ahead log (by its restart_lsn).
IDLE_SLOTS: Final = """
SELECT slot_name, greatest(age(xmin), age(catalog_xmin)) AS transactions, wal_status
FROM pg_replication_slots
WHERE NOT active AND (xmin IS NOT NULL OR catalog_xmin IS NOT NULL OR restart_lsn IS NOT NULL)
ORDER BY slot_name LIMIT 5
"""
NOTIFY_QUEUE: Final = "SELECT pg_notification_queue_usage() AS usage"
# usable: what this role may still share with the others. numbackends is visible to every role.
CONNECTIONS: Final = """
SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
       - coalesce(current_setting('reserved_connections', true)::int, 0) AS usable,
       (SELECT sum(numbackends)::int FROM pg_stat_database) AS used,
       (SELECT nullif(rolconnlimit, -1) FROM pg_roles WHERE rolname = current_user) AS role_limit,
       (SELECT count(*)::int FROM pg_stat_activity WHERE usename = current_user) AS role_used,
       (SELECT nullif(datconnlimit, -1) FROM pg_database WHERE datname = current_database())
           AS database_limit,
       (SELECT numbackends FROM pg_stat_database WHERE datname = current_database()) AS database_used
"""
SERVER: Final = """
SELECT current_setting('server_encoding') AS encoding,
    pg_is_in_recovery() OR current_setting('transaction_read_only')::bool AS read_only
"""
SETTINGS: Final = """
SELECT name, current_setting(name) AS value, source, pending_restart FROM pg_settings
WHERE name = ANY (%s) OR pending_restart ORDER BY name
"""
# Left by a build beside writers that was broken off; while one is under way, its index is like that too.
INVALID_INDEXES: Final = """
SELECT i.indexrelid::regclass::text AS index, i.indrelid::regclass::text AS of_table,
       p.pid AS built_by
FROM pg_index i LEFT JOIN pg_stat_progress_create_index p ON p.index_relid = i.indexrelid
WHERE NOT i.indisvalid
  AND i.indrelid IN (SELECT to_regclass(quote_ident(name)) FROM unnest(%s::text[]) AS name)
ORDER BY 1
"""
QUARANTINED: Final = """
SELECT host_label, queue, load ->> 'device' AS device, state_reason AS reason FROM worker_heartbeats
WHERE state = 'quarantined' ORDER BY host_label, device
"""
# What several host apps declare, each something else.
DISPUTED: Final = """
SELECT 'limit' AS what, key_pattern AS name, array_agg(owner ORDER BY owner) AS owners FROM limit_declarations
GROUP BY key_pattern
HAVING count(DISTINCT (max_slots, per_s, burst, floor_slots, floor_per_s, down, doubles_s)) > 1
UNION ALL
SELECT 'task', task_name, array_agg(owner ORDER BY owner) FROM task_declarations
GROUP BY task_name HAVING count(DISTINCT (limit_key, computes_key, host_lock)) > 1
ORDER BY what, name
LIMIT 100
"""
CLOCK: Final = "SELECT extract(epoch FROM clock_timestamp())::float8 AS server"

SESSION_SETTINGS: Final = (
    "client_connection_check_interval",
    "default_transaction_isolation",
    "idle_in_transaction_session_timeout",
    "lock_timeout",
    "TimeZone",
)
# What loses committed jobs when the server or its machine goes down.
DURABILITY: Final = ("fsync", "full_page_writes", "synchronous_commit")

# What a role without pg_monitor may not see of a standby is null.
STANDBYS: Final = """
SELECT application_name AS name, state, sync_state,
    COALESCE(EXTRACT(epoch FROM replay_lag), 0)::float8 AS behind_s
FROM pg_stat_replication WHERE state IS DISTINCT FROM 'backup' ORDER BY application_name, pid
"""
_HA: Final = "see docs/deploy/high-availability.md"
SYNCHRONOUS: Final = """
SELECT current_setting('synchronous_standby_names') AS names,
    current_setting('synchronous_commit') AS synchronous_commit
"""


@dataclass(frozen=True)
class Target:
    """What a check may look at."""

    database: Database
    connection: AskingConnection
    clock: Callable[[], float]

    def rows(self, query: str, *parameters: object) -> list[dict[str, Any]]:
        """All rows of a query, each as a dict."""
        cursor = self.connection.cursor(row_factory=dict_row)
        return cursor.execute(query.encode(), parameters or None).fetchall()

    @cached_property
    def settings(self) -> dict[str, dict[str, Any]]:
        """The settings that checks are about, and those that wait for a restart, by name."""
        return {row["name"]: row for row in self.rows(SETTINGS, [*SESSION_SETTINGS, *DURABILITY])}

    def row(self, query: str) -> dict[str, Any]:
        """The one row of a query."""
        return self.rows(query)[0]


def made(name: str, check: Callable[[Target], Check], patient: Target) -> Check:
    """Make one check; what it stumbles over is a finding too."""
    try:
        return check(patient)
    except psycopg.errors.InsufficientPrivilege as exc:
        return Check(name, Status.SKIP, f"not allowed to look: {exc.diag.message_primary or exc}")
    except psycopg.errors.UndefinedTable:
        return Check(name, Status.SKIP, "needs the schema")
    except QwfError as exc:
        return failed(name, exc)
    except WireLost as exc:
        advice = "the server, or the pool of a proxy in between, has no connection to give"
        return Check(name, Status.FAIL, str(exc), advice, ExitCode.UNREACHABLE)
    except (psycopg.Error, OSError) as exc:
        return failed(name, classify_failure(exc, patient.database.params))


def _check_server(patient: Target) -> Check:
    version = patient.connection.info.parameter_status("server_version") or ""
    server = patient.row(SERVER)
    encoding = server["encoding"]
    data = {"version": version, "encoding": encoding}
    if server["read_only"]:
        raise ReadOnlyServer(
            f"PostgreSQL {version}, which takes no writes",
            advice="name the primary in the DSN, and leave target_session_attrs to us",
        )
    if encoding != "UTF8":
        return Check(
            "server",
            Status.WARN,
            f"PostgreSQL {version}, encoding {encoding}",
            "use a database with encoding UTF8: others cannot store every JSON payload",
            data=data,
        )
    return Check("server", Status.OK, f"PostgreSQL {version}", data=data)


def _check_schema(patient: Target) -> Check:
    with patient.database.engine.connect() as connection:
        # Out of the pool, so that it is closed afterwards: a small proxy may have few to give.
        connection.detach()
        states = [(chain, read_state(connection, chain)) for chain in select_chains("all", host_chain())]
        troubles = [_schema_trouble(connection, chain, state) for chain, state in states]
    said = "; ".join(f"{state.chain} at {state.shown or 'nothing'}" for _chain, state in states)
    data = {
        state.chain: {"current": state.shown, "head": state.head, "status": state.status}
        for _chain, state in states
    }
    for trouble in filter(None, troubles):
        return Check(
            "schema",
            Status.FAIL,
            f"{said}: {trouble.message}",
            trouble.advice or "",
            trouble.exit_code,
            data,
        )
    return Check("schema", Status.OK, f"{said}, as this code wants it", data=data)


def _schema_trouble(connection: sa.Connection, chain: Chain, state: ChainState) -> SchemaError | None:
    """What is wrong with a chain; only the engine's tables are compared with its models."""
    wrong = misfit(state, chain)
    if wrong is not None:
        return wrong
    if state.status != "current":
        return behind(state, state.head)
    try:
        if chain.name == "engine":
            refuse_drift(connection, chain)
    except SchemaError as drift:
        return drift
    return None


def _check_indexes(patient: Target) -> Check:
    found = patient.rows(INVALID_INDEXES, sorted(engine_tables()))
    data = {"invalid": found}
    invalid = [one for one in found if one["built_by"] is None]
    if not found:
        return Check("indexes", Status.OK, "all are valid", data=data)
    if not invalid:
        being_built = ", ".join(f"{one['index']} by pid {one['built_by']}" for one in found)
        return Check("indexes", Status.OK, f"being built: {being_built}", data=data)
    names = [one["index"] for one in invalid]
    again = "; ".join(f"REINDEX INDEX CONCURRENTLY {name}" for name in names)
    return Check(
        "indexes",
        Status.WARN,
        f"invalid, so no query uses them: {', '.join(names)}",
        "run `qwf db upgrade`, which begins anew what was broken off; where that has nothing to do: "
        f"{again}, or DROP INDEX CONCURRENTLY what ends in `_before`, `_after` or `_ccnew`",
        data=data,
    )


def _check_pooling(patient: Target) -> Check:
    """What every role finds by itself at its connections, so that there is nothing to be told."""
    database, proxy = patient.database, patient.connection.between
    data = {"pooling": proxy.pooling, "product": proxy.product, "listen": not database.forgoes_sessions}
    if proxy.keeps_sessions:
        return Check("pooling", Status.OK, proxy.describe(), data=data)
    if database.forgoes_sessions:
        found = f"{proxy.describe()}; QWF_LISTEN is off, which suits it"
        return Check("pooling", Status.OK, found, data=data)
    if database.direct_dsn:
        found = f"{proxy.describe()}; LISTEN and migrations go past it"
        return Check("pooling", Status.OK, found, data=data)
    return Check("pooling", Status.WARN, f"{proxy.describe()}; workers poll", PROXY_ADVICE, data=data)


def _check_listen(patient: Target) -> Check:
    database = patient.database
    if not database.can_listen:
        return Check("listen", Status.OK, "off (QWF_LISTEN): workers poll", data={"listen": False})
    began = time.monotonic()
    try:
        ear = database.connect_session(autocommit=True)
    except SessionsNotKept as shared:
        data, found = {"listen": False}, f"cannot work, workers poll: {shared.message}"
        if database.direct_dsn:
            return Check("listen", Status.WARN, found, f"QWF_DIRECT_DB_URL: {PROXY_ADVICE}", data=data)
        return Check("listen", Status.OK, found, data=data)
    with ear:
        heard = notify_round_trip(ear, patient.connection)
    took_ms = round((time.monotonic() - began) * 1000, 1)
    if heard:
        return Check("listen", Status.OK, "NOTIFY reaches LISTEN", data={"listen": True, "took_ms": took_ms})
    return Check(
        "listen",
        Status.FAIL,
        "NOTIFY does not reach LISTEN on this connection",
        PROXY_ADVICE,
        ExitCode.CONFIGURATION,
        {"listen": True},
    )


def _check_clock(patient: Target) -> Check:
    samples = []
    for _ in range(3):
        before = patient.clock()
        server = patient.row(CLOCK)["server"]
        after = patient.clock()
        samples.append((after - before, server - (before + after) / 2))
    # The quickest answer leaves the least room for error.
    took, ahead = min(samples)
    data = {"server_ahead_s": round(ahead, 3), "round_trip_s": round(took, 3)}
    if abs(ahead) <= CLOCK_WARN_S + took:
        return Check("clock", Status.OK, f"{abs(ahead):.3f} s apart", data=data)
    return Check(
        "clock",
        Status.WARN,
        f"the server's clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} this machine's",
        "leases and due times go by the server's clock alone, but logs will not line up: run NTP on both",
        data=data,
    )


def _check_transactions(patient: Target) -> Check:
    oldest = next(iter(patient.rows(OLDEST_TRANSACTION)), None)
    limit = "" if patient.row(SEES_OTHERS)["all_of_them"] else " (only this role's sessions can be seen)"
    if oldest is None:
        return Check("transactions", Status.OK, f"none open{limit}", data={"oldest": None})
    name = oldest["application_name"] or "no application_name"
    found = (
        f"the oldest is {oldest['age_s']:.0f} s old: pid {oldest['pid']}, {name}, {oldest['state']}{limit}"
    )
    if oldest["age_s"] < OLD_TRANSACTION_S:
        return Check("transactions", Status.OK, found, data={"oldest": oldest})
    return Check(
        "transactions",
        Status.WARN,
        found,
        f"it keeps dead rows and slows every claim: end it, or SELECT pg_terminate_backend({oldest['pid']})",
        data={"oldest": oldest},
    )


def _check_holders(patient: Target) -> Check:
    prepared = patient.rows(PREPARED)
    slots = patient.rows(IDLE_SLOTS)
    data = {"prepared": prepared, "idle_slots": slots}
    old = [one for one in prepared if one["age_s"] >= OLD_TRANSACTION_S]
    troubles = [f"prepared transaction {one['gid']!r} is {one['age_s']:.0f} s old" for one in old]
    troubles += [f"replication slot {one['slot_name']} has no reader" for one in slots]
    if not troubles:
        found = f"{len(prepared)} prepared transactions, none old; no idle replication slot"
        return Check("holders", Status.OK, found, data=data)
    advice = (
        "they keep dead rows and the write-ahead log: COMMIT or ROLLBACK PREPARED, pg_drop_replication_slot()"
    )
    return Check("holders", Status.WARN, "; ".join(troubles), advice, data=data)


def _check_notify_queue(patient: Target) -> Check:
    usage = patient.row(NOTIFY_QUEUE)["usage"]
    status = Status.FAIL if usage >= NOTIFY_FAIL else Status.WARN if usage >= NOTIFY_WARN else Status.OK
    advice = "a session that LISTENs sits in a long transaction: end it, for a full queue fails every enqueue"
    return Check(
        "notify queue",
        status,
        f"{usage:.1%} used",
        "" if status is Status.OK else advice,
        data={"usage": usage},
    )


def _check_connections(patient: Target) -> Check:
    room = patient.row(CONNECTIONS)
    bounds = {
        "the server": (room["used"], room["usable"]),
        "this role": (room["role_used"], room["role_limit"]),
        "this database": (room["database_used"], room["database_limit"]),
    }
    holder, used, most = min(
        ((holder, used, most) for holder, (used, most) in bounds.items() if most is not None),
        key=lambda bound: bound[2] - bound[1],
    )
    found = f"{used} of {most} that {holder} may have"
    if most - used >= max(FEW_CONNECTIONS, most // 10):
        return Check("connections", Status.OK, found, data=room)
    advice = "raise max_connections, or the limit of the role or database, or run fewer or smaller pools"
    return Check("connections", Status.WARN, found, advice, data=room)


def _check_session(patient: Target) -> Check:
    held = {name: row for name, row in patient.settings.items() if name in SESSION_SETTINGS}
    found = ", ".join(f"{name} = {row['value']} ({row['source']})" for name, row in held.items())
    if patient.database.forgoes_sessions or not patient.connection.between.keeps_sessions:
        return Check("session", Status.OK, f"left as the server has it: {found}", data=held)
    wrong = [
        name for name in ("lock_timeout", "idle_in_transaction_session_timeout") if held[name]["value"] == "0"
    ]
    if held["default_transaction_isolation"]["value"] != "read committed":
        wrong.append("default_transaction_isolation")
    if not wrong:
        return Check("session", Status.OK, found, data=held)
    advice = f"{', '.join(wrong)}: look at `options` in the DSN, PGOPTIONS and QWF_*_TIMEOUT_S"
    return Check("session", Status.WARN, found, advice, data=held)


def _check_durability(patient: Target) -> Check:
    held = {name: row for name, row in patient.settings.items() if name in DURABILITY}
    off = [f"{name} is off ({row['source']})" for name, row in held.items() if row["value"] == "off"]
    if not off:
        return Check("durability", Status.OK, "committed jobs survive a crash of the server", data=held)
    advice = (
        "a crash can lose or, without fsync and full_page_writes, destroy what was committed: switch it on"
    )
    return Check("durability", Status.WARN, ", ".join(off), advice, data=held)


def _check_standby(patient: Target) -> Check:
    """Whether what is acknowledged is on a second machine by then, and so survives the loss of this one."""
    wanted, standbys = patient.row(SYNCHRONOUS), patient.rows(STANDBYS)
    data = {**wanted, "standbys": standbys}
    ready = [each for each in standbys if each["sync_state"] in ("sync", "quorum")]
    if standbys and all(each["sync_state"] is None for each in standbys):
        found = f"{len(standbys)}, of which this role may not see more than that"
        return Check("standby", Status.SKIP, found, "ask as a member of pg_monitor", data=data)
    if wanted["names"] and not ready:
        found = f"synchronous_standby_names is {wanted['names']!r}, and no such standby is connected"
        return Check("standby", Status.WARN, found, f"each commit waits until one is; {_HA}", data=data)
    if ready and wanted["synchronous_commit"] in ("off", "local"):
        found = f"a synchronous standby, not waited for: synchronous_commit is {wanted['synchronous_commit']}"
        return Check("standby", Status.WARN, found, f"a failover loses acknowledged jobs; {_HA}", data=data)
    if ready:
        names = ", ".join(each["name"] for each in ready)
        found = f"synchronous ({names}): a failover to it loses no acknowledged job"
        return Check("standby", Status.OK, found, data=data)
    if standbys:
        found = f"{len(standbys)}, none of them synchronous: a failover loses the last acknowledged jobs"
        return Check("standby", Status.WARN, found, f"set synchronous_standby_names; {_HA}", data=data)
    found = "none: what was acknowledged survives a crash of this server, and not its loss"
    return Check("standby", Status.OK, found, data=data)


def _check_pending(patient: Target) -> Check:
    names = [name for name, row in patient.settings.items() if row["pending_restart"]]
    if not names:
        return Check("pending restart", Status.OK, "nothing waits for a restart", data={"names": []})
    found = f"changed, but not in force: {', '.join(names)}"
    return Check(
        "pending restart", Status.WARN, found, "restart the server when it suits", data={"names": names}
    )


def _check_devices(patient: Target) -> Check:
    found = patient.rows(QUARANTINED)
    if not found:
        return Check("devices", Status.OK, "none is quarantined", data={"quarantined": []})
    first = found[0]
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return Check(
        "devices",
        Status.WARN,
        f"{first['device']} of {first['host_label']} is quarantined: {first['reason']}{more}",
        f"see what holds its memory, then `qwf workers on {first['host_label']} {first['queue']}`",
        data={"quarantined": found},
    )


def _check_declared(patient: Target) -> Check:
    found = patient.rows(DISPUTED)
    if not found:
        return Check("declared", Status.OK, "no two apps declare different limits", data={"disputed": []})
    first = found[0]
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    holds = "the stricter holds" if first["what"] == "limit" else f"that of {first['owners'][0]} holds"
    return Check(
        "declared",
        Status.WARN,
        f"{' and '.join(first['owners'])} declare the {first['what']} {first['name']} differently{more}",
        f"{holds}; have them say the same",
        data={"disputed": found},
    )


CHECKS: Final[Mapping[str, Callable[[Target], Check]]] = {
    "server": _check_server,
    "schema": _check_schema,
    "indexes": _check_indexes,
    "pooling": _check_pooling,
    "listen": _check_listen,
    "clock": _check_clock,
    "transactions": _check_transactions,
    "holders": _check_holders,
    "notify queue": _check_notify_queue,
    "connections": _check_connections,
    "session": _check_session,
    "durability": _check_durability,
    "standby": _check_standby,
    "pending restart": _check_pending,
    "devices": _check_devices,
    "declared": _check_declared,
}
