"""Emptying a host: nothing new is claimed there, and what its workers still hold is read from the jobs' rows.

A host is drained by an operator's wish for all of its queues, as any pause is: it holds for workers that are
there and for those that start, until it is taken back or runs out.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import psycopg

from queue_workflows.errors import UnknownHost
from queue_workflows.repositories.workers.control import WorkerControlRepository
from queue_workflows.repositories.workers.heartbeats import HeartbeatRepository
from queue_workflows.repositories.workers.jobs_at_work import AtWorkRepository, JobAtWork
from queue_workflows.repositories.workers.obedience import Obedience, Standing
from queue_workflows.states import DesiredState
from queue_workflows.views.workers.listing import wish_json
from queue_workflows.views.workers.worker import job_json

if TYPE_CHECKING:
    from queue_workflows.models import WorkerControl

REASON: Final = "drained"
# Of more jobs than this the ones that run longest are shown.
MOST_JOBS: Final = 100


@dataclass(frozen=True, slots=True)
class HostDrain:
    """How far a host is: `held` jobs run there, `jobs` are those that run longest.

    The workers that are `behind` are heard of and may still claim; `silent` ones are not heard of. Once the
    wish `is_over`, as it ran out or was taken back, workers claim again as they like.
    """

    host_label: str
    wish: WorkerControl
    held: int
    jobs: Sequence[JobAtWork]
    behind: Sequence[Standing]
    silent: Sequence[Standing]
    is_over: bool

    @property
    def is_empty(self) -> bool:
        """Whether no worker of the host holds a job, and none that lives will claim one."""
        return not self.held and not self.behind and not self.is_over


def ask_to_drain(
    connection: psycopg.Connection[Any],
    host_label: str,
    *,
    gives_back: bool,
    lasting: float | None,
    actor: str,
    reason: str | None,
) -> WorkerControl:
    """Ask all workers of a host to claim nothing more, and to end or give back their jobs.

    What is asked of it already for longer, and as strictly, is kept: it may be somebody else's, and workers
    need not hear of it once more.
    """
    if host_label == "*" or not _is_known(connection, host_label):
        raise UnknownHost(host_label)
    desired = DesiredState.OFF if gives_back else DesiredState.PAUSE
    control, wish = WorkerControlRepository(connection), _wish_of(connection, host_label)
    if wish is not None and wish.desired in (desired, DesiredState.OFF):
        until = None if lasting is None else control.now() + timedelta(seconds=lasting)
        if wish.expires_at is None or (until is not None and wish.expires_at >= until):
            return wish
    return control.set(host_label, "*", desired, actor=actor, reason=reason or REASON, expires_in=lasting)


def _is_known(connection: psycopg.Connection[Any], host_label: str) -> bool:
    if HeartbeatRepository(connection).standing(host_label):
        return True
    return AtWorkRepository(connection).count_on(host_label) > 0


def read_drain(connection: psycopg.Connection[Any], wish: WorkerControl, *, stale_s: float) -> HostDrain:
    """How far the host of this wish is.

    What is claimed is read after what workers say: one that obeys says so when it will claim nothing more.
    Whether the wish still holds is read last, as it says nothing of a moment after it.
    """
    host = wish.host_label
    workers = [one for one in HeartbeatRepository(connection).standing(host) if not one.is_quarantined]
    behind = [one for one in workers if _may_claim(one, wish.version)]
    at_work = AtWorkRepository(connection)
    jobs = at_work.on(host, limit=MOST_JOBS)
    return HostDrain(
        host,
        wish,
        at_work.count_on(host) if jobs else 0,
        jobs,
        [one for one in behind if one.age_s <= stale_s],
        [one for one in workers if one.age_s > stale_s],
        is_over=_wish_of(connection, host) is None,
    )


def _may_claim(worker: Standing, version: int) -> bool:
    """Whether it was not asked to stop claiming, or has not done so yet."""
    asked = worker.control
    if asked is None or asked.desired is DesiredState.ON:
        return True
    return worker.obedience(version) is not Obedience.OBEYED


def _wish_of(connection: psycopg.Connection[Any], host_label: str) -> WorkerControl | None:
    """The wish for all queues of this very host, if it holds."""
    for wish in WorkerControlRepository(connection).blocking(host_label):
        if (wish.host_label, wish.queue) == (host_label, "*"):
            return wish
    return None


def json_of(seen: HostDrain) -> dict[str, Any]:
    """What `qwf workers drain --json` prints."""
    return {
        "host_label": seen.host_label,
        "empty": seen.is_empty,
        "held": seen.held,
        "jobs": [job_json(one) for one in seen.jobs],
        "behind": [one.worker_id for one in seen.behind],
        "silent": [one.worker_id for one in seen.silent],
        "over": seen.is_over,
        "wish": wish_json(seen.wish),
    }


def command_of(host_label: str) -> str:
    """The command that drains this host and waits for it."""
    return shlex.join(["qwf", "workers", "drain", host_label, "--wait"])
