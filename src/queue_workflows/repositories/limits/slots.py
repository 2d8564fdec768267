"""Slots of keyed limits: leased rows that stay, so that nothing is counted and a crash leaks none.

A slot is (key, number), held until its lease is over and free after that; given back, its lease is over at
once. A key's slots are numbered from 0, and only numbers below its cap are taken, so that two takers at the
same time meet on a row: one locks it, the other skips it. Nobody waits for a lock of somebody else's.

Where a cap was lowered, slots above it may be held still. As many fewer of those below it are to be taken:
the highest `bound` for which `bound` and the slots held from there on come to no more than the cap. Each
taker stays below its bound, so however many take at once, no more than the cap are held.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

from queue_workflows.repositories.limits.in_force import CAP
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.arrays import array, fence_params, texts
from queue_workflows.repositories.sql.claimed_job import Fence
from queue_workflows.repositories.sql.connection import Handle, Rows, Statements
from queue_workflows.repositories.sql.families import ASYNCHRONOUSLY, per_family
from queue_workflows.states import JobFamily

# given: slots as they were taken. A slot's fence is that of its job and the moment at which it was taken, as
# one attempt may take the same one twice.
_GIVEN: Final = """given AS MATERIALIZED (
    SELECT * FROM unnest(
        %(keys)s::text[], %(slots)s::integer[], %(families)s::text[], %(ids)s::bigint[],
        %(attempts)s::integer[], %(workers)s::text[], %(since)s::timestamptz[]
    ) AS given (key, slot, family, job_id, attempt, claimed_by, since)
)"""
_FENCE: Final = """held.limit_key = given.key AND held.slot = given.slot
    AND (held.job_family, held.job_id, held.attempt, held.claimed_by, held.acquired_at)
        IS NOT DISTINCT FROM (given.family, given.job_id, given.attempt, given.claimed_by, given.since)
    AND held.lease_expires_at > '-infinity'"""


def _written(template: str) -> str:
    return (
        template.replace("{given}", _GIVEN)
        .replace("{fence}", _FENCE)
        .replace("{cap}", CAP.replace("{key}", "key"))
        .replace("{asynchronously}", ASYNCHRONOUSLY)
    )


# No EXISTS in these, which the planner may turn into a hash of all that is stored.
# want: one row per slot that is wanted. capped: each key with its cap, or the lower one that the caller
# brings. roomy: its bound, which differs from the cap only while slots above it are held. found: as many free
# slots as are wanted, locked. given: which job gets which slot. taken: unless all are wanted together and one
# is missing.
TAKE: Final = _written("""
WITH want AS MATERIALIZED (
    SELECT *, row_number() OVER (PARTITION BY key ORDER BY number) AS nth
    FROM unnest(
        %(keys)s::text[], %(mosts)s::integer[], %(families)s::text[], %(ids)s::bigint[],
        %(attempts)s::integer[], %(workers)s::text[]
    ) WITH ORDINALITY AS want (key, most, family, job_id, attempt, claimed_by, number)
), capped AS MATERIALIZED (
    SELECT key, wanted, LEAST(most, {cap}) AS cap
    FROM (SELECT key, count(*) AS wanted, min(most) AS most FROM want GROUP BY key) AS asked
), roomy AS MATERIALIZED (
    SELECT key, wanted, cap - CASE
        WHEN (
            SELECT true FROM limit_slots AS held
            WHERE held.limit_key = key AND held.slot >= cap AND held.lease_expires_at > statement_timestamp()
            LIMIT 1
        ) IS NULL THEN 0
        ELSE (
            SELECT count(*)::integer FROM (
                SELECT held.slot + row_number() OVER (ORDER BY held.slot DESC) AS reach
                FROM limit_slots AS held
                WHERE held.limit_key = key AND held.lease_expires_at > statement_timestamp()
            ) AS held WHERE reach > cap
        )
    END AS bound
    FROM capped WHERE cap IS NOT NULL
), found AS MATERIALIZED (
    SELECT roomy.key, free.slot, row_number() OVER (PARTITION BY roomy.key ORDER BY free.slot) AS nth
    FROM roomy CROSS JOIN LATERAL (
        SELECT slot FROM limit_slots
        WHERE limit_key = roomy.key AND slot < roomy.bound AND lease_expires_at <= statement_timestamp()
        ORDER BY slot
        LIMIT roomy.wanted
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS free
), given AS MATERIALIZED (
    SELECT want.*, capped.cap, found.slot
    FROM want JOIN capped USING (key) LEFT JOIN found USING (key, nth)
), taken AS (
    UPDATE limit_slots AS held SET
        job_family = given.family, job_id = given.job_id, attempt = given.attempt,
        claimed_by = given.claimed_by, acquired_at = statement_timestamp(),
        lease_expires_at = statement_timestamp() + make_interval(secs => %(lease_s)s::float8)
    FROM given
    WHERE held.limit_key = given.key AND held.slot = given.slot
        AND NOT (%(together)s::boolean AND EXISTS (
            SELECT FROM given AS lacking WHERE lacking.slot IS NULL AND lacking.cap IS NOT NULL
        )) AND {asynchronously}
    RETURNING given.number, held.slot, held.acquired_at
)
SELECT given.number, given.cap IS NULL, given.slot IS NOT NULL, taken.slot, taken.acquired_at,
    CASE WHEN given.slot IS NULL THEN roomy.bound - (
        SELECT count(*) FROM limit_slots AS stored
        WHERE stored.limit_key = given.key AND stored.slot < roomy.bound
    ) END, roomy.bound
FROM given LEFT JOIN taken USING (number) LEFT JOIN roomy USING (key)
ORDER BY given.number
""")
# opened: the first numbers that have no row yet, held by nobody. Another statement that opens the same waits
# until it is done.
OPEN: Final = """
INSERT INTO limit_slots (limit_key, slot, job_family, job_id, attempt, claimed_by, lease_expires_at)
SELECT
    lacking.key, opened.slot, lacking.family, lacking.job_id, lacking.attempt, lacking.claimed_by, '-infinity'
FROM unnest(
    %(keys)s::text[], %(bounds)s::integer[], %(counts)s::integer[], %(families)s::text[], %(ids)s::bigint[],
    %(attempts)s::integer[], %(workers)s::text[]
) AS lacking (key, bound, count, family, job_id, attempt, claimed_by)
CROSS JOIN LATERAL (
    SELECT slot FROM generate_series(0, lacking.bound - 1) AS slot
    WHERE (
        SELECT true FROM limit_slots AS stored
        WHERE stored.limit_key = lacking.key AND stored.slot = slot.slot
    ) IS NULL
    ORDER BY slot
    LIMIT lacking.count
) AS opened
ORDER BY lacking.key, opened.slot
ON CONFLICT (limit_key, slot) DO NOTHING
RETURNING slot
"""
RENEW: Final = _written("""
WITH {given}
UPDATE limit_slots AS held SET
    lease_expires_at = statement_timestamp() + make_interval(secs => %(lease_s)s::float8)
FROM given
WHERE {fence} AND {asynchronously}
RETURNING held.limit_key, held.slot
""")
FREE: Final = _written("""
WITH {given}
UPDATE limit_slots AS held SET lease_expires_at = '-infinity'
FROM given
WHERE {fence}
RETURNING held.limit_key, held.slot
""")
# For a process that is gone before an answer could come.
FREE_UNHEARD: Final = _written("""
WITH {given}
UPDATE limit_slots AS held SET lease_expires_at = '-infinity'
FROM given
WHERE {fence}
""")
# Of each want, what its attempt holds of its key.
HELD: Final = """
SELECT given.number, held.slot, held.acquired_at
FROM unnest(
    %(keys)s::text[], %(families)s::text[], %(ids)s::bigint[], %(attempts)s::integer[], %(workers)s::text[]
) WITH ORDINALITY AS given (key, family, job_id, attempt, claimed_by, number)
CROSS JOIN LATERAL (
    SELECT slot, acquired_at FROM limit_slots
    WHERE limit_key = given.key AND lease_expires_at > '-infinity'
        AND (job_family, job_id, attempt, claimed_by)
            IS NOT DISTINCT FROM (given.family, given.job_id, given.attempt, given.claimed_by)
) AS held
"""
_LEFT: Final = """
WITH left_behind AS MATERIALIZED (
    SELECT held.limit_key, held.slot, held.job_id, held.attempt, held.claimed_by, held.acquired_at
    FROM limit_slots AS held
    WHERE held.job_family = '{name}' AND {held_by} AND held.lease_expires_at > '-infinity'
        AND (
            SELECT true FROM {table} AS job
            WHERE job.id = held.job_id AND (job.attempt, job.claimed_by, job.status)
                IS NOT DISTINCT FROM (held.attempt, held.claimed_by, 'running')
        ) IS NULL
), locked AS MATERIALIZED (
    SELECT held.limit_key, held.slot
    FROM limit_slots AS held JOIN left_behind USING (limit_key, slot)
    WHERE held.job_family = '{name}' AND held.lease_expires_at > '-infinity'
        AND (held.job_id, held.attempt, held.claimed_by, held.acquired_at) IS NOT DISTINCT FROM
            (left_behind.job_id, left_behind.attempt, left_behind.claimed_by, left_behind.acquired_at)
    ORDER BY held.limit_key, held.slot
    FOR NO KEY UPDATE OF held SKIP LOCKED
)
UPDATE limit_slots AS held SET lease_expires_at = '-infinity'
FROM locked
WHERE held.limit_key = locked.limit_key AND held.slot = locked.slot
RETURNING held.limit_key
"""
# left_behind: slots of a worker for attempts that are over. locked: those of them that are held by the same
# attempts still; a statement that has one locked meanwhile is giving it back, or taking it for another.
FREE_LEFT_BY: Final = per_family(_LEFT, held_by="held.claimed_by = %(worker_id)s::text")
# Free for so long that a key is perhaps never used again.
FORGET: Final = """
DELETE FROM limit_slots
WHERE lease_expires_at < statement_timestamp() - make_interval(secs => %(for_s)s::float8)
    AND acquired_at < statement_timestamp() - make_interval(secs => %(for_s)s::float8)
RETURNING slot
"""


class Want(NamedTuple):
    """A slot of a key for a job; `most` is a cap of its own, where the lower one holds."""

    key: str
    family: JobFamily
    fence: Fence
    most: int | None = None


class Slot(NamedTuple):
    """A slot that is held, its holder, and since when: what renewing it and giving it back have to show.

    `most` is the cap of its own that it was taken with, for a worker that has to take it again.
    """

    key: str
    number: int
    family: JobFamily
    fence: Fence
    since: datetime
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of some wants, by their places: each is in exactly one of these.

    `unlimited` are for keys without any cap, which have no slots; `full` found none that was free; `spared`
    would have had one, but were wanted together with one that is full.
    """

    slots: dict[int, Slot] = field(default_factory=dict)
    unlimited: frozenset[int] = frozenset()
    full: frozenset[int] = frozenset()
    spared: frozenset[int] = frozenset()


class SlotRepository:
    """Slots on the caller's connection. Taking is a transaction of its own, or others wait for its end."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, "limit_slots")

    def take(
        self, wants: Sequence[Want], *, lease_s: float, together: bool = False, durable: bool = False
    ) -> Taken:
        """Take a slot for each want that finds a free one; all or none of them if `together`.

        Not to be `durable` is honoured in autocommit; a slot that a crash of the server forgets is lost.
        """
        if not wants:
            return Taken()
        params = _wanted(wants) | {
            "lease_s": check.seconds("lease_s", lease_s),
            "together": bool(together),
            "relaxed": not durable and self._sql.commits_each,
        }
        rows = self._sql.rows(TAKE, params)
        if self._opened(wants, rows):
            # Only for those that got none, as the others have theirs.
            again = [row[0] - 1 for row in rows if not row[1] and row[3] is None]
            more = self._sql.rows(TAKE, params | _wanted([wants[place] for place in again]))
            found = {again[row[0] - 1] + 1: row[1:] for row in more}
            rows = [(row[0], *found.get(row[0], row[1:])) for row in rows]
        return _taken(wants, rows)

    def held(self, wants: Sequence[Want]) -> list[Slot]:
        """The slots that these attempts hold of these keys, known to this process or not."""
        rows = self._sql.rows(HELD, _wanted(wants)) if wants else []
        by_place = [(wants[number - 1], slot, since) for number, slot, since in rows]
        return [Slot(want.key, slot, want.family, want.fence, since) for want, slot, since in by_place]

    def renew(self, slots: Sequence[Slot], *, lease_s: float, durable: bool = False) -> list[Slot]:
        """Extend leases; those that are still held."""
        if not slots:
            return []
        params = _held(slots) | {
            "lease_s": check.seconds("lease_s", lease_s),
            "relaxed": not durable and self._sql.commits_each,
        }
        return _among(slots, self._sql.rows(RENEW, params))

    def free(self, slots: Sequence[Slot]) -> list[Slot]:
        """Give slots back; those that were still held. To give one back twice frees nobody else's."""
        return _among(slots, self._sql.rows(FREE, _held(slots))) if slots else []

    def send_free(self, slots: Sequence[Slot]) -> None:
        """Give slots back in a pipeline, without waiting for the answer."""
        if slots:
            self._sql.send(FREE, _held(slots))

    def free_left_by(self, worker_id: str) -> set[str]:
        """Free a worker's slots for attempts that are over, windows among them; the keys that got room."""
        params = {"worker_id": check.text("worker_id", worker_id)}
        return {key for sql in FREE_LEFT_BY.values() for (key,) in self._sql.rows(sql, params)}

    def forget(self, *, for_s: float) -> int:
        """Delete slots that nobody has held for so long; how many."""
        return len(self._sql.rows(FORGET, {"for_s": check.seconds("for_s", for_s)}))

    def _opened(self, wants: Sequence[Want], rows: Rows) -> bool:
        """Whether there are slots now that had no row before."""
        lacking: dict[str, tuple[Want, int, int]] = {}
        for number, _, _, _, _, unopened, bound in rows:
            if unopened is not None and unopened > 0:
                want = wants[number - 1]
                count = lacking[want.key][2] + 1 if want.key in lacking else 1
                lacking[want.key] = (want, bound, min(count, unopened))
        if not lacking:
            return False
        ordered = [lacking[key] for key in sorted(lacking)]
        params = _wanted([want for want, _, _ in ordered]) | {
            "bounds": array(str(bound) for _, bound, _ in ordered),
            "counts": array(str(count) for _, _, count in ordered),
        }
        self._sql.rows(OPEN, params)
        return True


def _wanted(wants: Sequence[Want]) -> dict[str, Any]:
    return fence_params([want.fence for want in wants]) | {
        "keys": texts(check.limit_key(want.key) for want in wants),
        "mosts": array("NULL" if want.most is None else str(_most(want.most)) for want in wants),
        "families": array(want.family.value for want in wants),
    }


def _most(most: int) -> int:
    return check.whole("max", most, 0, check.INT_MAX)


def unheard_free(slots: Iterable[Slot]) -> tuple[str, dict[str, Any]]:
    """What frees these, for a process that asks it last, and is gone before it is answered."""
    return FREE_UNHEARD, _held(slots)


def _held(slots: Iterable[Slot]) -> dict[str, Any]:
    """In one order, so that statements with the same slots do not deadlock."""
    ordered = sorted(slots)
    return fence_params([slot.fence for slot in ordered]) | {
        "keys": texts(slot.key for slot in ordered),
        "slots": array(str(slot.number) for slot in ordered),
        "families": array(slot.family.value for slot in ordered),
        "since": array(f'"{slot.since.isoformat()}"' for slot in ordered),
    }


def _taken(wants: Sequence[Want], rows: Rows) -> Taken:
    slots: dict[int, Slot] = {}
    unlimited: set[int] = set()
    full: set[int] = set()
    spared: set[int] = set()
    for number, is_unlimited, is_found, slot, since, *_ in rows:
        place, want = number - 1, wants[number - 1]
        if is_unlimited:
            unlimited.add(place)
        elif slot is not None:
            slots[place] = Slot(want.key, slot, want.family, want.fence, since, want.most)
        else:
            (spared if is_found else full).add(place)
    return Taken(slots, frozenset(unlimited), frozenset(full), frozenset(spared))


def _among(slots: Sequence[Slot], rows: Rows) -> list[Slot]:
    found = {(key, number) for key, number in rows}
    return [slot for slot in slots if (slot.key, slot.number) in found]
