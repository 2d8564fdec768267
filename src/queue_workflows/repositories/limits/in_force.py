"""Which cap and which rate hold for a key, as SQL that statements are put together with.

The first that there is: what an operator set for the key itself, what host apps declare of it, then the same
two of the longest pattern that it matches; of a pattern's cap there may be the default that comes with the
tables. Of several apps that declare one key or pattern the stricter holds. A limit that adapts was lowered at
some moment, and from then on grows by itself: nobody writes that, so nothing is counted and nothing is lost.
"""

from __future__ import annotations

from typing import Final

# What workers go by: a function of the database, as it stands in statements that are sent for each claim.
CAP: Final = "qwf_cap({key})"
# The rule behind it, for what has to know how it adapts: `most` is what it grows back to.
CAP_RULE: Final = """(
    SELECT * FROM (
        SELECT key_pattern, max_slots AS most, NULL::integer AS floor, NULL::float8 AS down,
            NULL::float8 AS doubles_s,
            CASE WHEN updated_by = 'qwf' AND reason = 'the default' THEN 2 ELSE 0 END AS rank
        FROM concurrency_limits
        WHERE key_pattern = {key}
            OR (right(key_pattern, 1) = '*' AND starts_with({key}, left(key_pattern, -1)))
        UNION ALL
        SELECT key_pattern, min(max_slots), min(floor_slots), min(down), max(doubles_s), 1
        FROM limit_declarations
        WHERE max_slots IS NOT NULL AND (
            key_pattern = {key}
            OR (right(key_pattern, 1) = '*' AND starts_with({key}, left(key_pattern, -1)))
        )
        GROUP BY key_pattern
    ) AS rules
    ORDER BY key_pattern = {key} DESC, length(key_pattern) DESC, rank LIMIT 1
)"""
# A bucket that no operator ruled goes by this, if there is one.
RATE_RULE: Final = """(
    SELECT * FROM (
        SELECT rate_key AS key_pattern, tokens_per_s AS most, burst, NULL::float8 AS floor,
            NULL::float8 AS down, NULL::float8 AS doubles_s, 0 AS rank
        FROM rate_limits
        WHERE right(rate_key, 1) = '*' AND starts_with({key}, left(rate_key, -1))
        UNION ALL
        SELECT key_pattern, min(per_s), min(burst), min(floor_per_s), min(down), max(doubles_s), 1
        FROM limit_declarations
        WHERE per_s IS NOT NULL AND (
            key_pattern = {key}
            OR (right(key_pattern, 1) = '*' AND starts_with({key}, left(key_pattern, -1)))
        )
        GROUP BY key_pattern
    ) AS rules
    ORDER BY key_pattern = {key} DESC, length(key_pattern) DESC, rank LIMIT 1
)"""
# What a limit that was lowered has grown to by now, of a row `adapted`.
GROWN: Final = """adapted.value * power(2, LEAST(64, GREATEST(0,
    extract(epoch FROM statement_timestamp() - adapted.lowered_at) / adapted.doubles_s))::float8)"""
# An operator's word takes the place of what adapts, and begins anew.
UNADAPTED: Final = """DELETE FROM adapted_limits
    WHERE kind = '{kind}' AND (
        limit_key = {pattern}
        OR (right({pattern}, 1) = '*' AND starts_with(limit_key, left({pattern}, -1)))
    )"""
