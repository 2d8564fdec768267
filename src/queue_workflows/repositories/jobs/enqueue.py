"""The public face of enqueueing: this host app's queues and settings, on the connection it hands in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple, TypedDict, Unpack

import psycopg

from queue_workflows.config import EngineConfig, current_config, effective_settings
from queue_workflows.errors import ConfigurationError, PayloadError
from queue_workflows.repositories.jobs.bulk_insert import Enqueued
from queue_workflows.repositories.jobs.durability import commit_so
from queue_workflows.repositories.jobs.ingest import IngestJobRepository
from queue_workflows.repositories.jobs.ingest_rows import IngestRows, NewIngestJob
from queue_workflows.repositories.jobs.unique import Unique, Wish, check_alone, enqueue_unique
from queue_workflows.repositories.sql.checks import PayloadLimits, due, exclusive_key, in_place
from queue_workflows.repositories.sql.configured_database import check_database, transaction_of
from queue_workflows.repositories.sql.connection import AsyncHandle, Handle, Statements, awaited
from queue_workflows.states import JobFamily
from queue_workflows.telemetry.instruments import count_sent, instruments
from queue_workflows.telemetry.names import BATCH_COUNT, MESSAGE_ID
from queue_workflows.telemetry.spans import UNTRACED, producing

ENQUEUE: Final = "enqueue"
_KEPT: Final = "_queue_workflows_single_jobs"
# Of tasks with typed arguments that this process knows: what checks and converts them.
_conversions: Final[dict[str, Callable[[dict[str, Any] | None], dict[str, Any]]]] = {}


class JobOptions(TypedDict, total=False):
    """What may be said of a job beside its task, its queue and its args."""

    reason: str | None
    dedupe_key: str | None
    priority: int
    run_at: datetime | None
    delay: timedelta | float | None
    limit_key: str | None
    max_attempts: int | None
    backoff_s: float | None
    timeout_s: float | None
    stall_timeout_s: float | None
    host_lock: str | None
    exclusive: str | None
    traceparent: str | None
    max_crashes: int | None
    at_most_once: bool | None


class _Standing(NamedTuple):
    """What holds for every job until the next `configure()`: looking it up takes longer than an INSERT."""

    config: EngineConfig
    limits: PayloadLimits
    max_attempts: int


class _Kept:
    """The standing of the configuration that was in force last."""

    def __init__(self) -> None:
        self._standing: _Standing | None = None

    def get(self) -> _Standing:
        config, standing = current_config(), self._standing
        if standing is None or standing.config is not config:
            settings = effective_settings()
            limits = PayloadLimits(settings.payload_max_bytes, settings.payload_max_depth)
            standing = self._standing = _Standing(config, limits, settings.max_attempts)
        return standing


_kept = _Kept()
# What a test has done after each enqueueing, on the caller's connection.
_after_enqueueing: Callable[[Handle], object] | None = None


@contextmanager
def after_enqueueing(do: Callable[[Handle], object]) -> Iterator[None]:
    """Have this done after each enqueueing of this process, in the caller's transaction; for tests."""
    global _after_enqueueing  # noqa: PLW0603 - the public verbs are functions of the process
    before, _after_enqueueing = _after_enqueueing, do
    try:
        yield
    finally:
        _after_enqueueing = before


def convert_args_of(task_name: str, convert: Callable[[dict[str, Any] | None], dict[str, Any]]) -> None:
    """Have the args of a task's jobs checked and converted also where it is enqueued by its name."""
    _conversions[task_name] = convert


def _converted(task_name: object, args: dict[str, Any] | None) -> dict[str, Any] | None:
    """What is no name or no args at all is refused with the other fields."""
    if not isinstance(task_name, str) or not (args is None or isinstance(args, dict)):
        return args
    convert = _conversions.get(task_name)
    return args if convert is None else convert(args)


