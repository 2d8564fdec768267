"""Ingest jobs as rows to insert: every value checked, without a connection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import lru_cache, partial
from itertools import islice
from operator import attrgetter, itemgetter
from typing import Any, Final

from queue_workflows.config import RESERVED_QUEUES
from queue_workflows.errors import ConfigurationError, PayloadError
from queue_workflows.models.rules import MAX_ATTEMPTS
from queue_workflows.payload import longest_small, small_text
from queue_workflows.repositories.jobs.bulk_insert import BulkTable
from queue_workflows.repositories.jobs.unique import Unique, UniqueRow, check_alone
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.checks import PayloadLimits
from queue_workflows.repositories.sql.columns import CHUNK_ROWS, Columns
from queue_workflows.settings import check_queue_name

# wanted: the keys that were taken, numbered in the caller's order. taken: the job that has one; the LIMIT
# makes it a look-up per key, where without statistics a join would read the whole table.
FIND_MANY: Final = """
SELECT wanted.number, taken.id
FROM unnest(%(task_name)b::text[], %(dedupe_key)b::text[])
    WITH ORDINALITY AS wanted (task_name, dedupe_key, number)
CROSS JOIN LATERAL (
    SELECT id FROM ingest_jobs
    WHERE ingest_jobs.task_name = wanted.task_name AND ingest_jobs.dedupe_key = wanted.dedupe_key
    LIMIT 1
) AS taken
"""
BULK: Final = BulkTable(
    name="ingest_jobs",
    columns=(
        ("task_name", "text"),
        ("queue", "text"),
        ("reason", "text"),
        ("args", "jsonb"),
        ("dedupe_key", "text"),
        ("priority", "smallint"),
        ("limit_key", "text"),
        ("max_attempts", "smallint"),
        ("backoff_s", "float8"),
        ("timeout_s", "float8"),
        ("stall_timeout_s", "float8"),
        ("host_lock", "text"),
        ("traceparent", "text"),
        ("run_at", "timestamptz"),
        ("delay_s", "float8"),
        ("max_crashes", "smallint"),
        ("at_most_once", "boolean"),
    ),
    key=("task_name", "dedupe_key"),
    key_where="WHERE dedupe_key IS NOT NULL",
    find=FIND_MANY,
)
# What may be left out, each with its check.
_OPTIONS: Final[tuple[tuple[str, Callable[[str, Any], Any]], ...]] = (
    ("reason", partial(check.text, max_bytes=check.TEXT_BYTES)),
    ("dedupe_key", partial(check.text, max_bytes=check.KEY_BYTES)),
    ("limit_key", lambda _, key: check.limit_key(key)),
    ("max_attempts", partial(check.whole, at_least=1, at_most=check.SMALLINT_MAX)),
    ("backoff_s", partial(check.seconds_or_none, zero=True)),
    ("timeout_s", check.seconds),
    ("stall_timeout_s", check.seconds),
    ("host_lock", check.host_lock),
    ("traceparent", partial(check.text, max_bytes=check.KEY_BYTES)),
    ("max_crashes", partial(check.whole, at_least=1, at_most=check.SMALLINT_MAX)),
    ("at_most_once", check.flag),
)
# What every job says, and what is put in for it, in the order of `plain_texts`.
PLAIN: Final = ("task_name", "queue", "args", "priority", "max_attempts")
NONE_GIVEN: Final[tuple[Any, ...]] = (None,) * len(_OPTIONS)
# What a job says beside its args.
SAID: Final = ("task_name", "queue", "priority", *(name for name, _ in _OPTIONS), "run_at", "delay")
_CHECKED: Final = SAID[:-2]
_said_by: Final = attrgetter(*SAID)
# Keys that differ from job to job are looked at all at once; so long they may be.
_LONGEST: Final = {"dedupe_key": check.KEY_BYTES, "limit_key": check.NAME_BYTES}
_FEW: Final = 64
_TEXTS: Final = frozenset({str, type(None)})
# What no job says.
_NOTHING: Final = object()
_ARGS_PLACE: Final = BULK.names.index("args")
_NOT_GIVEN: Final[dict[str, Any]] = dict.fromkeys(BULK.names) | {"at_most_once": False}
_DUE: Final = frozenset({"run_at", "delay"})


# Not frozen: to be so would make up most of what one costs, and there may be a million of them.
@dataclass(slots=True, kw_only=True)
class NewIngestJob:
    """A job to enqueue. `run_at` or `delay` puts it off; a taken `dedupe_key` makes enqueueing it a no-op.

    So does a job like it that waits or runs, as `unique` says.
    `exclusive` names what it has alone while it runs, among all machines: the key `exclusive:{name}`. After
    `max_crashes` of its own it has failed; one that is `at_most_once` has failed if its worker dies in it.
    """

    task_name: str
    queue: str
    args: dict[str, Any] | None = None
    reason: str | None = None
    dedupe_key: str | None = None
    priority: int = 5
    run_at: datetime | None = None
    delay: timedelta | float | None = None
    limit_key: str | None = None
    max_attempts: int | None = None
    backoff_s: float | None = None
    timeout_s: float | None = None
    stall_timeout_s: float | None = None
    host_lock: str | None = None
    exclusive: str | None = None
    traceparent: str | None = None
    max_crashes: int | None = None
    at_most_once: bool | None = None
    unique: Unique | None = None


class IngestRows:
    """Makes rows; `max_attempts` is for jobs that do not say."""

    def __init__(self, limits: PayloadLimits, max_attempts: int = MAX_ATTEMPTS) -> None:
        self._limits = limits
        self._max_attempts = check.whole("max_attempts", max_attempts, 1, check.SMALLINT_MAX)
        self._usual = _NOT_GIVEN | {"args": "{}", "priority": 5, "max_attempts": self._max_attempts}
        self._checks: dict[str, Callable[[str, Any], Any]] = {
            **dict(_OPTIONS),
            "task_name": check.text,
            "queue": lambda _, queue: ingest_queue(queue),
            "args": limits.json_object,
            "priority": partial(check.whole, at_least=0, at_most=9),
        }
        self._unsaid = dict.fromkeys(name for name, _ in _OPTIONS) | {
            "max_attempts": self._max_attempts,
            "at_most_once": False,
        }
        # Many lines of a file name the same task and queue.
        self._last_names: dict[str, object] = {"task_name": None, "queue": None}
        self._last_texts: tuple[tuple[object, ...], tuple[bytes, ...], tuple[bytes, ...]] = (
            (_NOTHING,) * 3,
            (),
            (),
        )
        self._last: tuple[tuple[object, ...], check.Row] = ((_NOTHING,) * 3, ())

    def row(self, job: NewIngestJob) -> check.Row:
        """The values of `BULK.columns`, each checked."""
        if job.unique is not None:
            check_alone(job.unique, job.dedupe_key)
            return UniqueRow.of(self.row(replace(job, unique=None)), job.unique)
        job = settled(job)
        options = (
            *(job.reason, job.dedupe_key, job.limit_key, job.max_attempts, job.backoff_s, job.timeout_s),
            *(job.stall_timeout_s, job.host_lock, job.traceparent, job.max_crashes, job.at_most_once),
        )
        if options == NONE_GIVEN and job.run_at is None and job.delay is None:
            return self._plain_row(job)
        checked = self.values(
            job.task_name, job.queue, job.args, job.priority, options, run_at=job.run_at, delay=job.delay
        )
        return tuple(checked.values())

    def of(self, given: Mapping[str, Any]) -> check.Row:
        """The values of `BULK.columns` from fields by name, task and queue among them; fast for a million."""
        values, last = self._usual.copy(), self._last_names
        if "exclusive" in given or "at_most_once" in given:
            given = _settled_words(given)
        for name, value in given.items():
            if name in last and type(value) is str and last[name] == value:
                values[name] = value
            elif value is not None and name not in _DUE:
                values[name] = checked = self._checks[name](name, value)
                if name in last:
                    last[name] = checked
        if not _DUE.isdisjoint(given):
            values["run_at"], values["delay_s"] = check.due(given.get("run_at"), given.get("delay"))
        return tuple(values.values())

    def own(self, args: Any, dedupe_key: Any) -> tuple[str, str | None]:
        """What jobs do not share, each checked."""
        key = None if dedupe_key is None else self._checks["dedupe_key"]("dedupe_key", dedupe_key)
        return self._limits.json_object("args", args), key

    def columns(
        self,
        jobs: Iterable[NewIngestJob],
        *,
        traceparent: str | None = None,
        unique: dict[int, Unique] | None = None,
    ) -> Columns:
        """The checked values of many jobs, column by column; `PayloadError` says which job is refused.

        `traceparent` is for those that have none, and `unique` is told of those that have one. The caller may
        change args after it handed them over, so their text is made at once; what else a job says stays what
        it is, and is looked at in the end.
        """
        parts: list[Columns] = []
        text_of, longest, coming = self._limits.json_object, longest_small(*self._limits), iter(jobs)
        while True:
            said: list[tuple[Any, ...]] = []
            texts: list[str] = []
            first = sum(part.count for part in parts)
            for given in islice(coming, CHUNK_ROWS):
                try:
                    job = given if given.exclusive is None and not given.at_most_once else settled(given)
                    # What `text_of` begins with; to call it would cost a third of it.
                    text = small_text(job.args)
                    if text is None or len(text) > longest:
                        text = text_of("args", job.args)
                    if given.unique is not None:
                        check_alone(given.unique, given.dedupe_key)
                        if unique is not None:
                            unique[first + len(texts)] = given.unique
                    texts.append(text)
                except PayloadError as refused:
                    raise check.in_place(refused, "jobs", first + len(texts)) from None
                said.append(_said_by(job))
            if not said:
                return Columns.joined(parts)
            parts.append(self.columns_of(said, texts, first=first, traceparent=traceparent))

    def columns_of(
        self,
        said: Sequence[tuple[Any, ...]],
        texts: Sequence[str],
        *,
        first: int = 0,
        traceparent: str | None = None,
    ) -> Columns:
        """Of what jobs say, in the order of `SAID`, and the checked JSON texts of their args.

        `first` is the number of the first, for the error that says which one is refused.
        """
        if len(said) > 1 and _are_alike(said):
            one = self.columns_of(said[:1], texts[:1], first=first, traceparent=traceparent).same
            alike = {name: value for name, value in one.items() if name != "args"}
            return Columns.reduced(len(texts), alike, {"args": texts})
        same, each = dict[str, Any](), dict[str, Sequence[Any]]()
        given: dict[str, Sequence[Any]] = dict(zip(SAID, zip(*said, strict=True), strict=True))
        if traceparent is not None:
            given["traceparent"] = [own or traceparent for own in given["traceparent"]]
        try:
            for name in _CHECKED:
                values = given[name]
                if name in self._unsaid and values.count(None) == len(values):
                    same[name] = self._unsaid[name]
                else:
                    each[name] = self._column(name, values)
            each["run_at"], each["delay_s"] = _due_columns(given["run_at"], given["delay"])
        except PayloadError:
            self._refuse(said, first)
            raise
        each["args"] = texts
        return Columns.reduced(len(texts), same, each)

    def _column(self, name: str, values: Sequence[Any]) -> Sequence[Any]:
        """Each value checked, and put in for a job that does not say it; what many say is looked at once."""
        checked, kinds = self._checks[name], set(map(type, values))
        unsaid = self._unsaid.get(name, _NOTHING)
        if kinds == {str} or (kinds <= _TEXTS and unsaid is None):
            distinct = set(values) - {None}
            if len(distinct) <= _FEW or not _are_sound_keys(name, distinct):
                for value in distinct:
                    checked(name, value)
            return values
        if len(kinds) == 1 and values.count(values[0]) == len(values):
            return [checked(name, values[0])] * len(values)
        optional = unsaid is not _NOTHING
        return [unsaid if optional and value is None else checked(name, value) for value in values]

    def _refuse(self, said: Sequence[tuple[Any, ...]], first: int) -> None:
        """Raise for the first job that says what cannot be."""
        for number, (task_name, queue, priority, *options, run_at, delay) in enumerate(said, first):
            try:
                self.values(task_name, queue, None, priority, tuple(options), run_at=run_at, delay=delay)
            except PayloadError as refused:
                raise check.in_place(refused, "jobs", number) from None

    def _plain_row(self, job: NewIngestJob) -> check.Row:
        """Many jobs differ in their args alone: what was checked for the last one is not checked again.

        By identity, for `True` equals 1 and is no priority.
        """
        last, row = self._last
        if not (job.task_name is last[0] and job.queue is last[1] and job.priority is last[2]):
            plain = self.plain(job.task_name, job.queue, None, job.priority)
            row = tuple((_NOT_GIVEN | plain).values())
            self._last = (job.task_name, job.queue, job.priority), row
        return (*row[:_ARGS_PLACE], self._limits.json_object("args", job.args), *row[_ARGS_PLACE + 1 :])

    def plain(self, task_name: str, queue: str, args: dict[str, Any] | None, priority: int) -> dict[str, Any]:
        """The values of what every job says, by their names, each checked."""
        return {
            "task_name": check.text("task_name", task_name),
            "queue": ingest_queue(queue),
            "args": self._limits.json_object("args", args),
            "priority": check.whole("priority", priority, 0, 9),
            "max_attempts": self._max_attempts,
        }

    def plain_texts(
        self, task_name: str, queue: str, args: dict[str, Any] | None, priority: int
    ) -> tuple[bytes, ...]:
        """The values of `plain` as the server reads them, in the order of `PLAIN`; see `_plain_row`."""
        last, before, after = self._last_texts
        if not (task_name is last[0] and queue is last[1] and priority is last[2]):
            texts = [_sent(value) for value in self.plain(task_name, queue, None, priority).values()]
            before, after = tuple(texts[:2]), tuple(texts[3:])
            self._last_texts = (task_name, queue, priority), before, after
        return (*before, self._limits.json_object("args", args).encode(), *after)

    def values(
        self,
        task_name: str,
        queue: str,
        args: dict[str, Any] | None,
        priority: int,
        options: tuple[Any, ...],
        *,
        run_at: datetime | None,
        delay: timedelta | float | None,
    ) -> dict[str, Any]:
        """The values by the names of `BULK.columns` and in their order; `options` are in that of `_OPTIONS`.

        What is not given costs a look and no check: most jobs give little, and their producers wait.
        """
        values = _NOT_GIVEN | self.plain(task_name, queue, args, priority)
        for (name, checked), value in zip(_OPTIONS, options, strict=True):
            if value is not None:
                values[name] = checked(name, value)
        if run_at is not None or delay is not None:
            values["run_at"], values["delay_s"] = check.due(run_at, delay)
        return values


def settled(job: NewIngestJob) -> NewIngestJob:
    """A job by columns: what it has alone is the key of a limit, and one that begins once is tried once."""
    if job.exclusive is not None:
        job = replace(job, exclusive=None, limit_key=check.exclusive_key(job.exclusive, job.limit_key))
    return replace(job, max_attempts=check.once(job.max_attempts)) if job.at_most_once else job


def _settled_words(given: Mapping[str, Any]) -> dict[str, Any]:
    words = dict(given)
    key = check.exclusive_key(words.pop("exclusive", None), words.get("limit_key"))
    if key is not None:
        words["limit_key"] = key
    if words.get("at_most_once"):
        words["max_attempts"] = check.once(words.get("max_attempts"))
    return words


def _are_alike(said: Sequence[tuple[Any, ...]]) -> bool:
    """Whether all jobs say the same, as most of a call do: looked at by whole jobs, not by each thing said.

    What is said must be of one kind too, for `True` equals 1 and is no priority.
    """
    one = said[0]
    return said.count(one) == len(said) and all(
        len(set(map(type, map(itemgetter(at), said)))) == 1
        for at, value in enumerate(one)
        if value is not None
    )


def _are_sound_keys(name: str, keys: Set[str]) -> bool:
    if name not in _LONGEST or not check.are_sound_texts(keys, _LONGEST[name]):
        return False
    return name != "limit_key" or "*" not in "".join(keys)


def _due_columns(run_at: Sequence[Any], delay: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    if run_at.count(None) == delay.count(None) == len(run_at):
        return run_at, delay
    due = [check.due(at, later) for at, later in zip(run_at, delay, strict=True)]
    return [at for at, _ in due], [later for _, later in due]


def ingest_queue(queue: str) -> str:
    """A queue that ingest jobs may use; which of them this host app has is for the public face to say."""
    _refuse_reserved(check.text("queue", queue))
    return queue


# Remembers that a name is right and hands none out: the first caller may have said it by an enum's member.
@lru_cache(maxsize=256)
def _refuse_reserved(queue: str) -> None:
    if check_queue_name(queue).lower() in RESERVED_QUEUES:
        raise ConfigurationError(
            f"the queue {queue!r} is reserved for node jobs", advice="use one of the host app's ingest queues"
        )


def _sent(value: str | int) -> bytes:
    """The value itself: `str()` of an enum's member is its name."""
    return value.encode() if isinstance(value, str) else int.__repr__(value).encode()
