"""Devices that no worker is started on, because what the last one used there was not given back.

Each is a row among the heartbeats, so that it is in every list of the queue's workers. Its supervisor keeps
it fresh by an update alone: a row that an operator deleted stays away, and that is how the supervisor hears.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.families import ASYNCHRONOUSLY
from queue_workflows.repositories.workers.heartbeats import HeartbeatRepository
from queue_workflows.states import WorkerState

# As often as a worker beats.
KEPT_EVERY_S: Final = 5
_MATCHES: Final = """state = 'quarantined'
    AND (%(host_label)s::text = '*' OR host_label = %(host_label)s::text)
    AND (%(queue)s::text = '*' OR queue = %(queue)s::text)"""
_COLUMNS: Final = (
    "host_label, queue, load ->> 'device', state_reason,"
    " extract(epoch FROM statement_timestamp() - last_seen)::float8"
)
READ: Final = f"""
SELECT {_COLUMNS} FROM worker_heartbeats WHERE {_MATCHES} ORDER BY host_label, queue, worker_id
"""  # noqa: S608 - fragments of our own
# kept: those with a last sign of life a while ago; asked each second, it writes no oftener than a beat.
KEEP: Final = f"""
WITH kept AS (
    UPDATE worker_heartbeats SET last_seen = statement_timestamp(), pid = %(pid)s::integer
    WHERE worker_id = ANY (%(worker_ids)s::text[]) AND state = 'quarantined'
        AND last_seen <= statement_timestamp() - make_interval(secs => {KEPT_EVERY_S}) AND {ASYNCHRONOUSLY}
)
SELECT worker_id FROM worker_heartbeats
WHERE worker_id = ANY (%(worker_ids)s::text[]) AND state = 'quarantined'
"""  # noqa: S608 - fragments of our own
# cleared: the devices that may be tried again. logged: actor and reason.
CLEAR: Final = f"""
WITH cleared AS (
    DELETE FROM worker_heartbeats WHERE {_MATCHES}
    RETURNING host_label, queue, load ->> 'device' AS device, state_reason,
        extract(epoch FROM statement_timestamp() - last_seen)::float8
), logged AS (
    INSERT INTO audit_log (actor, action, subject_kind, subject_id, reason, details)
    SELECT %(actor)s::text, 'workers.on', 'device', host_label || ' ' || device, %(reason)s::text,
        jsonb_build_object('was', state_reason)
    FROM cleared
)
SELECT * FROM cleared ORDER BY host_label, queue, device
"""  # noqa: S608


@dataclass(frozen=True, slots=True)
class Quarantine:
    """One device of a host, and why; `age_s` is when its supervisor was heard of last."""

    host_label: str
    queue: str
    device: str
    reason: str
    age_s: float


def name_of(host_label: str, queue: str, device: str) -> str:
    """What stands where a worker's id does."""
    return f"{host_label}:{queue}:{device}"


class QuarantineRepository:
    """Quarantined devices on the caller's connection."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, "worker_heartbeats")
        self._beats = HeartbeatRepository(conn)

    def put(
        self, host_label: str, queue: str, device: str, *, reason: str, pid: int, told: dict[str, Any]
    ) -> None:
        """Put a device aside; `told` is what its vendor's tool said of it."""
        self._beats.beat(
            name_of(host_label, queue, device),
            host_label=host_label,
            queue=queue,
            pid=pid,
            state=WorkerState.QUARANTINED,
            state_reason=reason,
            load={**told, "device": device},
        )

    def of(self, host_label: str = "*", queue: str = "*") -> list[Quarantine]:
        """The quarantined devices of a host and queue, `*` for any."""
        params = {"host_label": check.text("host_label", host_label), "queue": check.text("queue", queue)}
        return [Quarantine(*row) for row in self._sql.rows(READ, params)]

    def keep(self, names: Iterable[str], *, pid: int) -> set[str]:
        """Say that these are looked after; those that are still there, for nobody has cleared them."""
        params = {"worker_ids": list(names), "pid": pid, "relaxed": self._sql.commits_each}
        return {name for (name,) in self._sql.rows(KEEP, params)}

    def clear(
        self, host_label: str, queue: str, *, actor: str, reason: str | None = None
    ) -> list[Quarantine]:
        """Let the devices of a host and queue, `*` for any, be tried again; those that there were."""
        params = {
            "host_label": check.text("host_label", host_label),
            "queue": check.text("queue", queue),
            "actor": check.text("actor", actor),
            "reason": check.text_or_none("reason", reason, max_bytes=check.TEXT_BYTES),
        }
        return [Quarantine(*row) for row in self._sql.rows(CLEAR, params)]
