"""Enqueueing a job only where none like it waits or runs, or changing the one that waits instead.

    lock the key ──> the job that has it ──is like it──> that one, changed if it waits ──> not created
                          │
                          └──is none any more: its key is free again──> insert

Such a job has its key as its `dedupe_key`, so the table's unique index holds where the lock does not: a
transaction with an older snapshot is refused as not serializable. A running job is never written to, as a
producer may take its time and the worker could not renew the lease: what takes its place has its key with its
id behind it, and is looked for there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from queue_workflows.errors import PayloadError
from queue_workflows.repositories.jobs.bulk_insert import TRIES, Enqueued, swallowed
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.states import JOB_TERMINAL, JobStatus

# One enqueueing of a key at a time, until the transaction ends.
LOCK: Final = """
SELECT pg_advisory_xact_lock(
    hashtextextended(concat_ws(' ', 'qwf unique', %(task_name)s::text, %(key)s::text), 0)
) IS NULL
"""
# A statement of its own, so that it sees what the one before had to wait for.
FIND: Final = """
SELECT id, status,
    COALESCE(created_at > statement_timestamp() - make_interval(secs => %(period_s)s::float8), true)
FROM ingest_jobs
WHERE task_name = %(task_name)s::text AND dedupe_key = %(key)s::text
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

    def key_of(self, queue: str, args: Mapping[str, Any]) -> str:
        """What jobs that are alike have in common."""
        if self.key is not None:
            return f"unique:{self.key}"
        parts = {name: queue if name == "queue" else _part(name, args) for name in self.by}
        text = json.dumps(parts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return f"unique:{','.join(self.by)[:64]}:{hashlib.sha256(text.encode()).hexdigest()}"


class Wish(NamedTuple):
    """What a new job would be, checked: the args as JSON."""

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


def enqueue_unique(conn: Handle, unique: Unique, wish: Wish, insert: Callable[[str], Enqueued]) -> Enqueued:
    """Insert by `insert(key)`, or find the job that makes it needless, changed as `unique` says."""
    statements = Statements(conn, "ingest_jobs")
    first = unique.key_of(wish.queue, json.loads(wish.args))
    given = {"task_name": wish.task_name, "period_s": unique.period_s}
    statements.rows(LOCK, given | {"key": first})
    for _ in range(TRIES):
        key, passed = first, dict[int, str]()
        while rows := statements.rows(FIND, given | {"key": key}):
            found = _Found(*rows[0])
            if found.is_recent and found.status in unique.statuses:
                if _stands(statements, found, unique, wish):
                    return Enqueued(found.id, False)
                # It has begun meanwhile, or is over: look at it anew.
                break
            passed[found.id] = key
            key = f"{first}#{found.id}"
        else:
            return insert(_first_free(statements, passed) or key)
    raise swallowed()


def _first_free(statements: Statements, passed: Mapping[int, str]) -> str | None:
    """Of the keys of jobs that count no more, in their order, the first that could be taken from its job."""
    if not passed:
        return None
    freed = {row[0] for row in statements.rows(FREE, {"ids": list(passed)})}
    return next((key for job_id, key in passed.items() if job_id in freed), None)


def _stands(statements: Statements, found: _Found, unique: Unique, wish: Wish) -> bool:
    """Whether the job is still what it was found to be, changed if it waits and that is wanted."""
    if not unique.replace or found.status not in (JobStatus.QUEUED, JobStatus.SCHEDULED):
        return True
    params = {
        "id": found.id,
        "args": wish.args,
        "priority": wish.priority,
        "run_at": wish.run_at,
        "delay_s": wish.delay_s,
        **{f"with_{name}": name in unique.replace for name in REPLACEABLE},
    }
    return bool(statements.rows(REPLACE, params))


def _is_alike(name: object) -> bool:
    if not isinstance(name, str):
        return False
    return name in {"args", "queue"} or (name.startswith("args.") and name != "args.")


def _part(name: str, args: Mapping[str, Any]) -> Any:
    return args if name == "args" else args.get(name.removeprefix("args."))


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
