"""The public face of enqueueing: this host app's queues and settings, on the connection it hands in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

from queue_workflows.config import EngineConfig, current_config, effective_settings
from queue_workflows.errors import ConfigurationError
from queue_workflows.repositories.bulk import Enqueued
from queue_workflows.repositories.connection import Handle
from queue_workflows.repositories.fields import PayloadLimits
from queue_workflows.repositories.ingest_jobs import IngestJobRepository, NewIngestJob
from queue_workflows.settings import Settings


class _SettingsOfConfig:
    """The settings, looked up once per `configure()`, because that takes longer than an INSERT."""

    def __init__(self) -> None:
        self._known: tuple[EngineConfig, Settings] | None = None

    def get(self) -> Settings:
        config = current_config()
        if self._known is None or self._known[0] is not config:
            self._known = (config, effective_settings())
        return self._known[1]


_settings = _SettingsOfConfig()


def enqueue_ingest_job(
    task_name: str,
    *,
    queue: str,
    conn: Handle,
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
    traceparent: str | None = None,
) -> Enqueued:
    """Enqueue a job on one of this host app's queues, in the transaction of `conn`."""
    _check_known(queue, current_config().ingest_queues)
    return _repository(conn).enqueue(
        task_name,
        queue=queue,
        args=args,
        reason=reason,
        dedupe_key=dedupe_key,
        priority=priority,
        run_at=run_at,
        delay=delay,
        limit_key=limit_key,
        max_attempts=max_attempts,
        backoff_s=backoff_s,
        timeout_s=timeout_s,
        stall_timeout_s=stall_timeout_s,
        host_lock=host_lock,
        traceparent=traceparent,
    )


def enqueue_many(jobs: Iterable[NewIngestJob], *, conn: Handle) -> list[Enqueued]:
    """Enqueue many jobs in the transaction of `conn`; a bad one means that none is written.

    What was seen of `jobs` is kept until the end, so hand over more than some hundred thousand in parts.
    """
    known = current_config().ingest_queues

    def checked() -> Iterator[NewIngestJob]:
        for job in jobs:
            _check_known(job.queue, known)
            yield job

    return _repository(conn).enqueue_many(checked())


def _repository(conn: Handle) -> IngestJobRepository:
    settings = _settings.get()
    limits = PayloadLimits(settings.payload_max_bytes, settings.payload_max_depth)
    return IngestJobRepository(conn, payload_limits=limits, max_attempts=settings.max_attempts)


def _check_known(queue: str, known: frozenset[str]) -> None:
    if queue not in known:
        raise ConfigurationError(
            f"{queue!r} is none of this application's ingest queues ({', '.join(sorted(known))})",
            advice="name it in configure(ingest_queues=…), so that workers can be started for it",
        )
