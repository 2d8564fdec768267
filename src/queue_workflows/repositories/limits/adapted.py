"""Limits that adapt: lowered when a server says that it is asked too much, and grown back by time alone.

    value at a moment = what it was lowered to * 2 ^ (time since / doubles_s), at most what is declared

So the only write is a lowering, which is seldom; successes write nothing, and a killed worker leaves nothing
wrong. What had begun before the last lowering says nothing about the limit as it is now, and lowers nothing:
many jobs that are refused at once lower a limit once.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final, NamedTuple

from queue_workflows.repositories.limits.in_force import CAP_RULE, GROWN, RATE_RULE
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.arrays import texts
from queue_workflows.repositories.sql.connection import Handle, Statements

# given: the keys that were used. ruled: the cap and the rate of each that adapt, none where an operator has
# said something else; with what is held of a cap, as no more than that was asked of the server. as_it_is: the
# limit at this moment. lowered: those that were; a second statement that lowers the same waits for the first
# one, and finds its moment.
LOWER: Final = (
    """
WITH given AS MATERIALIZED (
    SELECT DISTINCT key FROM unnest(%(keys)s::text[]) AS given (key)
), ruled AS MATERIALIZED (
    SELECT given.key, 'cap' AS kind, rule.floor::float8 AS floor, rule.down, rule.doubles_s,
        LEAST(rule.most, GREATEST(1, (
            SELECT count(*) FROM limit_slots
            WHERE limit_key = given.key AND lease_expires_at > statement_timestamp()
        )))::float8 AS most
    FROM given CROSS JOIN LATERAL {cap_rule} AS rule
    WHERE rule.floor IS NOT NULL
    UNION ALL
    SELECT given.key, 'rate', rule.floor, rule.down, rule.doubles_s, rule.most
    FROM given CROSS JOIN LATERAL {rate_rule} AS rule
    WHERE rule.floor IS NOT NULL AND (
        SELECT true FROM rate_limits WHERE rate_key = given.key AND updated_by IS NOT NULL
    ) IS NULL
), as_it_is AS MATERIALIZED (
    SELECT ruled.*, LEAST(ruled.most, {grown}) AS value
    FROM ruled LEFT JOIN adapted_limits AS adapted
        ON adapted.limit_key = ruled.key AND adapted.kind = ruled.kind
    WHERE COALESCE(adapted.lowered_at < COALESCE(
        %(since)s::timestamptz, statement_timestamp() - make_interval(secs => %(age_s)s::float8)
    ), true)
), lowered AS (
    INSERT INTO adapted_limits (limit_key, kind, value, doubles_s, lowered_at)
    SELECT key, kind, GREATEST(floor, value * down), doubles_s, statement_timestamp() FROM as_it_is
    ORDER BY key, kind
    ON CONFLICT (limit_key, kind) DO UPDATE SET
        value = EXCLUDED.value, doubles_s = EXCLUDED.doubles_s, lowered_at = EXCLUDED.lowered_at
    WHERE adapted_limits.lowered_at < COALESCE(
        %(since)s::timestamptz, EXCLUDED.lowered_at - make_interval(secs => %(age_s)s::float8)
    )
    RETURNING limit_key, kind, value
)
SELECT ruled.key, ruled.kind, lowered.value
FROM ruled LEFT JOIN lowered ON lowered.limit_key = ruled.key AND lowered.kind = ruled.kind
ORDER BY ruled.key, ruled.kind
""".replace("{cap_rule}", CAP_RULE.replace("{key}", "given.key"))
    .replace("{rate_rule}", RATE_RULE.replace("{key}", "given.key"))
    .replace("{grown}", GROWN)
)
# What has doubled so often is at any limit again, and what nobody declares to adapt does not hold a key down.
FORGET: Final = """
DELETE FROM adapted_limits AS adapted
WHERE adapted.lowered_at < statement_timestamp() - make_interval(secs => adapted.doubles_s * 64)
    OR (
        SELECT true FROM limit_declarations AS declared
        WHERE (
                declared.key_pattern = adapted.limit_key
                OR (
                    right(declared.key_pattern, 1) = '*'
                    AND starts_with(adapted.limit_key, left(declared.key_pattern, -1))
                )
            )
            AND CASE adapted.kind
                WHEN 'cap' THEN declared.floor_slots IS NOT NULL ELSE declared.floor_per_s IS NOT NULL
            END
        LIMIT 1
    ) IS NULL
RETURNING adapted.limit_key
"""
# Of some keys the caps that were lowered and have not grown back, as they are declared.
FROM_CAPS: Final = """
SELECT adapted.limit_key, rule.most
FROM adapted_limits AS adapted CROSS JOIN LATERAL {cap_rule} AS rule
WHERE adapted.limit_key = ANY (%(keys)s::text[]) AND adapted.kind = 'cap' AND rule.floor IS NOT NULL
    AND qwf_cap(adapted.limit_key) < rule.most
""".replace("{cap_rule}", CAP_RULE.replace("{key}", "adapted.limit_key"))
# What is below what is declared, at this moment.
LOWERED: Final = (
    """
SELECT adapted.limit_key, 'cap', qwf_cap(adapted.limit_key)::float8, rule.most::float8
FROM adapted_limits AS adapted CROSS JOIN LATERAL {cap_rule} AS rule
WHERE adapted.kind = 'cap' AND rule.floor IS NOT NULL AND qwf_cap(adapted.limit_key) < rule.most
UNION ALL
SELECT adapted.limit_key, 'rate', {grown}, rule.most
FROM adapted_limits AS adapted CROSS JOIN LATERAL {rate_rule} AS rule
WHERE adapted.kind = 'rate' AND rule.floor IS NOT NULL AND {grown} < rule.most
ORDER BY 1, 2
LIMIT %(limit)s::bigint
""".replace("{cap_rule}", CAP_RULE.replace("{key}", "adapted.limit_key"))
    .replace("{rate_rule}", RATE_RULE.replace("{key}", "adapted.limit_key"))
    .replace("{grown}", GROWN)
)


class Lowered(NamedTuple):
    """A limit that adapts, `cap` or `rate`, and to what it was lowered; None where it just had been."""

    key: str
    kind: str
    value: float | None
    # What is declared, where that was asked for.
    most: float | None = None


class AdaptedRepository:
    """The state of limits that adapt, on the caller's connection."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, "adapted_limits")

    def lower(
        self, keys: Iterable[str], *, age_s: float = 0.0, since: datetime | None = None
    ) -> list[Lowered]:
        """Lower what adapts of these keys; all that do. What was refused began `since`, or `age_s` ago."""
        params = {
            "keys": texts(sorted({check.limit_key(key) for key in keys})),
            "since": since,
            "age_s": min(max(0.0, age_s), check.LONGEST_S),
        }
        return [Lowered(*row) for row in self._sql.rows(LOWER, params)]

    def lowered(self, *, limit: int = 100) -> list[Lowered]:
        """The limits that are lower at this moment than they are declared, by key."""
        return [Lowered(*row) for row in self._sql.rows(LOWERED, {"limit": limit})]

    def forget(self) -> int:
        """Delete what holds nothing down any more; how many."""
        return len(self._sql.rows(FORGET, {}))
