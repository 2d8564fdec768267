"""The steps of durable functions: read when an attempt begins, and stored once each.

A row is written for a step that has ended, by an attempt that holds its job. The key decides between two
attempts that overlap all the same: the later one is told that the row was there.
"""

from __future__ import annotations

from collections.abc import Sequence
from json import loads
from typing import Any, Final, NamedTuple

from queue_workflows.repositories.sql.arrays import array, id_array, texts
from queue_workflows.repositories.sql.claimed_job import Fence
from queue_workflows.repositories.sql.connection import AsyncHandle, Handle, Statements
from queue_workflows.repositories.sql.families import FENCE, per_family
from queue_workflows.states import StepKind, StepStatus

# Of copied steps, which the code that comes next goes on with, whatever its version.
ANY_VERSION: Final = ""
# The one attempt of a job that holds it.
FENCED: Final = """job.id = %(job_id)s::bigint AND (job.attempt, job.claimed_by, job.status)
        IS NOT DISTINCT FROM (%(attempt)s::integer, %(claimed_by)s::text, 'running')"""
# In the order in which they were called.
STORED: Final = """
SELECT name, call, position, kind, status, beside, result::text, error::text, tries, version, child_id,
    extract(epoch FROM wake_at)::float8, extract(epoch FROM wake_at - statement_timestamp())::float8,
    extract(epoch FROM COALESCE(finished_at, started_at))::float8
FROM durable_steps
WHERE job_family = %(family)s::text AND job_id = %(job_id)s::bigint
ORDER BY position, name, call
"""
# Those of several jobs at once, each as `STORED` has them.
STORED_OF_EACH: Final = """
SELECT job_id, name, call, position, kind, status, beside, result::text, error::text, tries, version,
    child_id, extract(epoch FROM wake_at)::float8,
    extract(epoch FROM wake_at - statement_timestamp())::float8,
    extract(epoch FROM COALESCE(finished_at, started_at))::float8
FROM durable_steps
WHERE job_family = %(family)s::text AND job_id = ANY (%(job_ids)s::bigint[])
ORDER BY job_id, position, name, call
"""
# given: a row for each step, of any jobs. held: those of attempts that hold their jobs; no row is locked, as
# the key of a step decides. stored: what was not there, or waited. A step without a row in the answer is of
# an attempt that holds its job no more.
STORE: Final = per_family(
    """
WITH given AS MATERIALIZED (
    SELECT *, 'running' AS held FROM unnest(
        %(ids)s::bigint[], %(attempts)s::integer[], %(workers)s::text[], %(names)s::text[],
        %(calls)s::integer[], %(positions)s::integer[], %(kinds)s::text[], %(statuses)s::text[],
        %(beside)s::boolean[],
        %(results)s::text[], %(failures)s::text[], %(tries)s::integer[], %(versions)s::text[],
        %(children)s::bigint[], %(took)s::float8[], %(ended)s::float8[]
    ) AS given (id, attempt, claimed_by, name, call, position, kind, status, beside, result, error, tries,
        version, child_id, took_s, ended_at)
), held AS MATERIALIZED (
    SELECT given.* FROM given JOIN {table} AS job ON {holds}
), stored AS (
    INSERT INTO durable_steps AS step (job_family, job_id, name, call, position, kind, status, beside, result,
        error, tries, attempt, version, child_id, started_at, finished_at)
    SELECT '{name}', id, name, call, position, kind, status, beside, NULLIF(result, '')::jsonb,
        NULLIF(error, '')::jsonb, tries, attempt, NULLIF(version, ''), child_id,
        statement_timestamp() - make_interval(secs => took_s),
        COALESCE(to_timestamp(ended_at), statement_timestamp())
    FROM held
    ON CONFLICT (job_family, job_id, name, call) DO UPDATE SET
        status = excluded.status, result = excluded.result, error = excluded.error,
        attempt = excluded.attempt, finished_at = excluded.finished_at
    WHERE step.status = 'waiting'
    RETURNING job_id, name, call
)
SELECT held.id, held.name, held.call, stored.job_id IS NOT NULL,
    extract(epoch FROM statement_timestamp())::float8
FROM held LEFT JOIN stored ON (stored.job_id, stored.name, stored.call) = (held.id, held.name, held.call)
""",
    holds=FENCE,
)
# The job goes on from a copy of its first row; what an endless loop did in its rounds before is of no use.
BEGIN_ROUND: Final = per_family(
    """
WITH held AS MATERIALIZED (
    SELECT job.id FROM {table} AS job WHERE {fenced} FOR NO KEY UPDATE
), gone AS (
    DELETE FROM durable_steps
    WHERE job_family = '{name}' AND job_id = (SELECT id FROM held) AND kind <> 'round'
), begun AS (
    INSERT INTO durable_steps (job_family, job_id, name, call, position, kind, status, result, attempt,
        version, finished_at)
    SELECT '{name}', id, 'qwf:round', 1, 0, 'round', 'done', %(round)s::jsonb, %(attempt)s::integer,
        %(version)s::text, statement_timestamp()
    FROM held
    ON CONFLICT (job_family, job_id, name, call) DO UPDATE SET
        result = excluded.result, attempt = excluded.attempt, version = excluded.version,
        finished_at = excluded.finished_at
)
SELECT id FROM held
""",
    fenced=FENCED,
)


