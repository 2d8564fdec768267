"""Which job a line of a log belongs to: known in its thread, its tasks on an event loop, its child threads.

`at_hand` is set around each job by its worker. A line asks for it as it is written, so a job that logs
nothing pays nothing. A thread of a pool has the job that submitted what it is at, for as long as it is at it.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from queue_workflows.telemetry.spans import current_ids

if TYPE_CHECKING:
    from queue_workflows.engine.execution.guards import HeldJob
    from queue_workflows.repositories.sql.claimed_job import ClaimedJob

# Which job a thread, or a task on the loop and the tasks that it starts, is at.
at_hand: ContextVar[HeldJob | None] = ContextVar("queue_workflows_job_at_hand", default=None)

# What is known of a thread that works for a job is kept at the thread itself, and goes with it.
_OF_THREAD: Final = "_qwf_log_fields"
# Threads of a pool work for many jobs, whichever of them was the first to need one more.
_POOLS: Final = "concurrent.futures.thread"
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


class JobLogFilter(logging.Filter):
    """Puts the job that writes a line into its record; for the handlers of a host app that logs by itself.

    The names are those of `ctx.logger`: `job_id`, `attempt`, `queue`, `family`, `worker_id`, and `task_name`
    or `run_id` and `node_id`; besides `trace_id` and `span_id` where the job is traced. What a record has
    stays.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record through."""
        for name, value in bound_fields().items():
            record.__dict__.setdefault(name, value)
        return True


def bound_fields() -> Mapping[str, str | int]:
    """The fields of the job that this thread or task is at; empty outside of jobs."""
    held = at_hand.get()
    if held is None:
        found: Mapping[str, str | int] = getattr(threading.current_thread(), _OF_THREAD, {})
        return found
    # Its function has it in its hands, and no line of a log is worth an exception in there.
    try:
        return {**fields_of(held.job), **_trace_of(held.job)}
    except Exception:
        return {}


def fields_of(job: ClaimedJob) -> dict[str, str | int]:
    """What names a job and its attempt."""
    fields = {
        "job_id": job.id,
        "attempt": job.attempt,
        "queue": job.queue,
        "family": job.family.value,
        "worker_id": job.claimed_by,
        "task_name": getattr(job, "task_name", None),
        "run_id": getattr(job, "run_id", None),
        "node_id": getattr(job, "node_id", None),
    }
    return {
        name: value if isinstance(value, int) else str(value)
        for name, value in fields.items()
        if value is not None
    }


def bind_child_threads() -> None:
    """From now on what a job does in a thread that it starts, or in a pool of them, is known as that job's.

    For a process of workers; a pool may be the job's own or stand for all jobs.
    """
    plain_start = threading.Thread.start
    plain_submit: Callable[..., Future[Any]] = ThreadPoolExecutor.submit

    @wraps(plain_start)
    def start(thread: threading.Thread) -> None:
        target = getattr(thread, "_target", None)
        if getattr(target, "__module__", None) != _POOLS and (fields := bound_fields()):
            setattr(thread, _OF_THREAD, fields)
        plain_start(thread)

    @wraps(plain_submit)
    def submit(pool: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if fields := bound_fields():
            return plain_submit(pool, _with_fields, fields, fn, *args, **kwargs)
        return plain_submit(pool, fn, *args, **kwargs)

    threading.Thread.start = start  # type: ignore[method-assign,assignment]
    ThreadPoolExecutor.submit = submit  # type: ignore[method-assign,assignment]


def _with_fields(
    fields: Mapping[str, str | int], fn: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """Call it in this thread of a pool, which works for the job of these fields until it returns."""
    thread = threading.current_thread()
    setattr(thread, _OF_THREAD, fields)
    try:
        return fn(*args, **kwargs)
    finally:
        delattr(thread, _OF_THREAD)


def _trace_of(job: ClaimedJob) -> Mapping[str, str]:
    """The span that is current, else the trace that the row brought along."""
    if current := current_ids():
        return current
    brought = _TRACEPARENT.match(job.traceparent or "")
    return {"trace_id": brought[1]} if brought else {}
