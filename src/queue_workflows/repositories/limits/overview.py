"""Keyed limits as `qwf limits list` and `qwf explain` show them: caps, holders of slots, waiting jobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from queue_workflows.repositories.limits.in_force import CAP, CAP_RULE
from queue_workflows.repositories.limits.lanes import IN_LANE
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.table import LONGEST_PAGE

# Beyond this many waiting jobs nobody counts, and of this many holders each is named.
COUNTED: Final = 10_000
HOLDERS_NAMED: Final = 20

# What there is to say of each of some keys; waiting are those in its lanes and those in front. rule: the cap
# that holds. said: what apps declare of the key or of that pattern, also where an operator said otherwise.
_SAID: Final = """
SELECT keys.key, {cap}, rule.key_pattern IS NOT DISTINCT FROM keys.key,
    own.updated_by, own.reason, own.updated_at, held.taken, COALESCE(held.holders, '{}'),
    {waiting_node} + {waiting_ingest},
    CASE rule.rank WHEN 0 THEN 'operator' WHEN 1 THEN 'declared' WHEN 2 THEN 'default' END,
    COALESCE(said.declared, '[]'),
    CASE WHEN rule.floor IS NOT NULL AND adapted.limit_key IS NOT NULL AND {cap} < rule.most
        THEN rule.most END,
    adapted.lowered_at
FROM keys LEFT JOIN LATERAL {cap_rule} AS rule ON true
LEFT JOIN concurrency_limits AS own ON own.key_pattern = keys.key
    AND ((own.updated_by = 'qwf' AND own.reason = 'the default') IS NOT TRUE OR rule.rank = 2)
