"""A job's model: there before its function begins, or the reason why the job fails.

It is loaded in front of all that belongs to the attempt itself, so that the host app's context is not entered
for minutes before anything happens in it. While that goes on `ctx.loading` says so to the guards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NoReturn

from queue_workflows.engine.execution.callable import Work
from queue_workflows.engine.execution.context import JobContext, Loading
from queue_workflows.errors import ModelLoadFailed
from queue_workflows.gpu.cache import ModelCache

# Why a job is on hold if this worker cannot load its model; the key is the model's name.
UNKNOWN_MODEL: Final = "model_unknown"


def unload_idle_for(
    model: str | None, ctx: JobContext, models: ModelCache, clock: Callable[[], float]
) -> None:
    """Unload what is kept for too long, but not what the job wants; that uses up nothing of its own times."""
    models.unload_idle(model)
    ctx.ready_at = clock()


def on_loaded_model(
    work: Work,
    model: str,
    ctx: JobContext,
    models: ModelCache,
    *,
    timeout_s: float,
    clock: Callable[[], float],
) -> Work:
    """The work, its model in `ctx`; where that could not be loaded, what fails with the reason instead."""
    if ctx.stopping is not None:
        return work

    def is_wanted() -> bool:
        # Asked again once there is room: what others take to be unloaded is not the load's time.
        ctx.loading = Loading(model, clock(), timeout_s)
        return ctx.stopping is None

    try:
        ctx.model = models.obtain(model, is_wanted)
    except ModelLoadFailed as failed:
        return replace(work, call=_raiser(failed), is_async=False)
    finally:
        ctx.ready_at, ctx.loading = clock(), None
    return work


def _raiser(failed: ModelLoadFailed) -> Callable[[Any, JobContext], NoReturn]:
    def call(_job: Any, _ctx: JobContext) -> NoReturn:
        raise failed

    return call