def _converted_jobs(jobs: Iterable[NewIngestJob]) -> Iterator[NewIngestJob]:
    for number, job in enumerate(jobs):
        try:
            args = _converted(job.task_name, job.args)
        except PayloadError as refused:
            raise in_place(refused, "jobs", number) from None
        yield job if args is job.args else replace(job, args=args)


def current_limits() -> PayloadLimits:
    """How large a payload may be that this host app stores."""
    return _kept.get().limits


def current_rows() -> IngestRows:
    """What makes rows of jobs as this host app's settings have it."""
    standing = _kept.get()
    return IngestRows(standing.limits, standing.max_attempts)


def enqueue_ingest_job(
    task_name: str,
    *,
    queue: str,
    conn: Handle | None = None,
    args: dict[str, Any] | None = None,
    reason: str | None = None,
    dedupe_key: str | None = None,
    priority: int = 5,
    run_at: datetime | None = None,
    delay: timedelta | float | None = None,
    limit_key: str | None = None,
    max_attempts: int | None = None,
    backoff_s: float | None = None,
    timeout_s: float | None = None,
    stall_timeout_s: float | None = None,
    host_lock: str | None = None,
    exclusive: str | None = None,
    traceparent: str | None = None,
    max_crashes: int | None = None,
    at_most_once: bool | None = None,
    unique: Unique | None = None,
    durability: str | None = None,
) -> Enqueued:
    """Enqueue a job on one of this host app's queues, in the transaction of `conn`.

    Without `conn` that is a transaction of its own on the configured database, whatever else is open.
    Where a job like it waits or runs, as `unique` says, that one is the answer, and nothing is inserted.
    `exclusive` names what it has alone while it runs, among all machines: the key `exclusive:{name}`. After
    `max_crashes` of its own it has failed; one that is `at_most_once` has failed if its worker dies in it.
    `durability` is what `synchronous_commit` is in that transaction, in all of it, as in "remote_apply".
    """
    standing = _kept.get()
    if queue not in standing.config.ingest_queues:
        raise unknown_queue(queue, standing.config.ingest_queues)
    if _conversions:
        args = _converted(task_name, args)
    with producing(ENQUEUE, task_name, queue, JobFamily.INGEST) as traced, transaction_of(conn) as handle:
        commit_so(handle, durability)
        enqueue = _kept_repository(handle, standing).enqueue
        if unique is not None:
            enqueue = partial(_enqueue_unique, handle, standing, unique)
        enqueued = enqueue(
            task_name,
            queue=queue,
            args=args,
            reason=reason,
            dedupe_key=dedupe_key,
            priority=priority,
            run_at=run_at,
            delay=delay,
            limit_key=exclusive_key(exclusive, limit_key),
            max_attempts=max_attempts,
            backoff_s=backoff_s,
            timeout_s=timeout_s,
            stall_timeout_s=stall_timeout_s,
            host_lock=host_lock,
            traceparent=traceparent or traced.traceparent,
            max_crashes=max_crashes,
            at_most_once=at_most_once,
        )
        if traced is not UNTRACED:
            traced.note(MESSAGE_ID, str(enqueued.id))
        if _after_enqueueing is not None:
            _after_enqueueing(handle)
    if enqueued.created:
        count_sent(ENQUEUE, JobFamily.INGEST, [(queue, task_name)])
    return enqueued


def _enqueue_unique(
    conn: Handle,
    standing: _Standing,
    unique: Unique,
    task_name: str,
    *,
    queue: str,
    args: dict[str, Any] | None,
    priority: int,
    run_at: datetime | None,
    delay: timedelta | float | None,
    dedupe_key: str | None,
    **options: Any,
) -> Enqueued:
    check_alone(unique, dedupe_key)
    repository = _kept_repository(conn, standing)
    plain = current_rows().plain(task_name, queue, args, priority)
    wish = Wish(unique, task_name, queue, plain["args"], priority, *due(run_at, delay))

    def insert(keys: Mapping[int, str]) -> dict[int, Enqueued]:
        made = repository.enqueue(
            task_name,
            queue=queue,
            args=args,
            priority=priority,
            run_at=run_at,
            delay=delay,
            dedupe_key=keys[0],
            **options,
        )
        return {0: made}

    (enqueued,) = enqueue_unique(Statements(conn, "ingest_jobs"), [wish], insert)
    return enqueued


