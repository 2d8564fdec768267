"""Token buckets that all workers share: each take is one statement, and the time is the server's.

A bucket gives in advance: its tokens may go below zero, and a taker waits until they would be back. So nobody
polls, and takers that wait have their turns in the order in which they came. While a bucket is blocked it
refills nothing; blocking it also voids what it gave to takers that have not begun, so its debt is forgiven
and they take again. `blocked_until` tells them, as it is another one than when they took.

The rule of a key is, the first that there is: its own, set by an operator; what host apps declare of it; that
of the longest pattern; the caller's; the one that it was last used by.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from queue_workflows.errors import PayloadError
from queue_workflows.models.rules import MOST_TOKENS as MOST
from queue_workflows.repositories.limits.in_force import RATE_RULE, UNADAPTED
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.arrays import texts
from queue_workflows.repositories.sql.awaitable import awaitable
from queue_workflows.repositories.sql.families import ASYNCHRONOUSLY
from queue_workflows.repositories.sql.table import Filters, Repository, Table

if TYPE_CHECKING:
    from queue_workflows.models import RateLimit

_TABLE: Final[Table[RateLimit]] = Table("rate_limits")
# How many buckets one part of the pruning looks at.
SEEN_AT_ONCE: Final = 10_000


def _written(template: str) -> str:
    return template.replace("{rule}", RATE_RULE.replace("{key}", "%(rate_key)s::text")).replace(
        "{asynchronously}", ASYNCHRONOUSLY
    )


# kept: the bucket, locked; a statement that comes second waits here. rule: what is declared of the key, or
# that of the longest pattern, with the share that is left of a rate that adapts: it was lowered, and has
# grown since. ruled: the rule that holds, and the time, which is read when the lock is held. filled: what is
# in it by now, as a block lets nothing in. decided: what the cost would have to wait for; what costs more
# than there can ever be, or would wait for too long, is not taken.
TAKE: Final = _written("""
WITH kept AS MATERIALIZED (
    SELECT tokens_per_s, burst, tokens, refilled_at, blocked_until, updated_by FROM rate_limits
    WHERE rate_key = %(rate_key)s::text
    FOR NO KEY UPDATE
), rule AS MATERIALIZED (
    SELECT most, burst, LEAST(1, grown.value / most) AS share
    FROM {rule} AS rule LEFT JOIN LATERAL (
        SELECT value * power(2, LEAST(64, GREATEST(0,
            extract(epoch FROM statement_timestamp() - lowered_at) / doubles_s))::float8) AS value
        FROM adapted_limits
        WHERE limit_key = %(rate_key)s::text AND kind = 'rate' AND rule.floor IS NOT NULL
    ) AS grown ON true
), ruled AS MATERIALIZED (
    SELECT kept.tokens, kept.refilled_at, kept.blocked_until, clock_timestamp() AS at,
        CASE WHEN kept.updated_by IS NULL
            THEN COALESCE(rule.most * rule.share, %(per_s)s::float8, kept.tokens_per_s)
            ELSE kept.tokens_per_s END AS per_s,
        CASE WHEN kept.updated_by IS NULL
            THEN COALESCE(
                CASE WHEN rule.share < 1
                    THEN GREATEST(rule.burst * rule.share, LEAST(rule.burst, GREATEST(1, %(cost)s::float8)))
                    ELSE rule.burst END,
                %(burst)s::float8, kept.burst
            )
            ELSE kept.burst END AS burst
    FROM kept LEFT JOIN rule ON true
), filled AS MATERIALIZED (
    SELECT at, per_s, burst, blocked_until,
        GREATEST(0, extract(epoch FROM blocked_until - at))::float8 AS blocked_s,
        LEAST(burst, tokens + per_s
            * GREATEST(0, extract(epoch FROM at - GREATEST(refilled_at, blocked_until)))::float8) AS tokens
    FROM ruled
), decided AS MATERIALIZED (
    SELECT at, per_s, burst, blocked_until, tokens,
        blocked_s + GREATEST(0, %(cost)s::float8 - tokens) / per_s AS wait_s
    FROM filled
)
UPDATE rate_limits SET
    tokens = decided.tokens
        - CASE WHEN %(cost)s::float8 <= decided.burst AND wait_s <= %(max_wait_s)s::float8
            THEN %(cost)s::float8 ELSE 0 END,
    refilled_at = decided.at, tokens_per_s = decided.per_s, burst = decided.burst
