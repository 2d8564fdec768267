"""Keyed limits as operators set them, and the slots that are taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from queue_workflows.errors import PayloadError
from queue_workflows.models.columns import TYPES
from queue_workflows.repositories.limits.in_force import CAP_RULE, UNADAPTED
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.awaitable import awaitable
from queue_workflows.repositories.sql.table import LONGEST_PAGE, Filters, Repository, Table

if TYPE_CHECKING:
    from queue_workflows.models import ConcurrencyLimit, LimitSlot

_TABLE: Final[Table[ConcurrencyLimit]] = Table("concurrency_limits")
_SLOTS: Final[Table[LimitSlot]] = Table("limit_slots")

# before: what was set until now, for the log. changed: the row as it is now. unadapted: what had adapted to
# something else. logged: actor and reason.
SET: Final = _TABLE.sql(
    """
WITH before AS MATERIALIZED (
    SELECT max_slots FROM concurrency_limits WHERE key_pattern = %(key_pattern)s::text
), changed AS (
    INSERT INTO concurrency_limits (key_pattern, max_slots, reason, updated_by)
    VALUES (%(key_pattern)s::text, %(max_slots)s::integer, %(reason)s::text, %(actor)s::text)
    ON CONFLICT (key_pattern) DO UPDATE SET
        max_slots = EXCLUDED.max_slots, reason = EXCLUDED.reason, updated_by = EXCLUDED.updated_by,
        updated_at = statement_timestamp()
    RETURNING {columns}
), unadapted AS (
    {unadapted}
), logged AS (
    INSERT INTO audit_log (actor, action, subject_kind, subject_id, reason, details)
    SELECT updated_by, 'limits.set', 'concurrency_limit', key_pattern, reason,
        jsonb_build_object('max_slots', max_slots, 'was', (SELECT max_slots FROM before))
    FROM changed
)
SELECT {columns} FROM changed AS concurrency_limits
""".replace("{unadapted}", UNADAPTED.replace("{kind}", "cap").replace("{pattern}", "%(key_pattern)s::text"))
)
# removed: the limit that goes. logged: actor and reason of that.
CLEAR: Final = _TABLE.sql("""
WITH removed AS (
    DELETE FROM concurrency_limits WHERE key_pattern = %(key_pattern)s::text RETURNING {columns}
), logged AS (
    INSERT INTO audit_log (actor, action, subject_kind, subject_id, reason, details)
    SELECT %(actor)s::text, 'limits.clear', 'concurrency_limit', key_pattern, %(reason)s::text,
        jsonb_build_object('was', max_slots)
    FROM removed
)
SELECT {columns} FROM removed AS concurrency_limits
""")
FETCH: Final = _TABLE.sql(
    "SELECT {columns} FROM concurrency_limits WHERE key_pattern = %(key_pattern)s::text"
)
# The one that holds, as `qwf_cap` finds it: a key's own, else that of the longest pattern. What is declared
# has no actor.
EFFECTIVE: Final = _TABLE.sql("""
SELECT {columns} FROM (
    SELECT key_pattern, qwf_cap(%(limit_key)s::text) AS max_slots, reason, updated_by, updated_at
    FROM (
        SELECT key_pattern, reason, updated_by, updated_at,
            CASE WHEN updated_by = 'qwf' AND reason = 'the default' THEN 2 ELSE 0 END AS rank
        FROM concurrency_limits
        WHERE key_pattern = %(limit_key)s::text
            OR (right(key_pattern, 1) = '*' AND starts_with(%(limit_key)s::text, left(key_pattern, -1)))
        UNION ALL
        SELECT key_pattern, 'declared by ' || string_agg(owner, ', ' ORDER BY owner), NULL, NULL, 1
        FROM limit_declarations
        WHERE max_slots IS NOT NULL AND (
            key_pattern = %(limit_key)s::text
            OR (right(key_pattern, 1) = '*' AND starts_with(%(limit_key)s::text, left(key_pattern, -1)))
        )
        GROUP BY key_pattern
    ) AS rules
    ORDER BY key_pattern = %(limit_key)s::text DESC, length(key_pattern) DESC, rank
    LIMIT 1
) AS concurrency_limits
""")
SLOTS: Final = _SLOTS.sql("""
SELECT {columns} FROM limit_slots
WHERE lease_expires_at > statement_timestamp() AND (
    limit_key > %(after_key)s::text OR (limit_key = %(after_key)s::text AND slot > %(after_slot)s::integer)
)
ORDER BY limit_key, slot
LIMIT %(limit)s::bigint
""")
SLOTS_OF_KEY: Final = _SLOTS.sql("""
SELECT {columns} FROM limit_slots
WHERE limit_key = %(limit_key)s::text AND lease_expires_at > statement_timestamp()
ORDER BY slot
""")

# Both of a key, in one statement, and what a cap that adapts was lowered from.
HELD: Final = f"""
SELECT (
    SELECT rule.most FROM {CAP_RULE.replace("{key}", "%(limit_key)s::text")} AS rule
    WHERE rule.floor IS NOT NULL AND cap.max_slots < rule.most
), cap.*, held.*
FROM (SELECT) AS look
LEFT JOIN ({EFFECTIVE}) AS cap ON true
LEFT JOIN ({SLOTS_OF_KEY}) AS held ON true
"""  # noqa: S608

# The longer patterns that keys of a pattern may match, and so go by.
LONGER_PATTERNS: Final = """
SELECT key_pattern FROM concurrency_limits
WHERE right(key_pattern, 1) = '*' AND starts_with(key_pattern, %(prefix)s::text)
    AND length(key_pattern) > length(%(prefix)s::text) + 1
