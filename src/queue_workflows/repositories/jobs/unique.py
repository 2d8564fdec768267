"""Enqueueing jobs only where none like them waits or runs, or changing those that wait instead.

    lock the keys ──> the job that has one ──is like it──> that one, changed if it waits ──> not created
                          │
                          └──is none any more: its key is free again──> insert

Such a job has its key as its `dedupe_key`, so the table's unique index holds where the lock does not: a
transaction with an older snapshot is refused as not serializable. A running job is never written to, as a
producer may take its time and the worker could not renew the lease: what takes its place has its key with its
id behind it, and is looked for there.

All but the insert is done by a function of the server, `qwf_unique_place`, as for `qwf_enqueue`: a producer
needs no right to look at jobs. Of several jobs of a call with one key each finds what became of the one
before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, Self, TypeAlias

from queue_workflows.errors import PayloadError
from queue_workflows.repositories.jobs.bulk_insert import Enqueued
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.checks import Row
from queue_workflows.repositories.sql.connection import Statements
from queue_workflows.states import JOB_TERMINAL

# given: what was asked for, numbered, with its key. firsts: of each key the first, in one order for all
# producers, so that they wait and do not deadlock. The function locks the key until the transaction ends.
PLACES: Final = """
WITH given AS MATERIALIZED (
    SELECT number, task_name, queue, args, wanted, priority,
        COALESCE(run_at, statement_timestamp() + make_interval(secs => COALESCE(delay_s, 0))) AS due,
        qwf_unique_key(wanted, queue, args) AS key
    FROM ROWS FROM (jsonb_to_recordset(%(jobs)s::jsonb) AS (
        task_name text, queue text, args jsonb, wanted jsonb, priority smallint, run_at timestamptz,
        delay_s float8
    )) WITH ORDINALITY AS given (task_name, queue, args, wanted, priority, run_at, delay_s, number)
), firsts AS MATERIALIZED (
    SELECT DISTINCT ON (task_name COLLATE "C", key COLLATE "C") *
    FROM given ORDER BY task_name COLLATE "C", key COLLATE "C", number
)
SELECT firsts.number, place.found_id, place.free_key
FROM firsts
CROSS JOIN LATERAL qwf_unique_place(
    firsts.task_name, firsts.queue, firsts.args, firsts.wanted, firsts.due, firsts.priority
) AS place
"""
# Each is a lock of the server's until the transaction ends, and it has some thousands for all.
MOST: Final = 2000
REPLACEABLE: Final = ("args", "run_at", "priority")
# `queued` is any that waits.
_STATES: Final = ("queued", "running", *sorted(map(str, JOB_TERMINAL)))


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
        _check_words("states", self.states, _STATES)
        _check_words("replace", self.replace, REPLACEABLE, may_be_none=True)
        if self.period_s is not None:
            check.seconds("period", self.period_s)

    @property
    def period_s(self) -> float | None:
        """The period in seconds."""
        return self.period.total_seconds() if isinstance(self.period, timedelta) else self.period

    @property
    def as_json(self) -> dict[str, Any]:
        """As the server takes it."""
        alike = {"by": list(self.by)} if self.key is None else {"key": self.key}
        period = {} if self.period_s is None else {"period": self.period_s}
        return alike | period | {"states": list(self.states), "replace": list(self.replace)}


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
    texts = [_as_text(wish) for wish in wishes]
    done: dict[int, Enqueued] = {}
    left = list(range(len(wishes)))
    while left:
        free: dict[int, str] = {}
        asked = f"[{','.join(texts[at] for at in left)}]"
        for number, found_id, free_key in statements.rows(PLACES, {"jobs": asked}):
            at = left[number - 1]
            if found_id is None:
                free[at] = free_key
            else:
                done[at] = Enqueued(found_id, False)
        if free:
            done.update(insert(free))
        left = [at for at in left if at not in done]
    return [done[at] for at in range(len(wishes))]


def _as_text(wish: Wish) -> str:
    said = {
        "task_name": wish.task_name,
        "queue": wish.queue,
        "wanted": wish.unique.as_json,
        "priority": wish.priority,
        "run_at": None if wish.run_at is None else wish.run_at.isoformat(),
        "delay_s": wish.delay_s,
    }
    return f'{json.dumps(said)[:-1]}, "args": {wish.args}}}'


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
