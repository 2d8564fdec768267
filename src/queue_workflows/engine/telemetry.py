"""What telemetry is told of jobs: a span around each that runs, and counts of batches.

Without an SDK a job or a batch costs a look-up here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from json import loads
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from queue_workflows import clock as time
from queue_workflows.config import RESERVED_QUEUES
from queue_workflows.engine.outcomes import (
    Abandoned,
    CancelledOutcome,
    Completed,
    Failed,
    OnHold,
    Outcome,
    Released,
    RetryLater,
    Skipped,
)
from queue_workflows.repositories.claims.end import Ending
from queue_workflows.repositories.jobs.enqueue import ENQUEUE
from queue_workflows.repositories.sql.claimed_job import ClaimedIngestJob, ClaimedJob, ClaimedNodeJob
from queue_workflows.states import JobFamily, JobStatus
from queue_workflows.telemetry import spans
from queue_workflows.telemetry.instruments import Instruments, count_sent, instruments
from queue_workflows.telemetry.names import MESSAGE_ID, OUTCOME, RUN
from queue_workflows.telemetry.provider import flush, is_silent, tracer

if TYPE_CHECKING:
    from queue_workflows.repositories.runs.outbox import LockedRun
    from queue_workflows.repositories.schedules.ticks import Inserted, Planned, TickRepository

LEASE_LOST: Final = "lease_lost"
_WORDS: Final[dict[type[Any], str]] = {
    Completed: "completed",
    Skipped: "skipped",
    Failed: "failed",
    RetryLater: "retry_after",
    OnHold: "held",
    CancelledOutcome: "cancelled",
    Released: "released",
    Abandoned: LEASE_LOST,
}


class Unobserved:
    """One job that runs, where nobody wants to know of it."""

    def __enter__(self) -> Unobserved:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def ended(self, outcome: Outcome) -> None:
        """How its function ended."""

    def cut_short(self, outcome: Outcome) -> None:
        """How it ends that will not end by itself, from another thread; its process goes."""

    def waited(self, metric: str, seconds: float) -> None:
        """It had to wait for something."""


UNOBSERVED: Final = Unobserved()


class _Observed(Unobserved):
    """One job that runs in a span that is current for its function, and is timed."""

    def __init__(self, job: ClaimedJob, counts: Instruments | None) -> None:
        self._job = job
        self._task = task_of(job)
        self._counts = counts
        self._span = spans.consuming(self._task, job.queue, job.family.value, job.traceparent, _known_of(job))

    def __enter__(self) -> _Observed:
        self._begun = time.perf_counter()
        self._traced = self._span.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._span.__exit__(kind, exc, trace)

    def ended(self, outcome: Outcome) -> None:
        word = _WORDS[type(outcome)]
        self._traced.note(OUTCOME, word)
        error = getattr(outcome, "error", None)
        if error is not None:
            self._traced.failed(loads(error))
        if self._counts is not None:
            job, ran_s = self._job, time.perf_counter() - self._begun
            self._counts.ran(job.queue, job.family.value, self._task, word, ran_s)
            if word == LEASE_LOST:
                self._counts.ended(job.queue, job.family.value, word, 1)

    def cut_short(self, outcome: Outcome) -> None:
        self.ended(outcome)
        self._traced.end()

    def waited(self, metric: str, seconds: float) -> None:
        if self._counts is not None:
            self._counts.waited(metric, self._job.queue, self._job.family.value, self._task, seconds)


def processing(job: ClaimedJob) -> Unobserved:
    """Around the function of a job; is told how that ended."""
    if is_silent():
        return UNOBSERVED
    counts = instruments()
    if counts is None and tracer() is None:
        return UNOBSERVED
    return _Observed(job, counts)


def cut_short(ends: Iterable[tuple[Unobserved, Outcome]], *, within_s: float) -> None:
    """Export how these jobs end, as their process ends with them."""
    for observed, outcome in ends:
        observed.cut_short(outcome)
    flush(within_s)


@contextmanager
def dispatching(run: LockedRun) -> Iterator[LockedRun]:
    """Around a batch of a run's events: the run, with the batch's span, if any, as its traceparent."""
    with spans.dispatching(run.workflow, run.traceparent, {RUN: str(run.id)}) as traced:
        yield run if traced.traceparent is None else replace(run, traceparent=traced.traceparent)


def count_claimed(jobs: Sequence[ClaimedJob]) -> None:
    """A batch that was claimed."""
    if not jobs or is_silent() or (counts := instruments()) is None:
        return
    waits: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
    for job in jobs:
        wait_s = max((job.started_at - job.run_at).total_seconds(), 0.0)
        waits[job.queue, job.family.value, task_of(job)].append(wait_s)
    for (queue, family, task), waits_s in waits.items():
        counts.claimed(queue, family, task, waits_s)


def count_ended(queue: str, endings: Sequence[Ending], accepted: Mapping[int, JobStatus]) -> None:
    """A batch of ends; `accepted` has what each job became if its end was accepted."""
    if is_silent() or (counts := instruments()) is None:
        return
    family = JobFamily.NODE if queue in RESERVED_QUEUES else JobFamily.INGEST
    words = Counter(word_of(ending, accepted.get(ending.fence.job_id)) for ending in endings)
    for word, count in words.items():
        counts.ended(queue, family.value, word, count)


def count_held(claimed: Sequence[ClaimedJob], count: int) -> None:
    """So many of a batch went on hold as it was claimed."""
    if not is_silent() and (counts := instruments()) is not None:
        counts.ended(claimed[0].queue, claimed[0].family.value, "held", count)


def count_lost(queues: Iterable[str], family: JobFamily) -> None:
    """Attempts that were taken from workers after their lease had lapsed, by their queues."""
    if is_silent() or (counts := instruments()) is None:
        return
    for queue, count in Counter(queues).items():
        counts.ended(queue, family.value, LEASE_LOST, count)


def task_of(job: ClaimedJob) -> str:
    """What the job is to run: the task's name, or the node's module."""
    if isinstance(job, ClaimedIngestJob):
        return job.task_name
    assert isinstance(job, ClaimedNodeJob)  # noqa: S101 - there are two families
    return job.node_module or job.kind


def word_of(ending: Ending, status: JobStatus | None) -> str:
    """What became of an attempt, as metrics and the log call it; `status` is None if its end was refused."""
    if status is None:
        return LEASE_LOST
    if status is JobStatus.QUEUED:
        return "released"
    if status is not JobStatus.SCHEDULED:
        return status.value
    if ending.hold_reason is not None:
        return "held"
    return "retried" if ending.counts else "retry_after"


def _known_of(job: ClaimedJob) -> dict[str, str | int]:
    """What a span may say, and no metric: it is of this one job."""
    known: dict[str, str | int] = {
        MESSAGE_ID: str(job.id),
        "qwf.attempt": job.attempt,
        "qwf.worker": job.claimed_by,
    }
    if isinstance(job, ClaimedNodeJob):
        known |= {RUN: str(job.run_id), "qwf.node": job.node_id}
    return known


def insert_ticks(ticks: TickRepository, planned: Sequence[Planned]) -> list[Inserted]:
    """Insert ticks, each with a span of its own; what another scheduler has inserted is told by that one."""
    if is_silent():
        return ticks.insert(planned)
    made: dict[tuple[str, datetime], spans.Traced] = {}
    traced: list[Planned] = []
    for one in planned:
        name, task, queue = one.schedule.name, one.schedule.task_name, one.schedule.queue
        for tick in one.ticks:
            made[name, tick.at] = spans.sending(task, queue, JobFamily.INGEST)
        with_context = [replace(tick, traceparent=made[name, tick.at].traceparent) for tick in one.ticks]
        traced.append(replace(one, ticks=with_context))
    inserted = ticks.insert(traced)
    for each in inserted:
        made[each].end()
    named = {one.schedule.name: (one.schedule.queue, one.schedule.task_name) for one in planned}
    count_sent(ENQUEUE, JobFamily.INGEST, [named[each.schedule] for each in inserted])
    return inserted
