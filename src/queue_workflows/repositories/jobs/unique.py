"""Enqueueing jobs only where none like them waits or runs, or changing those that wait instead.

    lock the keys ──> the job that has one ──is like it──> that one, changed if it waits ──> not created
                          │
                          └──is none any more: its key is free again──> insert

Such a job has its key as its `dedupe_key`, so the table's unique index holds where the lock does not: a
transaction with an older snapshot is refused as not serializable. A running job is never written to, as a
producer may take its time and the worker could not renew the lease: what takes its place has its key with its
id behind it, and is looked for there.

The server makes the keys, as it does for `qwf_enqueue`. Of several jobs of a call with one key each finds
what became of the one before; what differs goes in few statements.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, Self, TypeAlias

from queue_workflows.errors import PayloadError
from queue_workflows.repositories.jobs.bulk_insert import TRIES, Enqueued, swallowed
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.checks import Row
from queue_workflows.repositories.sql.connection import Statements
from queue_workflows.states import JOB_TERMINAL, JobStatus

# given: what was asked for, numbered. locks: one of each key, in one order for all producers, so that they
# wait and do not deadlock. taken: one enqueueing of a key at a time, until the transaction ends.
LOCK: Final = """
WITH given AS MATERIALIZED (
    SELECT number, task_name, COALESCE('unique:' || key, qwf_unique_key(alike, queue, args)) AS key
    FROM ROWS FROM (jsonb_to_recordset(%(jobs)s::jsonb) AS (
        task_name text, key text, alike text[], queue text, args jsonb
    )) WITH ORDINALITY AS given (task_name, key, alike, queue, args, number)
), locks AS MATERIALIZED (
    SELECT DISTINCT hashtextextended(concat_ws(' ', 'qwf unique', task_name, key), 0) AS lock
    FROM given ORDER BY lock
), taken AS MATERIALIZED (
    SELECT count(pg_advisory_xact_lock(lock) IS NULL) AS number FROM locks
)
SELECT given.key FROM given CROSS JOIN taken WHERE taken.number > 0 ORDER BY given.number
"""
# A statement of its own, so that it sees what the one before had to wait for. The LIMIT makes it a look-up
# for each key.
FIND: Final = """
SELECT wanted.number, job.id, job.status,
    COALESCE(job.created_at > statement_timestamp() - make_interval(secs => wanted.period_s), true)
FROM unnest(%(task_names)s::text[], %(keys)s::text[], %(periods_s)s::float8[])
    WITH ORDINALITY AS wanted (task_name, key, period_s, number)
CROSS JOIN LATERAL (
    SELECT id, status, created_at FROM ingest_jobs
    WHERE ingest_jobs.task_name = wanted.task_name AND ingest_jobs.dedupe_key = wanted.key
    LIMIT 1
) AS job
"""
# Of jobs that wait or are over; one that runs is its worker's.
FREE: Final = """
UPDATE ingest_jobs SET dedupe_key = NULL
WHERE id = ANY (%(ids)s::bigint[]) AND status <> 'running'
RETURNING id
"""
# One that waits for something else than time keeps on waiting for it.
REPLACE: Final = """
UPDATE ingest_jobs SET
    args = CASE WHEN %(with_args)s::boolean THEN %(args)s::jsonb ELSE args END,
    priority = CASE WHEN %(with_priority)s::boolean THEN %(priority)s::smallint ELSE priority END,
    run_at = CASE WHEN %(with_run_at)s::boolean AND hold_reason IS NULL
        THEN COALESCE(%(run_at)s::timestamptz, statement_timestamp()
            + make_interval(secs => COALESCE(%(delay_s)s::float8, 0))) ELSE run_at END,
    status = CASE WHEN %(with_run_at)s::boolean AND hold_reason IS NULL
            AND COALESCE(%(run_at)s::timestamptz, statement_timestamp()
                + make_interval(secs => COALESCE(%(delay_s)s::float8, 0))) > statement_timestamp()
        THEN 'scheduled' ELSE status END
