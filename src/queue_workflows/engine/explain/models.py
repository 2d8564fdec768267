"""What the model that a job wants has to do with when it runs: pure, from its circumstances to sentences."""

from __future__ import annotations

from collections.abc import Iterator

from queue_workflows.config import GPU_QUEUE
from queue_workflows.engine.explain.history import Reason
from queue_workflows.repositories.explain.explain_job import Circumstances
from queue_workflows.repositories.workers.obedience import Standing
from queue_workflows.states import WorkerState

# Of so many workers that have it each is named.
_NAMED = 5


def cannot_load(model: str | None) -> str:
    """Why a job is on hold if no worker that claimed it could load its model."""
    return (
        f"no worker that claimed it can load the model {model!r}: start one with a registrar for it and"
        " a budget that has room for it; it then runs at once"
    )


def memory_told(there: Circumstances) -> str:
    """What a job's model took of devices, with what it says of itself; empty where nobody has seen it."""
    seen = [one for one in there.model_memory if one.used_mb is not None]
    told = [
        f"up to {one.used_mb:,.0f} MB of {one.device} in {one.loads} load{'' if one.loads == 1 else 's'}"
        for one in seen[:_NAMED]
    ]
    says = {one.declared_mb for one in seen if one.declared_mb is not None}
    said = f" (it says {', '.join(f'{mb:,.0f}' for mb in sorted(says))})" if says else ""
    return f"; it took {', '.join(told)}{said}" if told else ""


def _memory_data(there: Circumstances) -> list[dict[str, object]]:
    return [
        {"device": one.device, "held_mb": one.held_mb, "used_mb": one.used_mb, "loads": one.loads}
        for one in there.model_memory
    ]


def of_model(there: Circumstances, *, stale_s: float, yield_s: float) -> Iterator[Reason]:
    """Where the model of a queued job is loaded, and whether the job is left to an idle worker for it."""
    model = getattr(there.job, "required_model", None)
    live = [one for one in there.workers if one.age_s <= stale_s]
    if not model or not live or there.job.queue != GPU_QUEUE:
        return
    warm = [one for one in live if model in one.cached_models]
    if not warm:
        text = f"it wants the model {model!r}, which no worker has loaded; any worker of the queue takes it"
        data: dict[str, object] = {"model": model, "memory": _memory_data(there)}
        yield Reason("model_cold", text + memory_told(there), data)
        return
    named = ", ".join(f"{one.worker_id} ({one.state})" for one in warm[:_NAMED])
    others = " and others" if len(warm) > _NAMED else ""
    data = {
        "model": model,
        "workers": [one.worker_id for one in warm],
        "memory": _memory_data(there),
    }
    yield Reason(
        "model_warm",
        f"its model {model!r} is loaded by {named}{others}, which take it before older ones"
        + memory_told(there),
        data,
    )
    idle = [one for one in warm if _is_left_to(one)]
    if idle and (there.now - there.job.run_at).total_seconds() < yield_s:
        text = (
            f"the others leave it for {yield_s:g} s to {idle[0].worker_id}, which is idle and has its model"
        )
        yield Reason("left_to_peer", text, {"worker_id": idle[0].worker_id, "yield_s": yield_s})


def _is_left_to(one: Standing) -> bool:
    return one.state == WorkerState.IDLE and not one.flagged_dead
