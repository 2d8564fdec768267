"""Schedules that host apps declare in code, and how two versions of one get along.

Each scheduler vouches for what its code declares, for a minute at a time. A scheduler that starts has its
version put into force. It stays in force while anybody vouches for it; when nobody does any more, a scheduler
of another version that still runs puts its own into force. So a new version holds at once, an old one that
goes on for a while does not take it back, and what is left in the end is what still runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from queue_workflows.repositories.sql.table import Repository, Table

if TYPE_CHECKING:
    from queue_workflows.models import Schedule

VOUCHED_S: Final = 60.0
_UNTIL: Final = f"statement_timestamp() + make_interval(secs => {VOUCHED_S:g})"
_SAME_TIMES: Final = "(schedules.cron, schedules.timezone) = (EXCLUDED.cron, EXCLUDED.timezone)"

# turn: one scheduler at a time, by try; 7715 is the class of the sweeps. free: rows that nobody else changes
# at this moment; the others are for the next time, so that a forgotten transaction keeps nobody. given: what
# the code declares. gone: what it does not declare any more. left_alone: it forgets its next tick. written:
# the words, but those of another host app that is alive; where the times are the same, the next tick stays.
DECLARE: Final = f"""
WITH turn AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(7715, 2) AS mine
), free AS MATERIALIZED (
    SELECT schedules.name, declared FROM schedules, turn
    WHERE turn.mine AND (declared_by = %(owner)s::text OR name = ANY (%(names)s::text[]))
    FOR NO KEY UPDATE OF schedules SKIP LOCKED
), given AS MATERIALIZED (
    SELECT given.* FROM turn, jsonb_to_recordset(%(schedules)s::jsonb) AS given (
        name text, cron text, timezone text, catch_up text, catch_up_cap integer, jitter_s float8,
        task_name text, queue text, args jsonb, priority smallint, limit_key text,
        host_lock text
    )
    WHERE turn.mine AND (
        given.name IN (SELECT name FROM free)
        OR NOT EXISTS (SELECT FROM schedules WHERE schedules.name = given.name)
    )
), gone AS (
    SELECT name, declared FROM free WHERE name <> ALL (%(names)s::text[])
), left_alone AS (
    UPDATE schedules SET
        declared = false, declaration = %(digest)s::text, declared_until = {_UNTIL}, next_tick_at = NULL,
        updated_at = CASE WHEN gone.declared THEN statement_timestamp() ELSE schedules.updated_at END
    FROM gone WHERE schedules.name = gone.name AND schedules.declared_by = %(owner)s::text
), written AS (
    INSERT INTO schedules (
        name, cron, timezone, catch_up, catch_up_cap, jitter_s, task_name, queue, args, priority, limit_key,
        host_lock, declared, declared_by, declaration, declared_until
    )
    SELECT
        name, cron, timezone, catch_up, catch_up_cap, jitter_s, task_name, queue, args, priority, limit_key,
        host_lock, true, %(owner)s::text, %(digest)s::text, {_UNTIL}
    FROM given
    ORDER BY name
    ON CONFLICT (name) DO UPDATE SET
        cron = EXCLUDED.cron, timezone = EXCLUDED.timezone, catch_up = EXCLUDED.catch_up,
        catch_up_cap = EXCLUDED.catch_up_cap, jitter_s = EXCLUDED.jitter_s, task_name = EXCLUDED.task_name,
        queue = EXCLUDED.queue, args = EXCLUDED.args, priority = EXCLUDED.priority,
        limit_key = EXCLUDED.limit_key, host_lock = EXCLUDED.host_lock,
        declared = true, declared_by = EXCLUDED.declared_by,
        declaration = EXCLUDED.declaration, declared_until = EXCLUDED.declared_until,
        updated_at = statement_timestamp(),
        next_tick_at = CASE
            WHEN {_SAME_TIMES} AND (schedules.declared OR schedules.declared_by IS NULL)
            THEN schedules.next_tick_at
        END
    WHERE schedules.declared_by IS NULL OR schedules.declared_by = EXCLUDED.declared_by
        OR schedules.declared_until IS NULL OR schedules.declared_until < statement_timestamp()
    RETURNING name
)
SELECT
    (SELECT mine FROM turn), ARRAY(SELECT name FROM written ORDER BY name),
    ARRAY(SELECT name FROM gone WHERE declared ORDER BY name)
"""  # noqa: S608
# free: as above. The HOT update costs a tuple a row and every few seconds, however many schedulers there are.
VOUCH: Final = f"""
WITH free AS MATERIALIZED (
    SELECT name FROM schedules
    WHERE declared_by = %(owner)s::text AND declaration = %(digest)s::text
        AND declared_until < statement_timestamp() + make_interval(secs => {VOUCHED_S * 0.8:g})
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE schedules SET declared_until = {_UNTIL} FROM free WHERE schedules.name = free.name
RETURNING schedules.name
"""  # noqa: S608
IN_FORCE: Final = """
SELECT
    count(*) FILTER (WHERE declared AND declaration = %(digest)s::text),
    count(*) FILTER (WHERE declaration <> %(digest)s::text),
    count(*) FILTER (WHERE declaration <> %(digest)s::text AND declared_until > statement_timestamp())
FROM schedules
WHERE declared_by = %(owner)s::text
"""


class Declared(NamedTuple):
    """What came of declaring: whether it was our turn, which names are ours, and which tick no more."""

    done: bool
    written: list[str]
    gone: list[str]


class InForce(NamedTuple):
    """How many schedules of a host app are as this version declares them, or as another does, or is alive."""

    ours: int
    others: int
    others_alive: int


class DeclarationRepository(Repository["Schedule"]):
    """Declarations of one host app's version, which is told by its digest."""

    _table: Table[Schedule] = Table("schedules")

    def declare(self, owner: str, digest: str, schedules: Sequence[Mapping[str, Any]]) -> Declared:
        """Put what this version declares into force; words are as `checked_words` has them, with `args`."""
        params = {
            "owner": owner,
            "digest": digest,
            "names": [one["name"] for one in schedules],
            "schedules": json.dumps(list(schedules)),
        }
        ((done, written, gone),) = self._sql.rows(DECLARE, params)
        return Declared(bool(done), list(written), list(gone))

    def vouch(self, owner: str, digest: str) -> int:
        """Say that somebody runs this version; for how many schedules that had to be said."""
        return len(self._sql.rows(VOUCH, {"owner": owner, "digest": digest}))

    def in_force(self, owner: str, digest: str) -> InForce:
        """How many of the owner's schedules are as this version or another declares them."""
        ((ours, others, alive),) = self._sql.rows(IN_FORCE, {"owner": owner, "digest": digest})
        return InForce(ours, others, alive)
