"""Limits and tasks as host apps declare them in code, and how two versions of one app get along.

A process that starts puts what its code declares into force, all of it at once. It stays in force while
any process vouches for it, for a minute at a time; when none does, a process of another version that still
runs puts its own there. So a new version holds at once, an old one that goes on for a while does not take
it back, and what the new one does not declare any more is gone. An app that is not heard of for a month has
left.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.connection import Handle, Rows, Statements

VOUCHED_S: Final = 60.0
FORGOTTEN_AFTER_S: Final = 30 * 86_400.0

# turn: one process at a time, by try; 7715 is the class of the sweeps. app: which version is in force. The
# others: what it declares of keys and of tasks, and what an earlier version declared and it does not.
DECLARE: Final = """
WITH turn AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(7715, 4) AS mine
), app AS (
    INSERT INTO app_declarations (owner, declaration, declared_until)
    SELECT %(owner)s::text, %(digest)s::text, statement_timestamp() + make_interval(secs => {vouched_s})
    FROM turn WHERE turn.mine
    ON CONFLICT (owner) DO UPDATE SET
        declaration = EXCLUDED.declaration, declared_until = EXCLUDED.declared_until,
        declared_at = statement_timestamp()
), limits AS MATERIALIZED (
    SELECT given.* FROM turn, jsonb_to_recordset(%(limits)s::jsonb) AS given (
        key_pattern text, max_slots integer, per_s float8, burst float8, floor_slots integer,
        floor_per_s float8, down float8, doubles_s float8
    )
    WHERE turn.mine
), limits_gone AS (
    DELETE FROM limit_declarations USING turn
    WHERE turn.mine AND owner = %(owner)s::text AND key_pattern <> ALL (ARRAY(SELECT key_pattern FROM limits))
    RETURNING key_pattern
), limits_written AS (
    INSERT INTO limit_declarations (
        key_pattern, owner, max_slots, per_s, burst, floor_slots, floor_per_s, down, doubles_s
    )
    SELECT key_pattern, %(owner)s::text, max_slots, per_s, burst, floor_slots, floor_per_s, down, doubles_s
    FROM limits ORDER BY key_pattern
    ON CONFLICT (key_pattern, owner) DO UPDATE SET
        max_slots = EXCLUDED.max_slots, per_s = EXCLUDED.per_s, burst = EXCLUDED.burst,
        floor_slots = EXCLUDED.floor_slots, floor_per_s = EXCLUDED.floor_per_s, down = EXCLUDED.down,
        doubles_s = EXCLUDED.doubles_s
), tasks AS MATERIALIZED (
    SELECT given.* FROM turn, jsonb_to_recordset(%(tasks)s::jsonb) AS given (
        task_name text, limit_key text, computes_key boolean, host_lock text
    )
    WHERE turn.mine
), tasks_gone AS (
    DELETE FROM task_declarations USING turn
    WHERE turn.mine AND owner = %(owner)s::text AND task_name <> ALL (ARRAY(SELECT task_name FROM tasks))
), tasks_written AS (
    INSERT INTO task_declarations (task_name, owner, limit_key, computes_key, host_lock)
    SELECT task_name, %(owner)s::text, limit_key, computes_key, host_lock FROM tasks ORDER BY task_name
    ON CONFLICT (task_name, owner) DO UPDATE SET
        limit_key = EXCLUDED.limit_key, computes_key = EXCLUDED.computes_key, host_lock = EXCLUDED.host_lock
)
SELECT mine, ARRAY(SELECT key_pattern FROM limits_gone ORDER BY key_pattern) FROM turn
""".replace("{vouched_s}", f"{VOUCHED_S:g}")
# A HOT update of one row, every few seconds, however many processes there are.
VOUCH: Final = """
WITH free AS MATERIALIZED (
    SELECT owner FROM app_declarations
    WHERE owner = %(owner)s::text AND declaration = %(digest)s::text
        AND declared_until < statement_timestamp() + make_interval(secs => {soon_s})
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE app_declarations AS app SET
    declared_until = statement_timestamp() + make_interval(secs => {vouched_s})
FROM free WHERE app.owner = free.owner
RETURNING app.owner
""".replace("{soon_s}", f"{VOUCHED_S * 0.8:g}").replace("{vouched_s}", f"{VOUCHED_S:g}")
IN_FORCE: Final = """
SELECT declaration = %(digest)s::text, declared_until > statement_timestamp()
FROM app_declarations WHERE owner = %(owner)s::text
"""
# left: apps that nobody has vouched for in a month.
FORGET: Final = """
WITH left_apps AS (
    DELETE FROM app_declarations
    WHERE declared_until < statement_timestamp() - make_interval(secs => %(for_s)s::float8)
    RETURNING owner
), limits AS (
    DELETE FROM limit_declarations WHERE owner IN (SELECT owner FROM left_apps)
), tasks AS (
    DELETE FROM task_declarations WHERE owner IN (SELECT owner FROM left_apps)
)
SELECT owner FROM left_apps ORDER BY owner
"""
# What the version in force says of each key.
DECLARED: Final = """
SELECT key_pattern, max_slots, per_s, burst, floor_slots, floor_per_s, down, doubles_s
FROM limit_declarations WHERE owner = %(owner)s::text ORDER BY key_pattern
"""
# Keys that several apps declare, each with what it says.
DISPUTED: Final = """
SELECT key_pattern, jsonb_agg(
    jsonb_build_object(
        'owner', owner, 'max_slots', max_slots, 'per_s', per_s, 'burst', burst, 'floor_slots', floor_slots,
        'floor_per_s', floor_per_s
    ) ORDER BY owner
)
FROM limit_declarations
GROUP BY key_pattern
HAVING count(DISTINCT (max_slots, per_s, burst, floor_slots, floor_per_s, down, doubles_s)) > 1
ORDER BY key_pattern
LIMIT 100
"""
DISPUTED_TASKS: Final = """
SELECT task_name, jsonb_agg(
    jsonb_build_object('owner', owner, 'limit_key', limit_key, 'host_lock', host_lock) ORDER BY owner
)
FROM task_declarations
GROUP BY task_name
HAVING count(DISTINCT (limit_key, computes_key, host_lock)) > 1
ORDER BY task_name
LIMIT 100
"""


class Declared(NamedTuple):
    """What came of declaring: whether it was our turn, and of which keys nothing is declared any more."""

    done: bool
    gone: list[str]


class InForce(NamedTuple):
    """Whether the version in force is ours, and whether any process vouches for it."""

    is_ours: bool
    is_alive: bool


class Disputed(NamedTuple):
    """A key or a task of which several apps say different things, and what each says."""

    name: str
    said: list[dict[str, Any]]


class LimitDeclarationRepository:
    """Declarations of one host app's version, which is told by its digest."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, "app_declarations")

    def declare(
        self,
        owner: str,
        digest: str,
        *,
        limits: Sequence[Mapping[str, Any]] = (),
        tasks: Sequence[Mapping[str, Any]] = (),
    ) -> Declared:
        """Put a version into force, but for one that another process puts there at this moment."""
        params = {
            "owner": check.text("owner", owner),
            "digest": check.text("digest", digest),
            "limits": json.dumps(list(limits)),
            "tasks": json.dumps(list(tasks)),
        }
        ((done, gone),) = self._sql.rows(DECLARE, params)
        return Declared(bool(done), list(gone))

    def vouch(self, owner: str, digest: str) -> bool:
        """Say that somebody runs this version; whether that had to be said."""
        return bool(self._sql.rows(VOUCH, {"owner": owner, "digest": digest}))

    def in_force(self, owner: str, digest: str) -> InForce | None:
        """What holds of an app; None where it never declared anything."""
        rows = self._sql.rows(IN_FORCE, {"owner": owner, "digest": digest})
        return InForce(*rows[0]) if rows else None

    def declared(self, owner: str) -> Rows:
        """The limits that an app has in force, in the order of the columns that its words have."""
        return self._sql.rows(DECLARED, {"owner": check.text("owner", owner)})

    def forget(self, *, for_s: float = FORGOTTEN_AFTER_S) -> list[str]:
        """Forget apps that have not been heard of for so long; which."""
        rows = self._sql.rows(FORGET, {"for_s": check.seconds("for_s", for_s)})
        return [owner for (owner,) in rows]

    def disputed(self) -> list[Disputed]:
        """Keys of which apps declare different limits."""
        return [Disputed(*row) for row in self._sql.rows(DISPUTED, {})]

    def disputed_tasks(self) -> list[Disputed]:
        """Tasks of which apps declare different keys or locks."""
        return [Disputed(*row) for row in self._sql.rows(DISPUTED_TASKS, {})]