ORDER BY key_pattern
LIMIT %(limit)s::bigint
"""


class LimitRepository(Repository["ConcurrencyLimit"]):
    """Limits and slots on the caller's connection."""

    _table = _TABLE

    def set(
        self, key_pattern: str, max_slots: int, *, actor: str, reason: str | None = None
    ) -> ConcurrencyLimit:
        """Say how many may hold a key at once, 0 for none; `host:*` is for keys without their own."""
        params = {
            **cap_params(key_pattern, max_slots),
            "actor": check.text("actor", actor),
            "reason": check.text_or_none("reason", reason, max_bytes=check.TEXT_BYTES),
        }
        return self._all(SET, params)[0]

    def clear(self, key_pattern: str, *, actor: str, reason: str | None = None) -> ConcurrencyLimit | None:
        """Take a limit back, so that a pattern's or the engine's default holds; what it was, or None."""
        params = {
            "key_pattern": check.key_pattern("key_pattern", key_pattern),
            "actor": check.text("actor", actor),
            "reason": check.text_or_none("reason", reason, max_bytes=check.TEXT_BYTES),
        }
        return self._first(CLEAR, params)

    def fetch(self, key_pattern: str) -> ConcurrencyLimit | None:
        """The limit that was set by exactly these words, or None."""
        return self._first(FETCH, {"key_pattern": key_pattern})

    def effective(self, limit_key: str) -> ConcurrencyLimit | None:
        """The limit that holds for a key: its own, else the longest pattern's; None where nobody set one."""
        found = self._first(EFFECTIVE, {"limit_key": check.limit_key(limit_key)})
        return in_force(found, limit_key)

    def held(self, limit_key: str) -> tuple[ConcurrencyLimit | None, list[LimitSlot], int | None]:
        """What `effective` and `slots` say of a key, and from what it has adapted, in one statement."""
        read = self._sql.rows(HELD, {"limit_key": check.limit_key(limit_key)})
        adapts_from, rows = read[0][0], [row[1:] for row in read]
        width = len(rows[0]) - len(TYPES[_SLOTS.name])
        caps = [row[:width] for row in rows[:1] if row[0] is not None]
        found = self._table.load(caps)[0] if caps else None
        slots = _SLOTS.load([row[width:] for row in rows if row[width] is not None])
        return in_force(found, limit_key), sorted(slots, key=lambda one: one.slot), adapts_from

    def slots(
        self, limit_key: str | None = None, *, limit: int = 100, after: tuple[str, int] = ("", -1)
    ) -> list[LimitSlot]:
        """Taken slots of a key, or a page of all; `after` is the (key, slot) where the page before ended."""
        if limit_key is not None:
            return _SLOTS.load(self._sql.rows(SLOTS_OF_KEY, {"limit_key": limit_key}))
        count = check.whole("limit", limit, 1, LONGEST_PAGE)
        params = {"after_key": after[0], "after_slot": after[1], "limit": count}
        return _SLOTS.load(self._sql.rows(SLOTS, params))

    def longer_patterns(self, key_pattern: str) -> list[str]:
        """The patterns with a limit that begin as this one does and say more."""
        params = {"prefix": key_pattern.removesuffix("*"), "limit": LONGEST_PAGE}
        return [pattern for (pattern,) in self._sql.rows(LONGER_PATTERNS, params)]

    # Last, because its name hides the builtin from the annotations below it.
    def list(self, *, limit: int = 100, after: str | None = None) -> list[ConcurrencyLimit]:
        """Limits by key; `after` is the key that the page before ended with."""
        return self._page(Filters(), by="key_pattern", after=after, limit=limit, newest_first=False)

    # Awaited, on an asynchronous connection.
    afetch = awaitable(fetch)
    aeffective = awaitable(effective)
    aslots = awaitable(slots)
    alist = awaitable(list)


def in_force(found: ConcurrencyLimit | None, limit_key: str) -> ConcurrencyLimit | None:
    """The limit that holds for a key of which this was `found`: what is exclusive never has more than one."""
    if limit_key.startswith(check.EXCLUSIVE) and (found is None or found.max_slots > 1):
        from queue_workflows.models import ConcurrencyLimit

        return ConcurrencyLimit(key_pattern=f"{check.EXCLUSIVE}*", max_slots=1)
    return found


def cap_params(key_pattern: str, max_slots: int) -> dict[str, Any]:
    """A key and a cap that may be set for it, or the refusal."""
    if max_slots > 1 and key_pattern.startswith(check.EXCLUSIVE):
        raise PayloadError(
            f"the cap of {key_pattern!r:.80} is one: what is exclusive has one job at a time",
            path="max_slots",
            advice="0 closes it; what bears more takes a limit_key of another name",
        )
    return {
        "key_pattern": check.key_pattern("key_pattern", key_pattern),
        "max_slots": check.whole("max_slots", max_slots, 0, check.INT_MAX),
    }
