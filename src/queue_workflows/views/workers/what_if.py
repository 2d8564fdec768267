"""What a pause or a switch-off would do, read before it is asked; nothing is written.

`foretell` is pure: workers and wishes go in, and which would obey, what they would unload and which queues
would be left without a worker come out. `read_preview` adds the jobs that these workers hold.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg

from queue_workflows.repositories.reports.queue_depth import QueueDepth, QueueDepthRepository
from queue_workflows.repositories.workers.control import Control, WorkerControlRepository
from queue_workflows.repositories.workers.heartbeats import HeartbeatRepository
from queue_workflows.repositories.workers.jobs_at_work import AtWorkRepository, JobAtWork
from queue_workflows.repositories.workers.obedience import Standing
from queue_workflows.states import DesiredState, WorkerState

if TYPE_CHECKING:
    from queue_workflows.models import WorkerControl

JOBS_NAMED: Final = 10
_STRICTNESS: Final = {DesiredState.ON: 0, DesiredState.PAUSE: 1, DesiredState.OFF: 2}
# A worker that is on its way out claims nothing more, and a quarantined device is no worker.
_NEVER_CLAIMS: Final = frozenset({WorkerState.STOPPING, WorkerState.QUARANTINED})


@dataclass(frozen=True, slots=True)
class Unloaded:
    """A model that workers would unload, and the ones that keep it and go on claiming."""

    model: str
    by: list[str]
    still_loaded_by: list[str]


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a wish would change: `already` are asked for as much, `silent` are not heard of now."""

    obeying: list[Standing]
    already: list[str]
    silent: list[str]
    models: list[Unloaded]
    queues_left: list[str]


@dataclass(frozen=True, slots=True)
class WishPreview:
    """A forecast with the jobs of the workers that would obey; `first` are those that run longest."""

    host_label: str
    queue: str
    desired: DesiredState
    forecast: Forecast
    finished: int
    given_back: int
    failed: int
    first: Sequence[JobAtWork]
    left: Sequence[QueueDepth]


def foretell(
    workers: Sequence[Standing],
    wishes: Sequence[WorkerControl | Control],
    *,
    host: str,
    queue: str,
    desired: DesiredState,
    stale_s: float,
) -> Forecast:
    """What a wish for a host and queue, `*` for any, would change; it replaces the row of these two."""
    others = [wish for wish in wishes if (wish.host_label, wish.queue) != (host, queue)]
    now = {one.worker_id: _strictest(one, wishes) for one in workers}
    then = {
        one.worker_id: max(_strictest(one, others), _STRICTNESS[desired])
        if _matches(one, host, queue)
        else now[one.worker_id]
        for one in workers
    }
    there = [one for one in workers if _matches(one, host, queue) and not one.is_quarantined]
    live = [one for one in there if one.age_s <= stale_s]
    obeying = [one for one in live if then[one.worker_id] > now[one.worker_id]]
    claiming = [one for one in workers if one.age_s <= stale_s and one.state not in _NEVER_CLAIMS]
    return Forecast(
        obeying=obeying,
        already=[one.worker_id for one in live if then[one.worker_id] <= now[one.worker_id]],
        silent=[one.worker_id for one in there if one.age_s > stale_s],
        models=_unloaded(obeying, [one for one in claiming if not then[one.worker_id]]),
        queues_left=sorted(
            {one.queue for one in claiming if not now[one.worker_id]}
            - {one.queue for one in claiming if not then[one.worker_id]}
        ),
    )


def _matches(one: Standing, host: str, queue: str) -> bool:
    return host in ("*", one.host_label) and queue in ("*", one.queue)


def _strictest(one: Standing, wishes: Sequence[WorkerControl | Control]) -> int:
    return max(
        (
            _STRICTNESS[DesiredState(wish.desired)]
            for wish in wishes
            if _matches(one, wish.host_label, wish.queue)
        ),
        default=0,
    )


def _unloaded(obeying: Sequence[Standing], claiming: Sequence[Standing]) -> list[Unloaded]:
    by: Mapping[str, list[str]] = defaultdict(list)
    for one in obeying:
        for model in one.cached_models:
            by[str(model)].append(one.worker_id)
    return [
        Unloaded(model, by[model], [one.worker_id for one in claiming if model in one.cached_models])
        for model in sorted(by)
    ]


def read_preview(
    connection: psycopg.Connection[Any], *, host: str, queue: str, desired: DesiredState, stale_s: float
) -> WishPreview:
    """What it would do now: a pause lets jobs finish, a switch-off gives them back.

    A job that begins at most once and has begun cannot be given back, and would end as failed.
    """
    workers = HeartbeatRepository(connection).standing()
    wishes = WorkerControlRepository(connection).blocking()
    forecast = foretell(workers, wishes, host=host, queue=queue, desired=desired, stale_s=stale_s)
    ids = [one.worker_id for one in forecast.obeying]
    at_work = AtWorkRepository(connection)
    held = at_work.count(ids)
    is_off = desired is DesiredState.OFF
    return WishPreview(
        host,
        queue,
        desired,
        forecast,
        finished=0 if is_off else held.jobs,
        given_back=held.jobs - held.begun_once if is_off else 0,
        failed=held.begun_once if is_off else 0,
        first=at_work.of(ids, limit=JOBS_NAMED),
        left=QueueDepthRepository(connection).of(forecast.queues_left),
    )


def json_of(seen: WishPreview) -> dict[str, Any]:
    """What `--dry-run --json` prints."""
    forecast = seen.forecast
    return {
        "host_label": seen.host_label,
        "queue": seen.queue,
        "desired": seen.desired,
        "workers": [one.worker_id for one in forecast.obeying],
        "already": forecast.already,
        "silent": forecast.silent,
        "jobs": {
            "finished": seen.finished,
            "given_back": seen.given_back,
            "failed": seen.failed,
            "first": [one.name for one in seen.first],
        },
        "models": [
            {"model": one.model, "unloaded_by": one.by, "still_loaded_by": one.still_loaded_by}
            for one in forecast.models
        ],
        "queues_left": [
            {"queue": one.queue, "queued": one.queued, "at_least": one.at_least} for one in seen.left
        ],
    }


def command_of(desired: DesiredState, *, host: str, queue: str) -> str:
    """The command that foretells it; without its last word it is done."""
    return shlex.join(["qwf", "workers", desired.value, host, queue, "--dry-run"])
