"""Running one task's function as a worker would, without a database: the test of a task by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from json import loads
from typing import Any, Final, NoReturn

from queue_workflows import clock as time
from queue_workflows.config import effective_settings
from queue_workflows.engine.execution.context import JobContext
from queue_workflows.engine.execution.guards import HeldJob, budget_for, budget_of
from queue_workflows.engine.registry.ingest_task import IngestTask
from queue_workflows.engine.registry.tasks import current_tasks
from queue_workflows.errors import ConfigurationError
from queue_workflows.repositories.sql.checks import PayloadLimits
from queue_workflows.repositories.sql.claimed_job import ClaimedIngestJob
from queue_workflows.repositories.sql.families import INGEST
from queue_workflows.states import JobFamily
from queue_workflows.testing.job_runner import TestedJobRunner
from queue_workflows.testing.outcome import JobOutcome, outcome_of

_QUEUE: Final = "test"


def perform(
    task: IngestTask[..., Any] | str,
    args: Mapping[str, Any] | None = None,
    *,
    reason: str | None = None,
    attempt: int = 1,
    max_attempts: int | None = None,
    raises: bool = True,
) -> JobOutcome:
    """Run a task's function once, as a worker does: args and result go through JSON, and are checked.

    What the function raises is raised here, unless it is a verdict such as `Skip` or `RetryAfter`, which the
    outcome shows; with `raises=False` it shows failures too. There is no database: `ctx` knows of no limits.
    """
    name = task.name if isinstance(task, IngestTask) else task
    known = current_tasks().task_named(name)
    if known is None:
        raise ConfigurationError(
            f"there is no ingest task {name!r:.80}", advice="import the module that registers it"
        )
    settings = effective_settings()
    limits = PayloadLimits(settings.payload_max_bytes, settings.payload_max_depth)
    now = datetime.now(UTC)
    job = ClaimedIngestJob(
        id=1,
        queue=known.defaults.get("queue", _QUEUE),
        priority=5,
        position=1,
        run_at=now,
        generation=1,
        attempt=attempt,
        failures=attempt - 1,
        max_attempts=max_attempts or known.defaults.get("max_attempts") or settings.max_attempts,
        backoff_s=known.defaults.get("backoff_s"),
        crash_count=0,
        suspect=False,
        max_crashes=None,
        at_most_once=bool(known.defaults.get("at_most_once")),
        claimed_by=f"{settings.host_label}:{_QUEUE}:test",
        lease_expires_at=now,
        timeout_s=None,
        stall_timeout_s=None,
        host_lock=None,
        limit_key=None,
        cancel_requested_at=None,
        traceparent=None,
        created_at=now,
        started_at=now,
        task_name=name,
        reason=reason,
        args=loads(limits.json_object("args", known.converted(dict(args or {})))),
        dedupe_key=None,
        schedule_name=None,
        tick_at=None,
    )
    runner = TestedJobRunner(settings, connected=_no_database)
    context = JobContext(job, family=INGEST.title, make_durable=lambda *_: True)
    budget = budget_for(job, budget_of(job.queue, JobFamily.INGEST, settings))
    ending = runner.run(HeldJob(job, context, budget, time.monotonic(), math.inf))
    if ending is None:
        raise ConfigurationError(f"{name} says that it lost a lease, and here it has none")
    outcome = outcome_of(job, ending, ending.status, runner.raised)
    if raises:
        outcome.raise_failure()
    return outcome


def _no_database() -> NoReturn:
    raise ConfigurationError("perform() has no database", advice="enqueue the job and drain()")
