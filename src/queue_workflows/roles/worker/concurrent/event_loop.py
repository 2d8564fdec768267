"""The event loop of a worker's async jobs: one thread, and on it a task for each job that runs.

    begin ──any thread──> pending ──one call to the loop──> a task a job ──ended──> its place goes on

Jobs are begun by batches. A job that blocks the loop keeps its siblings from going on; `is_barred` says so,
so that the guards do not blame them for it. One that stops the loop, or raises `SystemExit` from a task,
stops nobody else: the loop turns again, and looks after ends that may have got lost.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any, Final

from queue_workflows import clock as time
from queue_workflows.engine.execution.guards import HeldJob
from queue_workflows.engine.execution.log_fields import at_hand
from queue_workflows.engine.outcomes import Stop
from queue_workflows.repositories.claims.end import Ending
from queue_workflows.thread_start import start_thread

_log = logging.getLogger(__name__)

# A thread that did not take its first step by then is taken for one that never will.
_BEGINS_WITHIN_S: Final = 1.0


class SharedLoop:
    """Started with its first job, ended by `close`; told by `serve` what a job is to it."""

    def __init__(self, on_failure: Callable[[BaseException], None] = lambda _exc: None) -> None:
        """`on_failure` is told why the loop cannot be started, and ends the process if that is at fault."""
        self._on_failure = on_failure
        self._runner: asyncio.Runner | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._making, self._starting = threading.Lock(), threading.Lock()
        # When its thread was started, until that has begun.
        self._started_at = math.inf
        self._over = threading.Event()
        self._closing = False
        # Claimed and given a place, each with that, and not begun by the loop.
        self._pending: deque[tuple[int, HeldJob]] = deque()
        self._is_called = False
        # Those that run, with their places: the loop itself keeps no task alive.
        self._tasks: dict[JobTask, int] = {}
        # For what the loop does between the jobs; else each of them would have a copy of its own.
        self._between = Context()

    def serve(
        self,
        perform: Callable[[HeldJob], Coroutine[Any, Any, Ending | None]],
        *,
        begins: Callable[[int, int], None],
        over: Callable[[int, HeldJob], HeldJob | None],
        broke: Callable[[HeldJob, BaseException], Ending | None],
    ) -> None:
        """`perform` comes to what to write for a job, or `broke` does by what it raised instead.

        `begins` is told which place begins which job, by its id; `over` that a place's job has ended, and
        says which one has the place now, if it is one of the loop's.
        """
        self._perform = perform
        self._begins = begins
        self._is_over = over
        self._broke = broke

    def begin(self, jobs: Iterable[tuple[int, HeldJob]]) -> None:
        """Begin these jobs, each in its place; from any thread."""
        self._pending.extend(jobs)
        try:
            loop = self._started()
        except BaseException as refused:
            self._on_failure(refused)
            while self._pending:
                place, held = self._pending.popleft()
                if (following := self._ended(place, held, refused)) is not None:
                    self._pending.append((place, following))
            return
        # A thread that sees it set has put its jobs there before the loop looks.
        if not self._is_called:
            self._is_called = True
            with suppress(RuntimeError):  # the worker is at its end, and what it holds goes back
                loop.call_soon_threadsafe(self._begin_pending, context=self._between)

    def is_barred(self, held: HeldJob) -> bool:
        """Whether this job cannot go on now, because another one has the loop; from any thread."""
        loop = self._loop
        task = None if loop is None or not held.is_async else asyncio.current_task(loop)
        at = getattr(task, "qwf_job", None)
        return at is not None and at is not held

    def see_to_start(self) -> None:
        """Start the loop's thread anew if it had no memory to begin in; nothing waits for it."""
        runner = self._runner
        if runner is not None and self._started_at < time.monotonic() - _BEGINS_WITHIN_S:
            _log.warning("the thread of the event loop did not begin: it is started anew")
            try:
                self._start_thread(runner)
            except BaseException as refused:
                self._on_failure(refused)
                raise

    def close(self) -> None:
        """Cancel what is left on the loop, and end its thread."""
        self._closing = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._over.wait()

    def _started(self) -> asyncio.AbstractEventLoop:
        """Made in the thread that has its first job, so that what it lacks is raised there."""
        if self._loop is None:
            with self._making:
                if self._loop is None:
                    # With a factory it does not become the loop of this thread.
                    self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
                    loop = self._runner.get_loop()
                    loop.set_task_factory(_task_of_a_job)
                    self._start_thread(self._runner)
                    self._loop = loop
        return self._loop

    def _start_thread(self, runner: asyncio.Runner) -> None:
        with self._starting:
            at = self._started_at = time.monotonic()
        start_thread(partial(self._turn, runner, at), "qwf-loop")

    # In the thread of the loop.

    def _turn(self, runner: asyncio.Runner, at: float) -> None:
        with self._starting:
            # Only the last one that was started may: the one before it was late, not gone.
            if self._started_at != at:
                return
            self._started_at = math.inf
        try:
            self._turn_until_closed(runner)
        finally:
            self._over.set()

    def _turn_until_closed(self, runner: asyncio.Runner) -> None:
        with runner:
            self._loop = loop = runner.get_loop()
            asyncio.set_event_loop(loop)
            while not self._closing:
                try:
                    self._see_to_lost_ends()
                    loop.run_forever()
                except (SystemExit, KeyboardInterrupt) as left:
                    # The task that raised it has ended by it, and what awaits that is told: one job's
                    # failure, and nothing to the others.
                    _log.warning("a task of a job raised %s", type(left).__name__)

    def _see_to_lost_ends(self) -> None:
        """What ended the loop's turn may have come between a task's end and what we do about it."""
        for task in [task for task in self._tasks if task.done()]:
            self._done(task)
        self._begin_pending()

    def _begin_pending(self) -> None:
        self._is_called = False
        while self._pending:
            self._begin(*self._pending.popleft())

    def _begin(self, place: int, held: HeldJob) -> None:
        following: HeldJob | None = held
        while following is not None:
            held, following = following, None
            try:
                self._make_task(place, held)
            except BaseException as broken:
                following = self._ended(place, held, broken)

    def _make_task(self, place: int, held: HeldJob) -> None:
        held.started = time.monotonic()
        self._begins(place, held.job.id)
        context = Context()
        context.run(at_hand.set, held)
        # A name of its own would be kept for each.
        task = JobTask(self._perform(held), loop=self._loop, context=context, name="qwf-job")
        task.qwf_job = held
        self._tasks[task] = place
        task.add_done_callback(self._done, context=self._between)

    def _done(self, task: asyncio.Task[Ending | None]) -> None:
        assert isinstance(task, JobTask)  # noqa: S101 - it is one of ours
        place, held = self._tasks.get(task), task.qwf_job
        if place is None or held is None:
            return
        if (raised := asyncio.CancelledError() if task.cancelled() else task.exception()) is None:
            held.ending = task.result()
        following = self._ended(place, held, raised)
        self._tasks.pop(task, None)
        if following is not None:
            self._begin(place, following)

    def _ended(self, place: int, held: HeldJob, broken: BaseException | None) -> HeldJob | None:
        """The job that has its place now, if it is one of the loop's."""
        if broken is not None:
            # One that could not begin took no time.
            held.started = min(held.started, time.monotonic())
            held.ending = self._broke(held, broken)
        return self._is_over(place, held)


class JobTask(asyncio.Task[Any]):
    """A task that knows its job; one that another job cancels is given back, not failed."""

    __slots__ = ("qwf_job",)

    qwf_job: HeldJob | None

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