FROM decided
WHERE rate_key = %(rate_key)s::text AND {asynchronously}
RETURNING %(cost)s::float8 <= decided.burst AND wait_s <= %(max_wait_s)s::float8,
    wait_s, decided.per_s, decided.burst, decided.blocked_until
""")
# A full bucket for a key that has a rule, and none yet.
CREATE: Final = _written("""
WITH rule AS (
    SELECT COALESCE(declared.most, %(per_s)s::float8) AS per_s,
        COALESCE(declared.burst, %(burst)s::float8) AS burst
    FROM (SELECT) AS always LEFT JOIN {rule} AS declared ON true
)
INSERT INTO rate_limits (rate_key, tokens_per_s, burst, tokens)
SELECT %(rate_key)s::text, per_s, burst, burst FROM rule WHERE per_s IS NOT NULL
ON CONFLICT (rate_key) DO NOTHING
RETURNING rate_key
""")
# Whether the bucket was blocked since, so that what it gave then is void.
IS_VOID: Final = """
SELECT blocked_until IS DISTINCT FROM %(epoch)s::timestamptz FROM rate_limits
WHERE rate_key = %(rate_key)s::text
"""
# What was void is no longer missing.
REFUND: Final = _written("""
UPDATE rate_limits SET tokens = LEAST(burst, tokens + %(cost)s::float8)
WHERE rate_key = %(rate_key)s::text AND blocked_until IS NOT DISTINCT FROM %(epoch)s::timestamptz
    AND {asynchronously}
RETURNING tokens
""")
# kept: the bucket, locked. blocked: until when, by a clock that is read when the lock is held; a longer block
# stands.
PENALIZE: Final = """
WITH kept AS MATERIALIZED (
    SELECT blocked_until FROM rate_limits WHERE rate_key = %(rate_key)s::text FOR NO KEY UPDATE
), blocked AS MATERIALIZED (
    SELECT blocked_until AS before, clock_timestamp() + make_interval(secs => %(seconds)s::float8) AS until
    FROM kept
)
UPDATE rate_limits SET
    blocked_until = GREATEST(before, until),
    tokens = CASE WHEN until > before OR before IS NULL THEN 0 ELSE tokens END
FROM blocked
WHERE rate_key = %(rate_key)s::text
RETURNING blocked_until
"""
# before: what held until now, for the log. changed: the rule as it is now; what the bucket gained by the old
# one is kept, up to the new burst. unadapted: what had adapted to something else. logged: actor and reason.
SET: Final = _TABLE.sql(
    """
