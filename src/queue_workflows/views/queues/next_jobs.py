"""The next jobs of a queue in the claim's own order: which worker would take each, or what it will meet."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import psycopg

from queue_workflows.config import HOOKS_QUEUE
from queue_workflows.engine.explain.job import WORKING
from queue_workflows.repositories.claims.by_host_lock import lock_of
from queue_workflows.repositories.reports.next_jobs import Line, NextJobsRepository, QueuedJob
from queue_workflows.repositories.reports.queue_statistics import Attendance
from queue_workflows.repositories.workers.control import WorkerControlRepository
from queue_workflows.repositories.workers.heartbeats import HeartbeatRepository
from queue_workflows.repositories.workers.obedience import Standing
from queue_workflows.states import DesiredState, WorkerState
from queue_workflows.views.json_values import named
from queue_workflows.views.queues import wishes

if TYPE_CHECKING:
    from queue_workflows.models import WorkerControl

JOBS: Final = 50
# Any host, where a job or a wish names one.
_ANY: Final = "*"


class Meets(StrEnum):
    """What a job meets when its turn comes, as things are."""

    FREE_WORKER = "free_worker"
    BUSY_WORKERS = "busy_workers"
    NO_WORKER = "no_worker"
    WORKERS_STOPPED = "workers_stopped"
    LIMIT_FULL = "limit_full"
    HOST_LOCK = "host_lock"


@dataclass(frozen=True, slots=True)
class Server:
    """A live worker of the queue; `claims` says that nothing was asked of it that keeps it from claiming."""

    worker_id: str
    host_label: str
    state: str
    jobs_held: int
    claims: bool


@dataclass(frozen=True, slots=True)
class NextJob:
    """A job in line, what it meets, and that in words."""

    job: QueuedJob
    meets: Meets
    note: str


@dataclass(frozen=True, slots=True)
class NextJobs:
    """The head of a queue's line, the workers that serve it, and what operators asked of these."""

    queue: str
    jobs: Sequence[NextJob]
    workers: Sequence[Server]
    wishes: Sequence[WorkerControl]


def next_jobs(
    connection: psycopg.Connection[Any],
    queue: str,
    *,
    stale_s: float,
    limit: int = JOBS,
    there: Attendance | None = None,
) -> NextJobs:
    """The next jobs of a queue; read within one snapshot, so that jobs, limits and workers fit together.

    `there` are all workers and wishes, where the caller has read them.
    """
    line = NextJobsRepository(connection).line(queue, limit=limit)
    if there is None:
        standing: Sequence[Standing] = HeartbeatRepository(connection).standing(queue=queue)
        asked: Sequence[WorkerControl] = WorkerControlRepository(connection).blocking(_ANY, queue)
    else:
        standing = [one for one in there.workers if one.queue == queue]
        asked = [one for one in there.wishes if one.queue in (queue, _ANY)]
    workers = [_server(one) for one in standing if one.age_s <= stale_s and not one.is_quarantined]
    return NextJobs(queue, list(judged(line, workers, queue=queue)), workers, asked)


def judged(line: Line, workers: Sequence[Server], *, queue: str) -> Iterator[NextJob]:
    """Each job of a line with what it meets: what holds the job itself, or else how its workers stand."""
    used: Counter[str] = Counter()
    for job in line.jobs:
        if said := _held(job, line, used):
            yield NextJob(job, *said)
            continue
        if job.limit_key is not None:
            used[job.limit_key] += 1
        meets, note = _served(job, workers, queue)
        yield NextJob(job, meets, f"{note}, alone: a worker died while it ran" if job.suspect else note)


def json_of(found: NextJobs) -> dict[str, Any]:
    """What `qwf queue next --json` prints."""
    return {
        "queue": found.queue,
        "jobs": [
            {"job": one.job.name}
            | named(asdict(one.job), without=("id",))
            | {"meets": one.meets.value, "note": one.note}
            for one in found.jobs
        ],
        "workers": [asdict(one) for one in found.workers],
        "wishes": wishes.json_of(found.wishes),
    }


def command_of(queue: str, *, limit: int = JOBS) -> str:
    """The command that shows the line."""
    words = ["qwf", "queue", "next", queue]
    return shlex.join(words if limit == JOBS else [*words, "--limit", str(limit)])


def _server(one: Standing) -> Server:
    is_on = one.control is None or one.control.desired is DesiredState.ON
    return Server(
        one.worker_id, one.host_label, one.state.value, one.jobs_held, is_on and one.state in WORKING
    )


def _held(job: QueuedJob, line: Line, used: Counter[str]) -> tuple[Meets, str] | None:
    """What keeps the job itself, whichever worker claims it; those before it have taken their slots."""
    key, lock = job.limit_key, job.host_lock
    if key is not None and key in line.left and line.left[key] - used[key] <= 0:
        return Meets.LIMIT_FULL, f"the limit {key!r} is full, or will be by the jobs before it"
    holder = line.locks.get(lock_of(lock)) if lock is not None else None
    if holder is not None:
        return Meets.HOST_LOCK, f"the host lock {lock!r} is held by {holder.job} of {holder.worker_id}"
    return None


def _served(job: QueuedJob, workers: Sequence[Server], queue: str) -> tuple[Meets, str]:
    """How those stand that may claim the job."""
    host = job.pinned_host if queue == HOOKS_QUEUE and job.pinned_host != _ANY else None
    where = f" on {host}" if host is not None else ""
    there = [one for one in workers if host in (None, one.host_label)]
    claiming = [one for one in there if one.claims]
    free = [one for one in claiming if one.state != WorkerState.BUSY]
    if not there:
        return Meets.NO_WORKER, f"no live worker serves the queue{where}"
    if not claiming:
        return Meets.WORKERS_STOPPED, f"none of {len(there)} live workers{where} claims anything"
    if not free:
        all_of = "its one worker" if len(claiming) == 1 else f"all {len(claiming)} workers"
        is_are = "is" if len(claiming) == 1 else "are"
        return Meets.BUSY_WORKERS, f"{all_of}{where} {is_are} at work"
    names = free[0].worker_id if len(free) == 1 else f"one of {len(free)} workers{where}"
    return Meets.FREE_WORKER, f"{names} takes it"
