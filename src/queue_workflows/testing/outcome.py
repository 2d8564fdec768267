"""What became of a job, or of a run, that a test ran in its own process."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from json import loads
from typing import Any

from queue_workflows.errors import JobFailed
from queue_workflows.repositories.claims.end import Ending
from queue_workflows.repositories.sql.claimed_job import ClaimedIngestJob, ClaimedJob, ClaimedNodeJob
from queue_workflows.states import JobStatus, RunStatus


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """One attempt: what its row became, and what the function returned or raised.

    `name` is the task, or the node of a workflow, with its element as in `draw[2]`. A job that is tried again
    is `scheduled`, in `delay_s` seconds; one on hold says for what. `error` is what the row keeps of a
    failure, `exception` what was raised.
    """

    id: int
    name: str
    queue: str
    attempt: int
    status: JobStatus
    result: Any = None
    error: Mapping[str, Any] | None = None
    delay_s: float | None = None
    hold: str | None = None
    is_failure: bool = False
    exception: BaseException | None = field(default=None, repr=False, compare=False)

    def raise_failure(self) -> None:
        """Raise what the function raised, if this attempt failed."""
        if not self.is_failure:
            return
        if self.exception is not None:
            raise self.exception
        raise JobFailed(f"{self.name} (job {self.id})", None if self.error is None else dict(self.error))


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """A run that a test took as far as it goes: `jobs` are its attempts in the order in which they ran.

    `waited` is how far the clock was moved for it. A run that is not over waits for answers: `waits_for`
    names the nodes.
    """

    id: uuid.UUID
    status: RunStatus
    outputs: Mapping[str, Any] | None
    error: str | None
    nodes: Mapping[str, str]
    jobs: tuple[JobOutcome, ...]
    waited: timedelta
    waits_for: tuple[str, ...] = ()

    def results(self, node: str) -> list[Any]:
        """What the attempts of a node returned, in the order in which they ran."""
        return [
            job.result
            for job in self.jobs
            if job.name.partition("[")[0] == node and job.status is JobStatus.COMPLETED
        ]


def outcome_of(
    job: ClaimedJob, ending: Ending, status: JobStatus, exception: BaseException | None
) -> JobOutcome:
    """What an attempt came to, by the ending that was written for it."""
    return JobOutcome(
        id=job.id,
        name=name_of(job),
        queue=job.queue,
        attempt=job.attempt,
        status=status,
        result=None if ending.result is None else loads(ending.result),
        error=None if ending.error is None else loads(ending.error),
        delay_s=ending.delay_s if status is JobStatus.SCHEDULED else None,
        hold=": ".join(filter(None, (ending.hold_reason, ending.hold_key))) or None,
        is_failure=ending.counts or ending.status is JobStatus.FAILED,
        exception=exception,
    )


def name_of(job: ClaimedJob) -> str:
    """A job's task, or its node and element."""
    if isinstance(job, ClaimedIngestJob):
        return job.task_name
    assert isinstance(job, ClaimedNodeJob)  # noqa: S101 - there are two families
    return job.node_id if job.map_index < 0 else f"{job.node_id}[{job.map_index}]"