WITH before AS MATERIALIZED (
    SELECT tokens_per_s, burst FROM rate_limits WHERE rate_key = %(rate_key)s::text
), changed AS (
    INSERT INTO rate_limits (rate_key, tokens_per_s, burst, tokens, reason, updated_by)
    VALUES (%(rate_key)s::text, %(per_s)s::float8, %(burst)s::float8, %(burst)s::float8, %(reason)s::text,
        %(actor)s::text)
    ON CONFLICT (rate_key) DO UPDATE SET
        tokens_per_s = EXCLUDED.tokens_per_s, burst = EXCLUDED.burst,
        tokens = LEAST(EXCLUDED.burst, rate_limits.tokens + rate_limits.tokens_per_s * GREATEST(0, extract(
            epoch FROM statement_timestamp() - GREATEST(rate_limits.refilled_at, rate_limits.blocked_until)
        ))::float8),
        refilled_at = GREATEST(rate_limits.refilled_at, statement_timestamp()),
        reason = EXCLUDED.reason, updated_by = EXCLUDED.updated_by, updated_at = statement_timestamp()
    RETURNING {columns}
), unadapted AS (
    {unadapted}
), logged AS (
    INSERT INTO audit_log (actor, action, subject_kind, subject_id, reason, details)
    SELECT updated_by, 'limits.set', 'rate_limit', rate_key, reason, jsonb_build_object(
        'per_s', tokens_per_s, 'burst', burst,
        'was', (SELECT jsonb_build_object('per_s', tokens_per_s, 'burst', burst) FROM before))
    FROM changed
)
SELECT {columns} FROM changed AS rate_limits
""".replace("{unadapted}", UNADAPTED.replace("{kind}", "rate").replace("{pattern}", "%(rate_key)s::text"))
)
# removed: the rule that goes, and its bucket. logged: actor and reason of that.
CLEAR: Final = _TABLE.sql("""
WITH removed AS (
    DELETE FROM rate_limits WHERE rate_key = %(rate_key)s::text RETURNING {columns}
), logged AS (
    INSERT INTO audit_log (actor, action, subject_kind, subject_id, reason, details)
    SELECT %(actor)s::text, 'limits.clear', 'rate_limit', rate_key, %(reason)s::text,
        jsonb_build_object('was', jsonb_build_object('per_s', tokens_per_s, 'burst', burst))
    FROM removed
)
SELECT {columns} FROM removed AS rate_limits
""")
# part: some keys in their order. gone: of these the buckets that are as they would be if made anew, and that
# nobody has used for long; what an operator set stays.
FORGET: Final = """
WITH part AS MATERIALIZED (
    SELECT rate_key FROM rate_limits WHERE rate_key > %(after)s::text
    ORDER BY rate_key
    LIMIT %(limit)s::bigint
), gone AS (
    DELETE FROM rate_limits AS bucket
    WHERE bucket.rate_key = ANY (ARRAY(SELECT rate_key FROM part)) AND bucket.updated_by IS NULL
        AND GREATEST(bucket.refilled_at, bucket.blocked_until)
            < statement_timestamp() - make_interval(secs => %(for_s)s::float8)
        AND bucket.tokens + bucket.tokens_per_s * extract(
            epoch FROM statement_timestamp() - GREATEST(bucket.refilled_at, bucket.blocked_until)
        )::float8 >= bucket.burst
    RETURNING bucket.rate_key
)
SELECT COALESCE(max(rate_key), ''), count(*) FROM part
"""
FETCH: Final = _TABLE.sql("SELECT {columns} FROM rate_limits WHERE rate_key = %(rate_key)s::text")


# What apps declare of rates, the stricter of several, with what a rate that adapts has come down to.
DECLARED: Final = """
SELECT declared.key_pattern, min(declared.per_s), min(declared.burst),
    array_agg(declared.owner ORDER BY declared.owner), bool_or(declared.floor_per_s IS NOT NULL),
    count(DISTINCT (declared.per_s, declared.burst)) > 1, statement_timestamp()
FROM limit_declarations AS declared
WHERE declared.per_s IS NOT NULL
    AND (cardinality(%(keys)s::text[]) = 0 OR declared.key_pattern = ANY (%(keys)s::text[]))
    AND declared.key_pattern > %(after)s::text
