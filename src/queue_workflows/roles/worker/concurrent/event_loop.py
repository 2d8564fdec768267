"""The event loop of a worker's async jobs: a thread of its own, which several jobs share.

Each job's thread stands for a place among the worker's jobs, so it waits here until its coroutine has ended.
A job that blocks the loop keeps its siblings from going on; `is_barred` says so, so that the guards do not
blame them for it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from typing import Any, Final

from queue_workflows.engine.execution.guards import HeldJob
from queue_workflows.engine.execution.log_fields import at_hand
from queue_workflows.engine.outcomes import Outcome, Stop
from queue_workflows.thread_start import start_thread

_log = logging.getLogger(__name__)

# Far longer than a loaded machine takes: it is the thread of a job that waits, and a job has a budget.
_BEGINS_WITHIN_S: Final = 30.0


class SharedLoop:
    """Started with its first job, ended by `close`."""

    def __init__(self, on_failure: Callable[[BaseException], None] = lambda _exc: None) -> None:
        """`on_failure` is told why the loop cannot be started, and ends the process if that is at fault."""
        self._on_failure = on_failure
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begun, self._over = threading.Event(), threading.Event()
        self._closing = False

    def run(self, execution: Coroutine[Any, Any, Outcome]) -> Outcome:
        """Run one execution to its end, from the thread of its job."""
        ended: Future[Outcome] = Future()
        loop, held = self._started(), at_hand.get()
        if held is not None:
            held.is_async = True

        def begin() -> None:
            task = loop.create_task(execution)
            task.add_done_callback(lambda done: _hand_over(done, ended))

        loop.call_soon_threadsafe(begin, context=copy_context())
        return ended.result()

    def is_barred(self, held: HeldJob) -> bool:
        """Whether this job cannot go on now, because another one has the loop; from any thread."""
        loop = self._loop
        task = None if loop is None or not held.is_async else asyncio.current_task(loop)
        at = getattr(task, "qwf_job", None)
        return at is not None and at is not held

    def close(self) -> None:
        """Cancel what is left on the loop, and end its thread."""
        self._closing = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._over.wait()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                try:
                    self._loop = self._start()
                except BaseException as refused:
                    # While the exception is held: a loop that is made by half complains when it is let go of.
                    self._on_failure(refused)
                    raise
            return self._loop

    def _start(self) -> asyncio.AbstractEventLoop:
        """Made in the thread of a job, so that what it lacks is raised there, and only turned in its own."""
        # With a factory it does not become the loop of this thread.
        runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        loop = runner.get_loop()
        loop.set_task_factory(_task_of_a_job)
        start_thread(partial(self._turn, runner), "qwf-loop")
        if not self._begun.wait(_BEGINS_WITHIN_S):
            raise MemoryError("the thread of the event loop had no memory to begin in")
        return loop

    def _turn(self, runner: asyncio.Runner) -> None:
        self._begun.set()
        try:
            self._turn_until_closed(runner)
        finally:
            self._over.set()

    def _turn_until_closed(self, runner: asyncio.Runner) -> None:
        with runner:
            loop = runner.get_loop()
            asyncio.set_event_loop(loop)
            while not self._closing:
                try:
                    loop.run_forever()
                except (SystemExit, KeyboardInterrupt) as left:
                    # The task that raised it has ended by it, and what awaits that is told: one job's
                    # failure, and nothing to the others.
                    _log.warning("a task of a job raised %s", type(left).__name__)


class JobTask(asyncio.Task[Any]):
    """A task that knows its job; one that another job cancels is given back, not failed."""

    qwf_job: HeldJob | None = None

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel as ever; besides, a cancel by another job is no failure of this task's own job."""
        held, by = self.qwf_job, at_hand.get()
        if held is not None and by is not None and by is not held:
            held.ctx.stop(Stop.RELEASE, f"job {by.job.id}, which shares its event loop, has cancelled it")
        return super().cancel(msg)


def _task_of_a_job(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> JobTask:
    task = JobTask(coroutine, loop=loop, **options)
    task.qwf_job = at_hand.get()
    return task


def _hand_over(task: asyncio.Task[Outcome], ended: Future[Outcome]) -> None:
    if task.cancelled():
        ended.set_exception(asyncio.CancelledError("the loop of the worker is closed"))
    elif (raised := task.exception()) is not None:
        ended.set_exception(raised)
    else:
        ended.set_result(task.result())