WHERE id = %(id)s::bigint AND status IN ('queued', 'scheduled')
RETURNING id
"""
# Each is a lock of the server's until the transaction ends, and it has some thousands for all.
MOST: Final = 2000
REPLACEABLE: Final = ("args", "run_at", "priority")
_STATES: Final = {
    "queued": (JobStatus.QUEUED, JobStatus.SCHEDULED),
    **{str(status): (status,) for status in (JobStatus.RUNNING, *sorted(JOB_TERMINAL))},
}


@dataclass(frozen=True, slots=True)
class Unique:
    """Which other job of a task makes a new one needless, and what the new one changes in it.

    `by` says what is alike: `args`, an argument as in `args.order`, `queue`, or several of these; or `key` is
    a word of your own. A job counts while it is in one of `states` (`queued` is any that waits, also for
    later), and was enqueued within `period` seconds, if one is given. Of one that still waits `replace` gives
    it the new args, due time (`run_at`) or priority.
    """

    by: Sequence[str] = ("args",)
    key: str | None = None
    period: timedelta | float | None = None
    states: Collection[str] = ("queued", "running")
    replace: Collection[str] = ()

    def __post_init__(self) -> None:
        if self.key is not None:
            check.text("key", self.key, max_bytes=check.KEY_BYTES // 2)
        elif isinstance(self.by, str) or not self.by or not all(map(_is_alike, self.by)):
            raise PayloadError(
                f"unique by {self.by!r:.80} is none of args, args.NAME, queue",
                path="by",
                advice="as in Unique(by=('args.order',)), or give a key=… of your own",
            )
        _check_words("states", self.states, tuple(_STATES))
        _check_words("replace", self.replace, REPLACEABLE, may_be_none=True)
        if self.period_s is not None:
            check.seconds("period", self.period_s)

    @property
    def period_s(self) -> float | None:
        """The period in seconds."""
        return self.period.total_seconds() if isinstance(self.period, timedelta) else self.period

    @property
    def statuses(self) -> frozenset[JobStatus]:
        """The states of rows in which a job counts."""
        return frozenset(status for name in self.states for status in _STATES[name])


def unique_of(given: object) -> Unique:
    """What a `Unique` is in JSON, as `qwf_enqueue` takes it: an object of its fields."""
    names = {each.name for each in fields(Unique)}
    if not isinstance(given, Mapping) or not names.issuperset(given):
        raise PayloadError(
            f"unique {given!r:.80} is no object of {', '.join(sorted(names))}",
            path="unique",
            advice='as in {"by": ["args.order"], "states": ["queued"]}',
        )
    return Unique(**given)


class UniqueRow(tuple[Any, ...]):
    """The row of a job that is to be unique."""

    unique: Unique

    @classmethod
    def of(cls, row: Row, unique: Unique) -> Self:
        """The row with what it says of other jobs."""
        made = cls(row)
        made.unique = unique
        return made


class Wish(NamedTuple):
    """What a new job would be, checked: the args as JSON."""

    unique: Unique
    task_name: str
    queue: str
    args: str
    priority: int
    run_at: datetime | None
    delay_s: float | None


class _Found(NamedTuple):
    id: int
    status: str
    is_recent: bool


def check_alone(unique: Unique | None, dedupe_key: str | None) -> None:
    """Refuse a job with two keys."""
    if unique is not None and not isinstance(unique, Unique):
        raise PayloadError(
            f"unique {unique!r:.80} is no Unique", path="unique", advice="as in unique=Unique()"
        )
    if unique is not None and dedupe_key is not None:
        raise PayloadError(
            "both dedupe_key and unique are given", path="unique", advice="Unique(key=…) takes a key of yours"
        )


# Inserts those jobs, by their numbers, with these keys, and says what became of each.
Insert: TypeAlias = Callable[[Mapping[int, str]], Mapping[int, Enqueued]]


def enqueue_unique(statements: Statements, wishes: Sequence[Wish], insert: Insert) -> list[Enqueued]:
    """Insert each, or find the job that makes it needless, changed as its `unique` says; in their order."""
    if len(wishes) > MOST:
        raise PayloadError(
            f"{len(wishes):,} unique jobs are more than the {MOST:,} that one call takes",
            path="jobs",
            advice="hand them over in parts, and commit between the calls",
        )
    keys = _locked_keys(statements, wishes)
    done: dict[int, Enqueued] = {}
    left, tries = list(range(len(wishes))), dict.fromkeys(range(len(wishes)), TRIES)
    while left:
        turn = sorted({(wishes[at].task_name, keys[at]): at for at in reversed(left)}.values())
        free = _standing(statements, [(at, wishes[at], keys[at]) for at in turn], done)
        if free:
            done.update(insert(free))
        for at in turn:
            tries[at] -= 1
            if at not in done and not tries[at]:
                raise swallowed()
        left = [at for at in left if at not in done]
    return [done[at] for at in range(len(wishes))]


def _locked_keys(statements: Statements, wishes: Sequence[Wish]) -> list[str]:
    # Args are JSON already, and needed only where the key is made of them.
    texts = []
    for wish in wishes:
        said = {"task_name": wish.task_name, "key": wish.unique.key, "queue": wish.queue}
        text = json.dumps(said | {"alike": list(wish.unique.by)})
        texts.append(text if wish.unique.key is not None else f'{text[:-1]}, "args": {wish.args}}}')
    return [key for (key,) in statements.rows(LOCK, {"jobs": f"[{','.join(texts)}]"})]


def _standing(
    statements: Statements, turn: Sequence[tuple[int, Wish, str]], done: dict[int, Enqueued]
) -> dict[int, str]:
    """Put what stands, changed as wanted, into `done`; the keys of what is to be inserted.

    A job that has begun or ended meanwhile is in neither, and to be looked at anew.
    """
    looking = {at: (wish, first) for at, wish, first in turn}
    passed: dict[int, dict[int, str]] = {at: {} for at in looking}
    keys = {at: first for at, _, first in turn}
    free: dict[int, str] = {}
    while keys:
        found = _find(statements, [(at, looking[at][0], key) for at, key in keys.items()])
        free.update((at, key) for at, key in keys.items() if at not in found)
        following: dict[int, str] = {}
        for at, job in found.items():
            wish, first = looking[at]
            if not (job.is_recent and job.status in wish.unique.statuses):
                passed[at][job.id] = keys[at]
                following[at] = f"{first}#{job.id}"
            elif _stands(statements, job, wish):
                done[at] = Enqueued(job.id, False)
        keys = following
    ids = [job_id for at in free for job_id in passed[at]]
    freed = {job_id for (job_id,) in statements.rows(FREE, {"ids": ids})} if ids else set()
    return {
        at: next((own for job_id, own in passed[at].items() if job_id in freed), key)
        for at, key in free.items()
    }


def _find(statements: Statements, wanted: Sequence[tuple[int, Wish, str]]) -> dict[int, _Found]:
    params = {
        "task_names": [wish.task_name for _, wish, _ in wanted],
        "keys": [key for _, _, key in wanted],
        "periods_s": [wish.unique.period_s for _, wish, _ in wanted],
    }
    return {wanted[number - 1][0]: _Found(*found) for number, *found in statements.rows(FIND, params)}


def _stands(statements: Statements, found: _Found, wish: Wish) -> bool:
    """Whether the job is still what it was found to be, changed if it waits and that is wanted."""
    replaced = wish.unique.replace
    if not replaced or found.status not in (JobStatus.QUEUED, JobStatus.SCHEDULED):
        return True
    params = {
        "id": found.id,
        "args": wish.args,
        "priority": wish.priority,
        "run_at": wish.run_at,
        "delay_s": wish.delay_s,
        **{f"with_{name}": name in replaced for name in REPLACEABLE},
    }
    return bool(statements.rows(REPLACE, params))


def _is_alike(name: object) -> bool:
    if not isinstance(name, str):
        return False
    return name in {"args", "queue"} or (name.startswith("args.") and name != "args.")


def _check_words(
    field: str, given: Collection[str], known: Sequence[str], *, may_be_none: bool = False
) -> None:
    wrong = [given] if isinstance(given, str) else [word for word in given if word not in known]
    if wrong or not (given or may_be_none):
        raise PayloadError(
            f"{field} {given!r:.80} must be some of {', '.join(known)}",
            path=field,
            advice="as in ('queued',)",
        )