GROUP BY declared.key_pattern
ORDER BY declared.key_pattern
LIMIT %(limit)s::bigint
"""


class DeclaredRate(NamedTuple):
    """A rate as apps declare it: the strictest of theirs; `is_disputed` where they do not say the same."""

    key: str
    per_s: float
    burst: float
    owners: list[str]
    adapts: bool
    is_disputed: bool
    now: datetime


class Rule(NamedTuple):
    """So many tokens a second, and how many are there at most."""

    per_s: float
    burst: float


class Taken(NamedTuple):
    """What a bucket answers: whether it gave, and how long to wait for it. A block changes the `epoch`."""

    granted: bool
    wait_s: float
    rule: Rule
    epoch: datetime | None


class RateRepository(Repository["RateLimit"]):
    """Rules and buckets on the caller's connection."""

    _table = _TABLE

    def take(
        self, rate_key: str, cost: float, *, rule: Rule | None = None, max_wait_s: float = check.LONGEST_S
    ) -> Taken | None:
        """Take tokens, those to come if need be; `rule` is for a key without another. None: nobody set one.

        A server that crashes may forget takes of its last moments: they are committed asynchronously.
        """
        params = {
            "rate_key": check.limit_key(rate_key),
            "cost": cost,
            "per_s": rule and rule.per_s,
            "burst": rule and rule.burst,
            "max_wait_s": max_wait_s,
            "relaxed": self._sql.commits_each,
        }
        taken = self._take(params)
        if taken is None:
            self._sql.rows(CREATE, params)
            taken = self._take(params)
        return taken

    def is_void(self, rate_key: str, epoch: datetime | None) -> bool:
        """Whether what was taken in this epoch has to be taken again, the key having been blocked since."""
        return self._sql.rows(IS_VOID, {"rate_key": rate_key, "epoch": epoch}) == [(True,)]

    def refund(self, rate_key: str, cost: float, epoch: datetime | None) -> bool:
        """Give back what was taken in this epoch and not used; whether it was missing."""
        params = {"rate_key": rate_key, "cost": cost, "epoch": epoch, "relaxed": self._sql.commits_each}
        return bool(self._sql.rows(REFUND, params))

    def penalize(self, rate_key: str, seconds: float, *, rule: Rule | None = None) -> datetime | None:
        """Let nobody take for so long; until when. None if nobody set a rule for the key."""
        params = {
            "rate_key": check.limit_key(rate_key),
            "seconds": check.seconds_or_none("seconds", seconds, zero=True),
            "per_s": rule and rule.per_s,
            "burst": rule and rule.burst,
        }
        rows = self._sql.rows(PENALIZE, params)
        if not rows:
            self._sql.rows(CREATE, params)
            rows = self._sql.rows(PENALIZE, params)
        return rows[0][0] if rows else None

    def set(
        self,
        rate_key: str,
        per_s: float,
        burst: float | None = None,
        *,
        actor: str,
        reason: str | None = None,
    ) -> RateLimit:
        """Say how fast a key may be used, whatever code says; `host:*` is for keys without their own."""
        checked = rule(per_s, burst)
        params = {
            "rate_key": check.key_pattern("rate_key", rate_key),
            "per_s": checked.per_s,
            "burst": checked.burst,
            "actor": check.text("actor", actor),
            "reason": check.text_or_none("reason", reason, max_bytes=check.TEXT_BYTES),
        }
        return self._all(SET, params)[0]

    def clear(self, rate_key: str, *, actor: str, reason: str | None = None) -> RateLimit | None:
        """Take a rule back together with its bucket; what it was, or None."""
        params = {
            "rate_key": check.key_pattern("rate_key", rate_key),
            "actor": check.text("actor", actor),
            "reason": check.text_or_none("reason", reason, max_bytes=check.TEXT_BYTES),
        }
        return self._first(CLEAR, params)

    def fetch(self, rate_key: str) -> RateLimit | None:
        """The bucket, or the pattern's rule, of exactly these words."""
        return self._first(FETCH, {"rate_key": rate_key})

    def declared(self, keys: Sequence[str] = (), *, limit: int = 100, after: str = "") -> list[DeclaredRate]:
        """What apps declare of these keys, or of the next ones."""
        params = {"keys": texts(keys), "after": after, "limit": limit}
        return [DeclaredRate(*row) for row in self._sql.rows(DECLARED, params)]

    def now(self) -> datetime:
        """The moment, by the clock that buckets go by, also within a transaction."""
        moment: datetime = self._sql.rows("SELECT clock_timestamp()", {})[0][0]
        return moment

    def forget(self, *, for_s: float, after: str = "") -> str:
        """Delete unused buckets among the next keys after one; where to go on, empty when all were seen."""
        params = {"for_s": check.seconds("for_s", for_s), "after": after, "limit": SEEN_AT_ONCE}
        ((last, count),) = self._sql.rows(FORGET, params)
        return str(last) if count == SEEN_AT_ONCE else ""

    def _take(self, params: dict[str, Any]) -> Taken | None:
        for granted, wait_s, per_s, burst, epoch in self._sql.rows(TAKE, params):
            return Taken(granted, wait_s, Rule(per_s, burst), epoch)
        return None

    # Last, because its name hides the builtin from the annotations below it.
    def list(self, *, set_only: bool = False, limit: int = 100, after: str | None = None) -> list[RateLimit]:
        """Rules and buckets by key, or only those that operators set; `after` is a page's last key."""
        filters = Filters()
        if set_only:
            filters.always("updated_by IS NOT NULL")
        return self._page(filters, by="rate_key", after=after, limit=limit, newest_first=False)

    # Awaited, on an asynchronous connection.
    afetch = awaitable(fetch)
    anow = awaitable(now)
    alist = awaitable(list)


def rule(per_s: float, burst: float | None) -> Rule:
    """A checked rule; without a burst, what comes in a second, rounded up."""
    speed = _amount("per_s", per_s)
    return Rule(speed, float(math.ceil(speed)) if burst is None else _amount("burst", burst))


def _amount(field: str, value: float) -> float:
    sound = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not sound or not 1 / MOST <= value <= MOST:
        raise PayloadError(f"{field} must be a number above 0, not {value!r:.80}", path=field)
    return float(value)
