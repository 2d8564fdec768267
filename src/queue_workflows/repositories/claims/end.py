"""The end of a claim: every way in which a worker lets go of a job is one row of one statement.

                          ┌─ completed · skipped · failed · cancelled    the end of this generation
    running ── Ending ────┼─ queued      let go: uncounted, the place is kept
                          ├─ scheduled   a retry after its delay, or a hold with its reason and key
                          └─ awaiting_input   node jobs: parked without a worker

The holder of the attempt says what becomes of the row; the row has the last word: a job that somebody asked
to cancel never waits again, it ends as cancelled. A node's row and its dispatch event are one statement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache
from json import dumps
from operator import itemgetter
from typing import Any, Final, Generic, NamedTuple

from queue_workflows.errors import PayloadError
from queue_workflows.repositories.claims.claim import CLAIMING, NEXT, passing_by, with_claimed
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.arrays import _NOTHING, array, fence_params, texts
from queue_workflows.repositories.sql.claimed_job import C, Fence
from queue_workflows.repositories.sql.families import (
    FENCE,
    FENCE_OF_ALL,
    GIVEN_BACK,
    HOLDS_KEPT,
    Family,
    per_family,
)
from queue_workflows.states import MOVES, JobStatus

ERROR_TEXT: Final = 2_000
ERROR_TRACE: Final = 8_000
_BECOMES: Final = {title: moves.get(JobStatus.RUNNING, frozenset()) for title, moves in MOVES.items()}
_WITH_RESULT: Final = frozenset(
    {JobStatus.COMPLETED, JobStatus.SKIPPED, JobStatus.FAILED, JobStatus.AWAITING_INPUT}
)

# given: one row per ending; an empty text is none, and an array that is short is made up with NULL.
GIVEN: Final = """given AS MATERIALIZED (
    SELECT *, 'running' AS held, status IN ({terminal}) AS is_over FROM unnest(
        %(ids)s::bigint[], %(attempts)s::integer[], %(workers)s::text[], %(statuses)s::text[],
        %(results)s::text[], %(failures)s::text[], %(counted)s::boolean[], %(delays)s::float8[],
        %(reasons)s::text[], %(keys)s::text[], %(progress)s::text[]
    ) AS given (id, attempt, claimed_by, status, result, error, counted, delay_s, reason, key, progress)
)"""
# given: one row for all endings, which differ in their jobs alone; plain values, which the planner puts where
# they are used. As arrays they would cost the server a fifth of all that it does for a job, and a tenth of it
# for one.
GIVEN_ALIKE: Final = """given AS (
    SELECT %(attempt)s::integer AS attempt, %(claimed_by)s::text AS claimed_by,
        %(status)s::text AS status, %(result)s::text AS result, %(error)s::text AS error,
        %(counted)s::boolean AS counted, %(delay_s)s::float8 AS delay_s, %(reason)s::text AS reason,
        %(key)s::text AS key, %(progress)s::text AS progress, 'running' AS held,
        %(status)s::text IN ({terminal}) AS is_over
)"""
# What becomes of a row, which keeps its position and its last errors. What would not be over yet is, if
# somebody asked to cancel it.
ENDING: Final = """UPDATE {table} AS job SET
        status = CASE WHEN given.is_over OR job.cancel_requested_at IS NULL THEN given.status
            ELSE 'cancelled' END,
        claimed_by = CASE WHEN given.status NOT IN ('queued', 'scheduled')
            OR job.cancel_requested_at IS NOT NULL THEN job.claimed_by END,
        finished_at = CASE WHEN given.is_over OR job.cancel_requested_at IS NOT NULL
            THEN statement_timestamp() END,
        hold_reason = CASE WHEN job.cancel_requested_at IS NULL THEN NULLIF(given.reason, '') END,
        hold_key = CASE WHEN job.cancel_requested_at IS NULL THEN NULLIF(given.key, '') END,
        {result} = NULLIF(given.result, '')::jsonb, lease_expires_at = NULL,
        progress = COALESCE(NULLIF(given.progress, '')::jsonb, job.progress),
        run_at = COALESCE(statement_timestamp() + make_interval(secs => given.delay_s), job.run_at),
        failures = job.failures + given.counted::integer,
        errors = CASE WHEN COALESCE(given.error, '') = '' THEN job.errors
            ELSE jsonb_path_query_array(job.errors, '$[last - {errors_before} to last]') || (
                given.error::jsonb || jsonb_build_object(
                    'at', statement_timestamp(), 'attempt', job.attempt, 'worker_id', job.claimed_by)
            ) END
    FROM given"""
# ended: what the sender of the ending still held.
_END: Final = """
WITH {given}, ended AS (
    {ending}
    WHERE {held_by}
    RETURNING {ended}
){events}
SELECT {answer} FROM ended
"""
_ANSWER: Final = "id, status"
END: Final = per_family(_END, given=GIVEN, ending=ENDING, held_by=FENCE, answer=_ANSWER)
END_ALIKE: Final = per_family(_END, given=GIVEN_ALIKE, ending=ENDING, held_by=FENCE_OF_ALL, answer=_ANSWER)
# For a process that is gone before the answer comes: what does not fit into the server's buffer has nowhere
# to go, and undoes all.
END_UNHEARD: Final = per_family(_END, given=GIVEN, ending=ENDING, held_by=FENCE, answer="count(*)")
END_ALIKE_UNHEARD: Final = per_family(
    _END, given=GIVEN_ALIKE, ending=ENDING, held_by=FENCE_OF_ALL, answer="count(*)"
)
# What is given back leaves no error and no hold: its attempt is kept beside the holds, by its own statement.
_GIVEN_BACK: Final = f"""past_holds = CASE WHEN given.status <> 'queued' THEN job.past_holds
            ELSE COALESCE(jsonb_path_query_array(job.past_holds, '$[last - {HOLDS_KEPT - 2} to last]'), '[]')
            || jsonb_build_object('reason', '{GIVEN_BACK}', 'key', job.claimed_by,
                'since', job.started_at, 'until', statement_timestamp(), 'attempt', job.attempt, 'times', 1)
        END,
        failures = job.failures +"""


@lru_cache(maxsize=64)
def keeping_attempts(sql: str) -> str:
    """A statement that ends jobs, some of which are given back: what it keeps of those."""
    return sql.replace("failures = job.failures +", _GIVEN_BACK)


# ended: what the sender of the ending still held. claimed: the next jobs, beside the end of the last ones.
# Both parts see the table as it was before the statement, so what is given back here is not taken again here.
# What was accepted is one row, so that it comes back without a job too, and told once; a row for each job
# beside it.
AND_CLAIM: Final = """
WITH {given}, ended AS (
    {ending}
    WHERE {held_by}
    RETURNING {ended}
){events}, {next}, claimed AS (
    {claiming}
    RETURNING {claimed}
)
SELECT accepted.ids, accepted.statuses, claimed.*
FROM (SELECT array_agg(id) AS ids, array_agg(status) AS statuses FROM ended) AS accepted
LEFT JOIN claimed ON false
UNION ALL
SELECT NULL, NULL, claimed.* FROM claimed
"""


def any_and_claim(*, next: str | Mapping[str, str], claiming: str) -> Mapping[str, str]:  # noqa: A002 - a mark
    """The statement of each family for any endings, with the fragments of a claim."""
    sql = per_family(AND_CLAIM, given=GIVEN, ending=ENDING, held_by=FENCE, next=next, claiming=claiming)
    return with_claimed(sql)


def alike_and_claim(*, next: str | Mapping[str, str], claiming: str) -> Mapping[str, str]:  # noqa: A002 - a mark
    """The statement of each family for endings that are alike, with the fragments of a claim."""
    sql = per_family(
        AND_CLAIM, given=GIVEN_ALIKE, ending=ENDING, held_by=FENCE_OF_ALL, next=next, claiming=claiming
    )
    return with_claimed(sql)


END_AND_CLAIM: Final = any_and_claim(next=NEXT, claiming=CLAIMING)
END_ALIKE_AND_CLAIM: Final = alike_and_claim(next=NEXT, claiming=CLAIMING)
# For a worker that passes by what it does not know, as `CLAIM_BUT`.
END_AND_CLAIM_BUT: Final = passing_by(END_AND_CLAIM)
END_ALIKE_AND_CLAIM_BUT: Final = passing_by(END_ALIKE_AND_CLAIM)


# From so many ends on they are a statement of their own, in one transaction with the claim.
MANY: Final = 16


class Ending(NamedTuple):
    """What the holder of `fence` wants to become of its job; result, error, progress are checked JSON texts.

    `counts` is for what uses up `max_attempts`; `delay_s` goes with `scheduled`, and so do the hold's words.
    A hold without a delay lasts until the row's `run_at`, as the holder has set it.
    """

    fence: Fence
    status: JobStatus
    result: str | None = None
    error: str | None = None
    counts: bool = False
    delay_s: float | None = None
    hold_reason: str | None = None
    hold_key: str | None = None
    progress: str | None = None

    def saying(self, progress: str) -> Ending:
        """This ending, with `progress` as the job's last words."""
        return self._replace(progress=progress)