def enqueue_many(
    jobs: Iterable[NewIngestJob], *, conn: Handle | None = None, durability: str | None = None
) -> list[Enqueued]:
    """Enqueue many jobs in the transaction of `conn`; a bad one means that none is written.

    Without `conn` that is a transaction of its own on the configured database.
    `durability` is what `synchronous_commit` is in that transaction.
    What was seen of `jobs` is kept until the end, so hand over more than some hundred thousand in parts.
    """
    standing = _kept.get()
    known = standing.config.ingest_queues
    with producing(ENQUEUE, None, None, JobFamily.INGEST) as traced, transaction_of(conn) as handle:
        commit_so(handle, durability)
        repository = _repository(handle, standing)
        unique: dict[int, Unique] = {}
        jobs = _converted_jobs(jobs) if _conversions else jobs
        rows = repository.columns(jobs, traceparent=traced.traceparent, unique=unique)
        for queue in set(rows.values("queue")) - known:
            raise unknown_queue(queue, known)
        enqueued = repository.enqueue_columns(rows, unique)
        traced.note(BATCH_COUNT, len(enqueued))
        if _after_enqueueing is not None:
            _after_enqueueing(handle)
    if instruments() is not None:
        sent = zip(rows.values("queue"), rows.values("task_name"), enqueued, strict=True)
        count_sent(ENQUEUE, JobFamily.INGEST, [(queue, task) for queue, task, each in sent if each.created])
    return enqueued


async def aenqueue_ingest_job(
    task_name: str,
    *,
    queue: str,
    conn: AsyncHandle | None = None,
    args: dict[str, Any] | None = None,
    unique: Unique | None = None,
    durability: str | None = None,
    **options: Unpack[JobOptions],
) -> Enqueued:
    """`enqueue_ingest_job`, awaited, on an asynchronous connection."""

    def enqueue(usable: Handle | None) -> Enqueued:
        return enqueue_ingest_job(
            task_name, queue=queue, conn=usable, args=args, unique=unique, durability=durability, **options
        )

    return await awaited(conn, enqueue)


async def aenqueue_many(
    jobs: Iterable[NewIngestJob], *, conn: AsyncHandle | None = None, durability: str | None = None
) -> list[Enqueued]:
    """`enqueue_many`, awaited, on an asynchronous connection."""
    return await awaited(conn, lambda usable: enqueue_many(jobs, conn=usable, durability=durability))


def _kept_repository(conn: Handle, standing: _Standing) -> IngestJobRepository:
    """The repository of a psycopg connection for single jobs; its cursors have prepared their statement.

    Kept by the connection itself and not by a table of ours: a cursor holds its connection, so a table would
    keep open whatever the caller forgot to close.
    """
    kept: tuple[_Standing, IngestJobRepository] | None = getattr(conn, _KEPT, None)
    if kept is not None and kept[0] is standing:
        return kept[1]
    repository = _repository(conn, standing)
    if isinstance(conn, psycopg.Connection):
        setattr(conn, _KEPT, (standing, repository))
    return repository


def _repository(conn: Handle, standing: _Standing) -> IngestJobRepository:
    check_database(conn, "ingest_jobs")
    return IngestJobRepository(conn, payload_limits=standing.limits, max_attempts=standing.max_attempts)


def unknown_queue(queue: str, known: frozenset[str]) -> ConfigurationError:
    """What to say of a queue that none of this host app's workers would look at."""
    return ConfigurationError(
        f"{queue!r:.80} is none of this application's ingest queues ({', '.join(sorted(known))})",
        advice="name it in configure(ingest_queues=…), so that workers can be started for it",
    )
