"""What operators want of workers; every change is logged with actor and reason in the same statement."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from queue_workflows.errors import PayloadError
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.awaitable import awaitable
from queue_workflows.repositories.sql.table import Filters, Repository, Table
from queue_workflows.states import DesiredState

if TYPE_CHECKING:
    from queue_workflows.models import WorkerControl

_TABLE: Final[Table[WorkerControl]] = Table("worker_control")

# tick: the version of this change. The clock's row is locked before the wish's own, by everybody, so that no
# two deadlock; the number is taken with the lock in hand. changed: the row as it is now. logged: actor and
# reason.
SET: Final = _TABLE.sql("""
WITH tick AS (
    INSERT INTO worker_control_clock (version)
    SELECT nextval('worker_control_version_seq')
    ON CONFLICT (singleton) DO UPDATE SET version = nextval('worker_control_version_seq')
    RETURNING version
), changed AS (
    INSERT INTO worker_control (host_label, queue, desired, reason, actor, expires_at, version)
    SELECT
        %(host_label)s::text, %(queue)s::text, %(desired)s::text, %(reason)s::text, %(actor)s::text,
        statement_timestamp() + make_interval(secs => %(expires_in_s)s::float8), version
    FROM tick
    ON CONFLICT (host_label, queue) DO UPDATE SET
        desired = EXCLUDED.desired, reason = EXCLUDED.reason, actor = EXCLUDED.actor,
        expires_at = EXCLUDED.expires_at, version = EXCLUDED.version, updated_at = statement_timestamp()
    RETURNING {columns}
), logged AS (
    INSERT INTO audit_log (actor, action, subject_kind, subject_id, reason, details)
    SELECT actor, 'workers.' || desired, 'worker_control', host_label || ' ' || queue, reason,
        jsonb_build_object('expires_at', expires_at, 'version', version)
    FROM changed
)
SELECT {columns} FROM changed AS worker_control
""")
_THIS: Final = "host_label = %(host_label)s::text AND queue = %(queue)s::text"
# tick: the version of this change, if there is something to change. removed: the row that said pause or off.
# logged: actor and reason of that.
CLEAR: Final = _TABLE.sql(
    """
WITH tick AS (
    INSERT INTO worker_control_clock (version)
    SELECT nextval('worker_control_version_seq') WHERE EXISTS (SELECT FROM worker_control WHERE {this})
    ON CONFLICT (singleton) DO UPDATE SET version = nextval('worker_control_version_seq')
    RETURNING version
), removed AS (
    DELETE FROM worker_control USING tick WHERE {this}
    RETURNING {columns}, tick.version AS cleared_at
), logged AS (
    INSERT INTO audit_log (actor, action, subject_kind, subject_id, reason, details)
    SELECT %(actor)s::text, 'workers.on', 'worker_control', host_label || ' ' || queue, %(reason)s::text,
        jsonb_build_object('was', desired, 'version', cleared_at)
    FROM removed
)
SELECT cleared_at, {columns} FROM removed AS worker_control
""".replace("{this}", _THIS)
)
# The latest change that is committed; a worker that has read it has seen all before it.
VERSION: Final = "COALESCE((SELECT version FROM worker_control_clock), 0)"
# What holds for a worker now; the strictest first, and of equals the one that names most. A worker that
# watches its jobs asks by the same words.
HOLDS: Final = """host_label IN (%(host_label)s::text, '*') AND queue IN (%(queue)s::text, '*')
    AND (expires_at IS NULL OR expires_at > statement_timestamp())"""
STRICTEST_FIRST: Final = "array_position(ARRAY['off', 'pause', 'on'], desired), host_label = '*', queue = '*'"
MATCHING: Final = _TABLE.sql(
    f"SELECT {{columns}} FROM worker_control WHERE {HOLDS} ORDER BY {STRICTEST_FIRST}"  # noqa: S608
)
WISHED: Final = f"SELECT desired FROM worker_control WHERE {HOLDS} ORDER BY {STRICTEST_FIRST} LIMIT 1"  # noqa: S608
# What holds for any worker of a host and queue, where `*` is any: what keeps some of them from working.
BLOCKING: Final = _TABLE.sql(f"""
SELECT {{columns}} FROM worker_control
WHERE (host_label IN (%(host_label)s::text, '*') OR %(host_label)s::text = '*')
    AND (queue IN (%(queue)s::text, '*') OR %(queue)s::text = '*')
    AND desired <> 'on' AND (expires_at IS NULL OR expires_at > statement_timestamp())
ORDER BY {STRICTEST_FIRST}, host_label, queue
""")  # noqa: S608

_LAPSED: Final = "expires_at < statement_timestamp() - make_interval(secs => %(for_s)s::float8)"
# Whether the asking role may delete wishes, as a worker with the least rights may not, and there are some.
HAS_LAPSED: Final = """
SELECT has_table_privilege('worker_control', 'DELETE') AND has_table_privilege('worker_control', 'UPDATE')
    AND EXISTS (SELECT FROM worker_control WHERE {lapsed})