_FENCE, _JOB_ID = itemgetter(0), itemgetter(0)
_NO_WORDS: Final = dict.fromkeys(("results", "failures", "delays", "reasons", "keys", "progress"), _NOTHING)


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a batch: the statuses of those that were accepted, and the fences that do not hold."""

    statuses: dict[int, JobStatus] = field(default_factory=dict)
    lost: list[Fence] = field(default_factory=list)


class Unread(NamedTuple, Generic[C]):
    """The answer to an end and a claim: how many jobs it brings, and what reads it, which asks nothing."""

    jobs: int
    load: Callable[[], tuple[Ended, list[C]]]


# To look up an enum's member by its value is dear, and this is done for every job.
_STATUSES: Final = {status.value: status for status in JobStatus}


def accepted_of(endings: Sequence[Ending], rows: Iterable[Sequence[Any]]) -> Ended:
    """What the server says of a batch: the ids and statuses of those that it accepted."""
    statuses = {job_id: _STATUSES[status] for job_id, status in rows}
    if len(statuses) == len(endings):
        return Ended(statuses)
    return Ended(statuses, [each.fence for each in endings if each.fence.job_id not in statuses])


def error_entry(
    kind: str,
    message: str,
    *,
    error_type: str | None = None,
    traceback: str | None = None,
    **more: str | int | float | bool | None,
) -> str:
    """An entry of `errors` as JSON text, bounded; the statement adds time, attempt and worker."""
    entry: dict[str, Any] = {"kind": kind, "message": _shortened(message, ERROR_TEXT)}
    if error_type is not None:
        entry["type"] = _shortened(error_type, 200)
    if traceback is not None:
        # The end of it says what happened.
        entry["traceback"] = _shortened(traceback, ERROR_TRACE, keep_end=True)
    for name, value in more.items():
        if value is not None:
            entry[name] = _shortened(value, ERROR_TEXT) if isinstance(value, str) else value
    return dumps(entry, ensure_ascii=False, allow_nan=False)


def _shortened(text: str, size: int, *, keep_end: bool = False) -> str:
    """Text of at most `size` characters that Postgres takes, whatever an exception had to say."""
    clean = text.replace("\x00", "\\0").encode("utf-8", "backslashreplace").decode()
    if len(clean) <= size:
        return clean
    return "…" + clean[1 - size :] if keep_end else clean[: size - 1] + "…"


def is_better_apart(endings: Sequence[Ending]) -> bool:
    """Whether the claim beside so many ends is to see what others did while they were written.

    In one statement it looks for what was queued before, meets there what others have claimed since, and
    locks it before it sees that: their ends then wait for its commit. What is given back would be claimed
    again at once.
    """
    return len(endings) >= MANY and not gives_back(endings)


def given_params(family: Family, endings: Sequence[Ending]) -> tuple[bool, dict[str, Any]]:
    """Whether all that endings differ in is their jobs, and what the statement for such endings is given.

    Where it is not, or there are none, what the statement for any endings is given.
    """
    size = len(endings)
    if size:
        fences, *becoming = zip(*endings, strict=True)
        _, *claims = zip(*fences, strict=True)
        if all([column.count(column[0]) == size for column in (*claims, *becoming)]):  # noqa: C419 - short
            return True, alike_params(family, endings)
    return False, end_params(family, endings)


def end_statement(family: Family, endings: Sequence[Ending]) -> tuple[str, dict[str, Any]]:
    """What ends these, which are one or more."""
    alike, given = given_params(family, endings)
    sql = (END_ALIKE if alike else END)[family.name]
    return (keeping_attempts(sql) if gives_back(endings) else sql), given


def gives_back(endings: Sequence[Ending]) -> bool:
    """Whether one of these goes back into the queue at once."""
    return JobStatus.QUEUED in [each.status for each in endings]


def unheard_end(family: Family, endings: Sequence[Ending]) -> tuple[str, dict[str, Any]]:
    """`end_statement` for a process that asks it last, and is gone before it is answered."""
    alike, given = given_params(family, endings)
    sql = (END_ALIKE_UNHEARD if alike else END_UNHEARD)[family.name]
    return (keeping_attempts(sql) if gives_back(endings) else sql), given


def end_params(family: Family, endings: Sequence[Ending]) -> dict[str, Any]:
    """The arrays of a batch, in the order of ids, so that statements with the same rows do not deadlock.

    Where no ending has a value an empty array stands for a column of NULL: most columns of most batches.
    """
    ordered = sorted(endings, key=_FENCE)
    size = len(ordered)
    # By columns, as each of them is one array: nothing is done for each job that is done for all at once.
    columns = zip(*ordered, strict=True) if ordered else [()] * len(Ending._fields)
    fences, statuses, results, failures, counted, delays, reasons, keys, progress = columns
    params = fence_params(fences)
    _check_ids(set(map(_JOB_ID, fences)), size)
    is_bare = not any(counted) and delays.count(None) == size
    is_bare = is_bare and not (any(results) or any(failures) or any(reasons) or any(keys) or any(progress))
    is_one_status = bool(ordered) and statuses.count(statuses[0]) == size
    # Where they have nothing but one status, as most have it, the first is looked at for all of them.
    for ending in ordered[:1] if is_bare and is_one_status else ordered:
        _check(family, ending)
    params["statuses"] = array(statuses)
    if is_bare:
        return params | _NO_WORDS | {"counted": array(["f"] * size)}
    params["results"] = _column(results)
    params["failures"] = _column(failures)
    params["counted"] = array(["t" if counts else "f" for counts in counted])
    params["delays"] = (
        array(["NULL" if delay is None else repr(delay) for delay in delays])
        if any(delay is not None for delay in delays)
        else _NOTHING
    )
    params["reasons"] = _column(reasons)
    params["keys"] = _column(keys)
    params["progress"] = _column(progress)
    return params


def _check_ids(ids: Set[int], size: int) -> None:
    if len(ids) < size:
        raise PayloadError("a job has two endings in one batch", path="endings", advice="a job ends once")


def _column(values: Sequence[str | None]) -> str:
    return texts([value or "" for value in values]) if any(values) else _NOTHING


def alike_params(family: Family, endings: Sequence[Ending]) -> dict[str, Any]:
    """The values of `GIVEN_ALIKE`; numbers as text, which the driver types the same whatever their size."""
    ending = endings[0]
    _check(family, ending)
    ids = [each.fence.job_id for each in endings]
    _check_ids(set(ids), len(ids))
    _, attempt, claimed_by = ending.fence
    return {
        "ids": array(map(str, sorted(ids))),
        "attempt": str(attempt),
        "claimed_by": claimed_by,
        "status": ending.status.value,
        "result": ending.result or "",
        "error": ending.error or "",
        "counted": ending.counts,
        "delay_s": None if ending.delay_s is None else repr(ending.delay_s),
        "reason": ending.hold_reason or "",
        "key": ending.hold_key or "",
        "progress": ending.progress or "",
    }


def _check(family: Family, ending: Ending) -> None:
    status = ending.status
    if status not in _BECOMES[family.title]:
        raise PayloadError(f"a running {family.title} cannot become {status}", path="status")
    is_parked = status is JobStatus.SCHEDULED and ending.hold_reason is not None
    if (status is JobStatus.SCHEDULED) != (ending.delay_s is not None) and not is_parked:
        raise PayloadError("delay_s goes with `scheduled`, and only with it", path="delay_s")
    if ending.hold_reason is not None and status is not JobStatus.SCHEDULED:
        raise PayloadError("only a scheduled job is on hold", path="hold_reason")
    if ending.hold_key is not None and ending.hold_reason is None:
        raise PayloadError("hold_key goes with a hold_reason", path="hold_key")
    if ending.result is not None and status not in _WITH_RESULT:
        raise PayloadError(f"a job that becomes {status} has no result", path="result")
    if ending.delay_s is None and not is_parked:
        return
    check.seconds_or_none("delay_s", ending.delay_s, zero=True)
    check.text_or_none("hold_reason", ending.hold_reason)
    check.text_or_none("hold_key", ending.hold_key, max_bytes=check.KEY_BYTES)
