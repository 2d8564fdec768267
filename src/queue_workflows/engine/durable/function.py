"""A durable function as a worker runs it: what is stored is read first, and what was left is stored last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from queue_workflows.engine.durable.async_context import AsyncDurableContext
from queue_workflows.engine.durable.branches import begin_function, end_function
from queue_workflows.engine.durable.children import FindTask
from queue_workflows.engine.durable.history import History
from queue_workflows.engine.durable.sync_context import DurableContext
from queue_workflows.engine.execution.callable import Work
from queue_workflows.engine.execution.context import JobContext
from queue_workflows.engine.outcomes import PutAside

# As of what no worker knows, for which a job waits as long.
_UNKNOWN_TASK = "unknown_task"
_UNKNOWN_DELAY_S = 3600.0


def version_name(name: str, version: str) -> str:
    """What a version of a task is called where workers say what they know."""
    return f"{name}@{version}"


def durable_work(
    work: Work, *, name: str, version: str | None, older: Mapping[str, Work], find: FindTask
) -> Work:
    """Work that stores its steps; `older` are the versions that jobs in flight go on with."""

    def chosen(history: History) -> Work:
        began = history.version
        if history.is_new or began is None or began == version:
            return work
        if began in older:
            return older[began]
        raise PutAside(_UNKNOWN_TASK, version_name(name, began), _UNKNOWN_DELAY_S)

    def call(job: Any, ctx: JobContext) -> Any:
        durable = DurableContext(ctx, version=version, find=find)
        history = durable.begin()
        durable.goes_on_with(history)
        value = chosen(history).call(job, durable)  # type: ignore[arg-type]
        durable.finish()
        return value

    async def call_async(job: Any, ctx: JobContext) -> Any:
        durable = AsyncDurableContext(ctx, version=version, find=find)
        history = await durable.begin()
        durable.goes_on_with(history)
        token = begin_function()
        try:
            value = await chosen(history).call(job, durable)  # type: ignore[arg-type]
        finally:
            end_function(token)
        await durable.finish()
        return value

    return replace(work, call=call_async if work.is_async else call)