class StepRow(NamedTuple):
    """A stored step; times are seconds since the epoch, on the database's clock."""

    name: str
    call: int
    position: int
    kind: StepKind
    status: StepStatus
    beside: bool
    result: Any
    error: dict[str, Any] | None
    tries: int
    version: str | None
    child_id: int | None
    wake_at: float | None
    wakes_in_s: float | None
    at: float

    @property
    def key(self) -> tuple[str, int]:
        """What it is known by."""
        return self.name, self.call


class NewStep(NamedTuple):
    """A step to store: what it came to is checked JSON text; `took_s` is how long ago it began.

    `ended_at` is when it ended, by the server's clock, where that is not when it is stored.
    """

    fence: Fence
    name: str
    call: int
    position: int
    kind: StepKind
    status: StepStatus = StepStatus.DONE
    result: str | None = None
    error: str | None = None
    beside: bool = False
    tries: int = 1
    version: str | None = None
    child_id: int | None = None
    took_s: float = 0.0
    ended_at: float | None = None

    @property
    def key(self) -> tuple[int, str, int]:
        """Which one it is, of all jobs of a family."""
        return self.fence.job_id, self.name, self.call


class Stored(NamedTuple):
    """What became of a step: it is stored now, or was before; and when, by the database's clock."""

    is_new: bool
    at: float


class StepRepository:
    """The steps of jobs of one family, on the caller's connection."""

    def __init__(self, conn: Handle | AsyncHandle, family: str) -> None:
        self._family = family
        self._sql = Statements(conn, "durable_steps")

    def stored(self, job_id: int) -> list[StepRow]:
        """The steps of a job, in the order in which they were called."""
        return stored_rows(self._sql.rows(STORED, {"family": self._family, "job_id": job_id}))

    def stored_of(self, job_ids: Sequence[int]) -> dict[int, list[StepRow]]:
        """`stored` of several jobs, by their ids."""
        found: dict[int, list[StepRow]] = {job_id: [] for job_id in job_ids}
        for job_id, *row in self._sql.rows(
            STORED_OF_EACH, {"family": self._family, "job_ids": id_array(job_ids)}
        ):
            found[job_id] += stored_rows([row])
        return found

    def store(self, steps: Sequence[NewStep]) -> dict[tuple[int, str, int], Stored]:
        """Store steps by their keys; one that is missing in the answer is of an attempt that is over."""
        return stored_keys(self._sql.rows(STORE[self._family], store_params(steps)))

    def begin_round(self, fence: Fence, round_json: str, version: str | None) -> bool:
        """Forget the steps of a job and begin anew with this; whether its attempt still holds it."""
        params = {**fence._asdict(), "round": round_json, "version": version}
        return bool(self._sql.rows(BEGIN_ROUND[self._family], params))


def stored_rows(rows: Sequence[Sequence[Any]]) -> list[StepRow]:
    """Steps, as `STORED` brings them."""
    return [
        StepRow(
            name,
            call,
            position,
            StepKind(kind),
            StepStatus(status),
            beside,
            None if result is None else loads(result),
            None if error is None else loads(error),
            *rest,
        )
        for name, call, position, kind, status, beside, result, error, *rest in rows
    ]


def stored_keys(rows: Sequence[Sequence[Any]]) -> dict[tuple[int, str, int], Stored]:
    """What `STORE` says of each step."""
    return {(job_id, name, call): Stored(is_new, at) for job_id, name, call, is_new, at in rows}


def store_params(steps: Sequence[NewStep]) -> dict[str, Any]:
    """The arrays of some steps, in one order, so that two statements with the same rows do not deadlock."""
    steps = sorted(steps, key=lambda step: step.key)
    return {
        "ids": array(str(step.fence.job_id) for step in steps),
        "attempts": array(str(step.fence.attempt) for step in steps),
        "workers": texts(step.fence.claimed_by for step in steps),
        "names": texts(step.name for step in steps),
        "calls": array(str(step.call) for step in steps),
        "positions": array(str(step.position) for step in steps),
        "kinds": texts(step.kind.value for step in steps),
        "statuses": texts(step.status.value for step in steps),
        "beside": array("t" if step.beside else "f" for step in steps),
        "results": texts(step.result or "" for step in steps),
        "failures": texts(step.error or "" for step in steps),
        "tries": array(str(step.tries) for step in steps),
        "versions": texts(step.version or "" for step in steps),
        "children": array("NULL" if step.child_id is None else str(step.child_id) for step in steps),
        "took": array(repr(float(step.took_s)) for step in steps),
        "ended": array("NULL" if step.ended_at is None else repr(step.ended_at) for step in steps),
    }