LEFT JOIN adapted_limits AS adapted ON adapted.limit_key = keys.key AND adapted.kind = 'cap'
CROSS JOIN LATERAL (
    SELECT jsonb_agg(jsonb_build_object(
        'key', key_pattern, 'owner', owner, 'max_slots', max_slots, 'floor', floor_slots
    ) ORDER BY key_pattern, owner) AS declared
    FROM limit_declarations
    WHERE max_slots IS NOT NULL AND key_pattern IN (keys.key, rule.key_pattern)
) AS said
CROSS JOIN LATERAL (
    SELECT count(*) AS taken, (array_agg(job_family || ':' || job_id ORDER BY slot))[:{named}] AS holders
    FROM limit_slots WHERE limit_key = keys.key AND lease_expires_at > statement_timestamp()
) AS held
ORDER BY keys.key
"""
# keys: the next ones that have a limit of their own, also a declared one, a slot that is held, or a lane;
# those of lanes by jumps through the index.
_PAGE: Final = """
WITH RECURSIVE node_lane AS ({jumps_node}
), ingest_lane AS ({jumps_ingest}
), keys AS MATERIALIZED (
    SELECT key FROM (
        (
            SELECT key_pattern AS key FROM concurrency_limits WHERE key_pattern > %(after)s::text
            ORDER BY key_pattern LIMIT %(limit)s::bigint
        )
        UNION
        (
            SELECT key_pattern FROM limit_declarations
            WHERE key_pattern > %(after)s::text AND max_slots IS NOT NULL
            ORDER BY key_pattern LIMIT %(limit)s::bigint
        )
        UNION
        (
            SELECT DISTINCT limit_key FROM limit_slots
            WHERE limit_key > %(after)s::text AND lease_expires_at > statement_timestamp()
            ORDER BY limit_key LIMIT %(limit)s::bigint
        )
        UNION SELECT key FROM node_lane WHERE key IS NOT NULL
        UNION SELECT key FROM ingest_lane WHERE key IS NOT NULL
    ) AS each
    ORDER BY key LIMIT %(limit)s::bigint
)"""
_ONE: Final = "WITH keys AS (SELECT %(key)s::text AS key)"
_JUMPS: Final = """
    (
        SELECT hold_key AS key, 1 AS number FROM {table}
        WHERE hold_reason = 'limit_full' AND hold_key > %(after)s::text
        ORDER BY hold_key LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT next.hold_key FROM {table} AS next
        WHERE hold_reason = 'limit_full' AND next.hold_key > lane.key
        ORDER BY next.hold_key LIMIT 1
    ), number + 1
    FROM {lane} AS lane WHERE lane.key IS NOT NULL AND number < %(limit)s::bigint"""
_WAITING: Final = """(
    SELECT count(*) FROM (
        (SELECT FROM {table} WHERE hold_reason = 'limit_full' AND hold_key = keys.key LIMIT {counted})
        UNION ALL
        (
            SELECT FROM {table} WHERE COALESCE(status = 'queued', false) AND limit_key = keys.key
            LIMIT {counted}
        )
    ) AS waiting
)"""


def _written(template: str) -> str:
    sql = template.replace("{cap}", CAP.replace("{key}", "keys.key")).replace("{named}", str(HOLDERS_NAMED))
    sql = sql.replace("{cap_rule}", CAP_RULE.replace("{key}", "keys.key"))
    for family, table in (("node", "workflow_node_jobs"), ("ingest", "ingest_jobs")):
        for mark, fragment in ((f"{{jumps_{family}}}", _JUMPS), (f"{{waiting_{family}}}", _WAITING)):
            sql = sql.replace(mark, fragment.replace("{table}", table).replace("{lane}", f"{family}_lane"))
    return sql.replace("{counted}", str(COUNTED))


PAGE: Final = _written(_PAGE + _SAID)
ONE: Final = _written(_ONE + _SAID)
# before: those of the lane that come first.
BEFORE_IN_LANE: Final = """
SELECT count(*) FROM (
    SELECT FROM {table}
    WHERE {in_lane} AND hold_key = %(key)s::text AND queue = %(queue)s::text
        AND (priority > %(priority)s::smallint
            OR (priority = %(priority)s::smallint AND position < %(position)s::bigint))
    LIMIT {counted}
) AS before
""".replace("{in_lane}", IN_LANE).replace("{counted}", str(COUNTED))


@dataclass(frozen=True, slots=True)
class LimitLine:
    """A key or pattern; `is_own` says that its cap was set for just it, not for a pattern that it matches.

    `max_slots` is None where it has no cap; `waiting` is not counted beyond some thousand. `source` says
    from where the cap is: `operator`, `declared` or `default`; `declared` is what each app says of the key or
    of the pattern that holds. A cap that has adapted is less than `adapts_from`, since `lowered_at`.
    """

    key: str
    max_slots: int | None
    is_own: bool
    updated_by: str | None
    reason: str | None
    updated_at: datetime | None
    taken: int
    holders: list[str]
    waiting: int
    source: str | None = None
    declared: list[dict[str, Any]] = field(default_factory=list)
    adapts_from: int | None = None
    lowered_at: datetime | None = None

    @property
    def said_by(self) -> str | None:
        """From where the cap is: an operator's name, or the apps that declare it."""
        if self.source == "declared":
            return f"declared by {', '.join(dict.fromkeys(str(one['owner']) for one in self.declared))}"
        return self.updated_by

    @property
    def is_disputed(self) -> bool:
        """Whether apps declare different caps of it; the least holds."""
        by_key: dict[str, set[int]] = {}
        for one in self.declared:
            by_key.setdefault(one["key"], set()).add(one["max_slots"])
        return any(len(caps) > 1 for caps in by_key.values())

    @property
    def said_of_it(self) -> str | None:
        """Why it is so: an operator's reason, what the apps that differ declare, from what it has adapted."""
        parts = [self.reason] if self.reason and self.source != "declared" else []
        if self.is_disputed:
            parts.append(", ".join(f"{one['owner']}: {one['max_slots']}" for one in self.declared))
        elif self.declared and self.source == "operator":
            parts.append(f"declared: {', '.join(str(one['max_slots']) for one in self.declared)}")
        if self.adapts_from is not None:
            parts.append(f"adapts, from {self.adapts_from}")
        return "; ".join(parts) or None


class LimitLineRepository:
    """Reads on the caller's connection."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, "concurrency_limits")

    def page(self, *, limit: int = 100, after: str = "") -> list[LimitLine]:
        """The next keys that have a limit, holders or a lane."""
        params = {"after": after, "limit": check.whole("limit", limit, 1, LONGEST_PAGE)}
        return [LimitLine(*row) for row in self._sql.rows(PAGE, params)]

    def of(self, key: str) -> LimitLine:
        """One key or pattern, whatever there is of it."""
        return LimitLine(*self._sql.rows(ONE, {"key": check.text("key", key)})[0])

    def before_in_lane(self, table: str, key: str, queue: str, priority: int, position: int) -> int:
        """How many of a key's lane in a queue come before such a job."""
        params = {"key": key, "queue": queue, "priority": priority, "position": position}
        return int(self._sql.rows(BEFORE_IN_LANE.replace("{table}", table), params)[0][0])
