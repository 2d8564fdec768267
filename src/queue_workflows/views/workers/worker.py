"""One worker: its last beat, the jobs that run in its name, and every wish that holds for it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg

from queue_workflows.errors import UnknownWorker
from queue_workflows.repositories.workers.code import CodeOfWorkers
from queue_workflows.repositories.workers.control import WorkerControlRepository
from queue_workflows.repositories.workers.heartbeats import HeartbeatRepository
from queue_workflows.repositories.workers.jobs_at_work import AtWorkRepository, JobAtWork
from queue_workflows.repositories.workers.obedience import Standing
from queue_workflows.views.workers.listing import code_named, code_of, wish_json, worker_json

if TYPE_CHECKING:
    from queue_workflows.models import WorkerControl

# Of more jobs than this the ones that run longest are shown.
MOST_JOBS: Final = 100


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker as of one moment; `jobs` are those that run longest, `wishes` begin with the one it obeys."""

    worker: Standing
    jobs: Sequence[JobAtWork]
    wishes: Sequence[WorkerControl]
    stale_s: float
    # What its code knows, if it tells.
    code: CodeOfWorkers | None = None


def worker(connection: psycopg.Connection[Any], worker_id: str, *, stale_s: float) -> WorkerView:
    """The worker of this id, or `UnknownWorker`."""
    found = HeartbeatRepository(connection).standing_of(worker_id)
    if found is None:
        raise UnknownWorker(worker_id)
    jobs = AtWorkRepository(connection).of([worker_id], limit=MOST_JOBS)
    wishes = WorkerControlRepository(connection).matching(found.host_label, found.queue)
    return WorkerView(found, jobs, wishes, stale_s, code_named(found, code_of(connection, [found])))


def json_of(seen: WorkerView) -> dict[str, Any]:
    """What `qwf workers show --json` prints."""
    return worker_json(seen.worker, seen.stale_s, seen.code) | {
        "jobs": [job_json(one) for one in seen.jobs],
        "wishes": [wish_json(wish) for wish in seen.wishes],
    }


def job_json(one: JobAtWork) -> dict[str, Any]:
    """One job that a worker has claimed and that is not over."""
    return {
        "job": one.name,
        "title": one.title,
        "queue": one.queue,
        "worker_id": one.worker_id,
        "attempt": one.attempt,
        "since": one.since,
        "lease_expires_at": one.lease_expires_at,
        "limit_key": one.limit_key,
        "host_lock": one.host_lock,
    }


def command_of(worker_id: str) -> str:
    """The command that shows this worker."""
    return shlex.join(["qwf", "workers", "show", worker_id])