""".replace("{lapsed}", _LAPSED)
# lapsed: those that nobody changes at this moment. No tick: what they said holds for nobody any more, and
# the audit log has kept it.
FORGET_LAPSED: Final = """
WITH lapsed AS MATERIALIZED (
    SELECT host_label, queue FROM worker_control WHERE {lapsed} LIMIT 200 FOR UPDATE SKIP LOCKED
)
DELETE FROM worker_control AS wish USING lapsed
WHERE wish.host_label = lapsed.host_label AND wish.queue = lapsed.queue
RETURNING wish.version
""".replace("{lapsed}", _LAPSED)


@dataclass(frozen=True, slots=True)
class Control:
    """What an operator wants of a worker now, with the row that says so."""

    desired: DesiredState
    version: int
    host_label: str
    queue: str
    reason: str | None
    actor: str
    expires_at: datetime | None


class Cleared(NamedTuple):
    """A wish that was taken back: the version of that change, and the row as it was."""

    version: int
    was: WorkerControl


class WorkerControlRepository(Repository["WorkerControl"]):
    """Operators' wishes on the caller's connection."""

    _table = _TABLE

    def set(
        self,
        host_label: str,
        queue: str,
        desired: str,
        *,
        actor: str,
        reason: str | None = None,
        expires_in: timedelta | float | None = None,
    ) -> WorkerControl:
        """Ask for `pause` or `off` of a queue on a host, `*` for any, for good or for a while."""
        if check.word("desired", desired, DesiredState) == DesiredState.ON:
            raise PayloadError(
                "`on` is no wish of its own", path="desired", advice="clear what blocks instead"
            )
        params = self._change(host_label, queue, actor, reason)
        params["desired"] = check.word("desired", desired, DesiredState)
        params["expires_in_s"] = check.delay_or_none("expires_in", expires_in)
        return self._all(SET, params)[0]

    def clear(self, host_label: str, queue: str, *, actor: str, reason: str | None = None) -> Cleared | None:
        """Take back what this very row asked for; other rows may still match, see `matching`."""
        for version, *row in self._sql.rows(CLEAR, self._change(host_label, queue, actor, reason)):
            return Cleared(version, *self._table.load([row]))
        return None

    def forget_lapsed(self, *, for_s: float) -> int:
        """Delete wishes that ran out so long ago, if this connection may; how many."""
        params = {"for_s": check.seconds("for_s", for_s)}
        if not self._sql.rows(HAS_LAPSED, params)[0][0]:
            return 0
        return len(self._sql.rows(FORGET_LAPSED, params))

    def now(self) -> datetime:
        """The server's time, by which wishes run out."""
        moment: datetime = self._sql.rows("SELECT statement_timestamp()", {})[0][0]
        return moment

    def version(self) -> int:
        """The latest change; a worker with as much in its heartbeat has seen it."""
        return int(self._sql.rows(f"SELECT {VERSION}", {})[0][0])

    def matching(self, host_label: str, queue: str) -> list[WorkerControl]:
        """Everything that holds for a worker now, the strictest first."""
        return self._all(MATCHING, {"host_label": host_label, "queue": queue})

    def blocking(self, host_label: str = "*", queue: str = "*") -> list[WorkerControl]:
        """Everything that holds for some worker of a host and queue, `*` for any, the strictest first."""
        return self._all(BLOCKING, {"host_label": host_label, "queue": queue})

    def effective(self, host_label: str, queue: str) -> WorkerControl | None:
        """What a worker has to obey now; None is on."""
        return next(iter(self.matching(host_label, queue)), None)

    def desired(self, host_label: str, queue: str) -> DesiredState:
        """What a worker has to do now, in a word."""
        rows = self._sql.rows(WISHED, {"host_label": host_label, "queue": queue})
        return DesiredState(rows[0][0]) if rows else DesiredState.ON

    def _change(self, host_label: str, queue: str, actor: str, reason: str | None) -> dict[str, Any]:
        return {
            "host_label": check.text("host_label", host_label),
            "queue": check.text("queue", queue),
            "actor": check.text("actor", actor),
            "reason": check.text_or_none("reason", reason, max_bytes=check.TEXT_BYTES),
        }

    # Last, because its name hides the builtin from the annotations below it.
    def list(
        self,
        *,
        host_label: str | None = None,
        queue: str | None = None,
        desired: str | None = None,
        limit: int = 100,
        after: int | None = None,
    ) -> list[WorkerControl]:
        """Every wish, the latest change first, the lapsed too; `after` is the last page's last version."""
        wanted = None if desired is None else check.word("desired", desired, DesiredState)
        filters = Filters()
        filters.add("host_label = %(host_label)s::text", host_label=host_label)
        filters.add("queue = %(queue)s::text", queue=queue)
        filters.add("desired = %(desired)s::text", desired=wanted)
        return self._page(filters, by="version", after=after, limit=limit, newest_first=True)

    # Awaited, on an asynchronous connection.
    amatching = awaitable(matching)
    ablocking = awaitable(blocking)
    aeffective = awaitable(effective)
    adesired = awaitable(desired)
    alist = awaitable(list)
