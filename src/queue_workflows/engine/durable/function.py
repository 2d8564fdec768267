"""A durable function as a worker runs it, of a task or a node: it begins with what is stored."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from queue_workflows.engine.durable.async_context import AsyncDurableContext
from queue_workflows.engine.durable.base import args_of_round
from queue_workflows.engine.durable.branches import begin_function, end_function
from queue_workflows.engine.durable.children import FindTask
from queue_workflows.engine.durable.history import History
from queue_workflows.engine.durable.sync_context import DurableContext
from queue_workflows.engine.execution.callable import Work
from queue_workflows.engine.execution.context import JobContext
from queue_workflows.engine.outcomes import Discard, PutAside
from queue_workflows.errors import LeaseLost
from queue_workflows.states import JobFamily

# As of what no worker knows, for which a job waits as long.
_UNKNOWN: Final = {JobFamily.INGEST: "unknown_task", JobFamily.NODE: "unknown_module"}
_UNKNOWN_DELAY_S: Final = 3600.0
# Among `versions`: what has stored steps that say of no version.
NO_VERSION: Final = ""


def version_name(name: str, version: str) -> str:
    """What a version of a task is called where workers say what they know."""
    return f"{name}@{version}"


def before_versions(older: Collection[str]) -> str | None:
    """The version of jobs that began before the task had any: the one before, or `""` if there are several.

    None if the task has none before it: its code is what it was.
    """
    if not older:
        return None
    return next(iter(older)) if len(older) == 1 else NO_VERSION


def _version_of(history: History, current: str | None, older: Collection[str]) -> str | None:
    """The version of the code that a job goes on with."""
    began = history.version
    if history.is_new or history.is_of_any_version or began == current:
        return current
    if began is None:
        began = before_versions(older)
    return current if began is None else began


def check_begins_again(job: Any) -> None:
    """Refuse a job that may not begin again, before it has done anything."""
    if job.at_most_once:
        raise Discard("what is durable begins again, and at_most_once forbids that")


def durable_work(
    work: Work, *, name: str, version: str | None, older: Mapping[str, Work], find: FindTask
) -> Work:
    """Work that stores its steps; `older` are the versions that jobs in flight go on with."""

    def chosen(history: History) -> Work:
        began = _version_of(history, version, older)
        if began == version:
            return work
        if began is not None and began in older:
            return older[began]
        unknown = _UNKNOWN[JobFamily.NODE if work.returns_dict else JobFamily.INGEST]
        raise PutAside(unknown, version_name(name, began or NO_VERSION), _UNKNOWN_DELAY_S)

    def call(job: Any, ctx: JobContext) -> Any:
        check_begins_again(job)
        durable = DurableContext(ctx, version=version, find=find)
        history = durable.begin()
        durable.goes_on_with(history)
        function = chosen(history)
        args_of_round(job, history)
        try:
            value = function.call(job, durable)  # type: ignore[arg-type]
        except LeaseLost:
            raise
        except Exception:
            durable.leave()
            raise
        durable.finish()
        return value

    async def call_async(job: Any, ctx: JobContext) -> Any:
        check_begins_again(job)
        durable = AsyncDurableContext(ctx, version=version, find=find)
        history = await durable.begin()
        durable.goes_on_with(history)
        function = chosen(history)
        args_of_round(job, history)
        token = begin_function()
        try:
            value = await function.call(job, durable)  # type: ignore[arg-type]
        except LeaseLost:
            raise
        except Exception:
            await durable.leave()
            raise
        finally:
            end_function(token)
        await durable.finish()
        return value

    return replace(work, call=call_async if work.is_async else call)
