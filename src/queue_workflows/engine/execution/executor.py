"""Runs one claimed job and says how it ended.

    enter the invoke context -> call the function -> check what it returned -> finalize -> leave -> outcome

Whatever is raised on the way becomes an outcome, so that a worker has one thing to write. What is not
obvious about it:

- A result that cannot be stored, or is of the wrong kind, fails the job without a retry: the work was done,
  and doing it again would only do it twice. So does a reference that leads nowhere.
- `sys.exit()` in a job is that job's failure, and the worker goes on. So is `KeyboardInterrupt`, because a
  worker handles SIGINT itself; only where Python's own handler is in force (a test, a shell) it is the
  user's Ctrl-C, and is passed on.
- A job that was told to stop and then failed has stopped: it is cancelled or released, whatever exception it
  came down with. What it returned counts all the same, unless the lease is lost, when nothing counts.
- Each job runs in a copy of the context variables: what it sets is gone when it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from queue_workflows.config import InvokeContext
from queue_workflows.engine.execution.callable import Work
from queue_workflows.engine.execution.context import JobContext
from queue_workflows.engine.execution.error_capture import captured
from queue_workflows.engine.execution.invoke_context import invocation
from queue_workflows.engine.execution.redaction import Redactor
from queue_workflows.engine.outcomes import (
    Abandoned,
    Cancelled,
    CancelledOutcome,
    Completed,
    Discard,
    Failed,
    Outcome,
    Parked,
    PutAside,
    Released,
    RetryAfter,
    RetryLater,
    Skip,
    Skipped,
    Stop,
)
from queue_workflows.engine.telemetry import UNOBSERVED, Unobserved, processing
from queue_workflows.errors import LeaseLost, PayloadError, RefError, UnusableRow
from queue_workflows.repositories.claims.end import ERROR_TEXT, error_entry
from queue_workflows.repositories.sql.checks import PayloadLimits
from queue_workflows.repositories.sql.claimed_job import ClaimedJob

if TYPE_CHECKING:
    from queue_workflows.engine.limits.refusals import Refused

_NO_SECRETS: Final = Redactor()
_LIMITS: Final = PayloadLimits()
# What most functions return.
_NO_RESULT: Final = Completed(None)


class Loop(Protocol):
    """Where an async job runs that has a thread: a worker of one job and a test have different ones."""

    def run(self, execution: Coroutine[Any, Any, Outcome]) -> Outcome:
        """Run one execution to its end, from the thread of its job."""


class EventLoop:
    """The event loop of a worker's async jobs, kept between them so that their clients can be kept too."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancel what is left on the loop, and close it."""
        self._runner.close()

    def run(self, execution: Coroutine[Any, Any, Outcome]) -> Outcome:
        """Run one execution to its end.

        A job that stops the loop stops itself alone, so the loop goes on. What breaks out of it, as
        `SystemExit` does from any task, cancels the execution, so that what it holds is let go of, and is
        passed on: nothing of an attempt is left for the loop of the next.
        """
        loop = self._runner.get_loop()
        task = loop.create_task(execution)
        task.add_done_callback(lambda _done: loop.stop())
        try:
            while not task.done():
                loop.run_forever()
        except BaseException as broke_out:
            if not _is_misused(broke_out):
                _end(task, loop)
            raise
        return task.result()


def _is_misused(broke_out: BaseException) -> bool:
    """Whether the loop cannot be run here, as in a thread that runs another one."""
    return isinstance(broke_out, RuntimeError)


def _end(task: asyncio.Task[Outcome], loop: asyncio.AbstractEventLoop) -> None:
    task.cancel()
    # It may raise again; how long that may go on is for the guards of its job to say.
    while not task.done():
        try:
            loop.run_forever()
        except BaseException as broke_out:
            if _is_misused(broke_out):
                return


def execute(
    job: ClaimedJob,
    work: Work,
    ctx: JobContext,
    *,
    invoke_context: InvokeContext | None = None,
    run: Any = None,
    loop: Loop | None = None,
    limits: PayloadLimits = _LIMITS,
    redactor: Redactor = _NO_SECRETS,
) -> Outcome:
    """Run a job in this thread; an async one on `loop`, or on a loop of its own."""
    if not work.is_async:
        return copy_context().run(_perform_sync, job, work, ctx, invoke_context, run, limits, redactor)
    execution = perform(
        job, work, ctx, invoke_context=invoke_context, run=run, limits=limits, redactor=redactor
    )
    try:
        if loop is not None:
            return loop.run(execution)
        with EventLoop() as own:
            return own.run(execution)
    # A task that is cancelled before its first turn ends like that, and has ended nothing by itself.
    except (SystemExit, KeyboardInterrupt, asyncio.CancelledError) as left:
        if is_the_users_own(left):
            raise
        return ended_from_outside(left, ctx, redactor)


def ended_from_outside(exc: BaseException, ctx: JobContext, redactor: Redactor) -> Outcome:
    """What an attempt comes to that was ended where its function could not hear of it."""
    return _heeding_stop(Failed(captured(exc, redactor), retryable=True), ctx, redactor)


async def perform(
    job: ClaimedJob,
    work: Work,
    ctx: JobContext,
    *,
    invoke_context: InvokeContext | None = None,
    run: Any = None,
    limits: PayloadLimits = _LIMITS,
    redactor: Redactor = _NO_SECRETS,
) -> Outcome:
    """What `execute` does, as a coroutine, on a loop that is turned already; sync work never waits."""
    if not work.is_async:
        return _perform_sync(job, work, ctx, invoke_context, run, limits, redactor)
    outcome: Outcome
    with processing(job) as observed:
        if observed is not UNOBSERVED:
            ctx.observed = observed
        try:
            ctx.raise_if_cancelled()
            with invocation(invoke_context, job, run) as finalize:
                body, interrupt = work.call(job, ctx), _TaskInterrupt(ctx)
                try:
                    value = await body
                finally:
                    interrupt.end()
                outcome = _completed(value, finalize, work, limits)
        except BaseException as exc:
            if is_the_users_own(exc):
                raise
            outcome, slowed = _judged(exc, job, ctx, redactor)
            if slowed is not None:
                with _tolerated(ctx, slowed):
                    await ctx.heed_async(slowed)
        finally:
            ctx.close()
        return _ended(outcome, ctx, observed, redactor)


def _perform_sync(  # noqa: PLR0917 - a context that is run in takes keywords at twice the price
    job: ClaimedJob,
    work: Work,
    ctx: JobContext,
    invoke_context: InvokeContext | None,
    run: Any,
    limits: PayloadLimits,
    redactor: Redactor,
) -> Outcome:
    """Do the work of a function that is no coroutine, which needs no event loop."""
    observed = processing(job)
    if observed is UNOBSERVED:
        return _outcome_in_thread(job, work, ctx, invoke_context, run, limits, redactor)
    with observed:
        ctx.observed = observed
        outcome = _outcome_in_thread(job, work, ctx, invoke_context, run, limits, redactor)
        observed.ended(outcome)
        return outcome


def _outcome_in_thread(  # noqa: PLR0917 - as above
    job: ClaimedJob,
    work: Work,
    ctx: JobContext,
    invoke_context: InvokeContext | None,
    run: Any,
    limits: PayloadLimits,
    redactor: Redactor,
) -> Outcome:
    outcome: Outcome
    try:
        ctx.raise_if_cancelled()
        if invoke_context is None:
            value = work.call(job, ctx)
            if value is None and not work.returns_dict:
                outcome = _NO_RESULT
            else:
                outcome = _completed(value, None, work, limits)
        else:
            with invocation(invoke_context, job, run) as finalize:
                outcome = _completed(work.call(job, ctx), finalize, work, limits)
    except BaseException as exc:
        if is_the_users_own(exc):
            raise
        outcome, slowed = _judged(exc, job, ctx, redactor)
        if slowed is not None:
            with _tolerated(ctx, slowed):
                ctx.heed(slowed)
    finally:
        ctx.close()
    return outcome if ctx.stopping is None else _heeding_stop(outcome, ctx, redactor)


def _completed(
    value: Any, finalize: Callable[[Any], Any] | None, work: Work, limits: PayloadLimits
) -> Completed:
    result = _result_json(value, finalize, work, limits)
    return _NO_RESULT if result is None else Completed(result)


def _ended(outcome: Outcome, ctx: JobContext, observed: Unobserved, redactor: Redactor) -> Outcome:
    if ctx.stopping is not None:
        outcome = _heeding_stop(outcome, ctx, redactor)
    observed.ended(outcome)
    return outcome


class _TaskInterrupt:
    """While a job's coroutine is awaited: when the attempt has to stop, the task that runs it is cancelled.

    A class, as thousands of them may wait at once, and closures would take five times as much.
    """

    __slots__ = ("_ctx", "_task")

    def __init__(self, ctx: JobContext) -> None:
        self._ctx = ctx
        self._task = asyncio.current_task()
        ctx.add_interrupt(self)

    def __call__(self) -> None:
        # The loop may be closed by now: then there is nothing left to cancel.
        if (task := self._task) is not None:
            with contextlib.suppress(RuntimeError):
                task.get_loop().call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel(self._ctx.stop_reason)

    def end(self) -> None:
        """The coroutine has ended: what its task does from now on is not to be cancelled."""
        self._task = None
        self._ctx.remove_interrupt(self)


def _result_json(
    value: Any, finalize: Callable[[Any], Any] | None, work: Work, limits: PayloadLimits
) -> str | None:
    """The JSON text of what the function returned; a node's is a dict, where None is an empty one."""
    if value is None:
        if work.returns_dict:
            value = {}
    else:
        _check_kind(value, work)
    final = value if finalize is None else finalize(value)
    if final is not value:
        _check_kind(final, work)
    if final is None:
        return None
    try:
        return limits.json(final)
    except PayloadError as refused:
        raise _Unusable(
            f"the result of {work.label} cannot be stored: {refused.message}",
            path=refused.path,
            advice=refused.advice,
        ) from None
    except BaseException as wrong:
        raise _unlooked_at(work, wrong) from None


class _Unusable(PayloadError):
    """A result that no retry would make any better."""


def _unlooked_at(work: Work, wrong: BaseException) -> _Unusable:
    """While a result is looked at its own methods run, which may do anything."""
    return _Unusable(
        f"the result of {work.label} cannot be stored: to look at it raised {type(wrong).__name__}",
        advice="return plain dicts, lists, strings and numbers",
    )


# What no retry makes any better: the job's own word, its result, its references, its row.
_HOPELESS: Final = (Discard, _Unusable, RefError, UnusableRow)


def _check_kind(value: Any, work: Work) -> None:
    if value is None or type(value) in {dict, list, str, int, float, bool}:
        is_strange, is_dict = False, type(value) is dict
    else:
        try:
            is_strange = inspect.isawaitable(value) or inspect.isgenerator(value) or inspect.isasyncgen(value)
            is_dict = isinstance(value, dict)
        except BaseException as wrong:
            raise _unlooked_at(work, wrong) from None
    if is_strange:
        kind = type(value).__name__
        if inspect.iscoroutine(value) or inspect.isgenerator(value):
            value.close()
        raise _Unusable(
            f"{work.label} returned a {kind}, which nobody runs",
            advice="an `async def` is awaited if it is registered itself; a generator has to become a value",
        )
    if work.returns_dict and not is_dict:
        raise _Unusable(
            f"{work.label} returned {type(value).__name__}, not a dict",
            advice="return a dict, to the keys of which other nodes refer, or None",
        )


def _judged(
    exc: BaseException, job: ClaimedJob, ctx: JobContext, redactor: Redactor
) -> tuple[Outcome, Refused | None]:
    """What an exception comes to, and the limits that it slows down; also of one that cannot be looked at."""
    try:
        return _outcome_of(exc, job, ctx, redactor), ctx.refused(exc, _verdict_in(exc))
    except BaseException as worse:
        kind, raised = type(exc), type(worse).__name__
        said = f"(to look at the exception raised {raised})"
        name = f"{kind.__module__}.{kind.__qualname__}"
        return Failed(error_entry("exception", said, error_type=name), retryable=True), None


def _outcome_of(exc: BaseException, job: ClaimedJob, ctx: JobContext, redactor: Redactor) -> Outcome:
    verdict = _verdict_in(exc)
    match verdict:
        case Skip():
            kept = getattr(verdict, "result_json", None)
            return Skipped(redactor.head(str(verdict.reason), ERROR_TEXT), kept)
        case RetryAfter():
            return RetryLater(verdict.delay_s, redactor.head(str(verdict.reason), ERROR_TEXT))
        case PutAside() | Parked():
            return verdict.outcome
        case Cancelled():
            return CancelledOutcome(redactor.head(str(verdict), ERROR_TEXT))
        case asyncio.CancelledError() if ctx.stopping is not None:
            return CancelledOutcome(redactor.head(ctx.stop_reason, ERROR_TEXT))
        case LeaseLost(family=ctx.family, job_id=job.id, attempt=job.attempt):
            ctx.stop(Stop.LEASE_LOST)
    is_final, partial = isinstance(verdict, _HOPELESS), getattr(verdict, "result_json", None)
    return Failed(captured(exc, redactor), retryable=not is_final, result_json=partial)


def _verdict_in(exc: BaseException) -> BaseException:
    """The one exception in a group of one, and of several `RetryAfter` the longest: task groups wrap them."""
    if not isinstance(exc, BaseExceptionGroup):
        return exc
    leaves = _leaves(exc)
    for leaf in leaves:
        if isinstance(leaf, Parked):
            return leaf
    later = [leaf for leaf in leaves if isinstance(leaf, RetryAfter)]
    if len(later) == len(leaves):
        return max(later, key=lambda leaf: leaf.delay_s)
    return leaves[0] if len(leaves) == 1 else exc


@contextlib.contextmanager
def _tolerated(ctx: JobContext, slowed: Refused) -> Iterator[None]:
    """Where a limit cannot be slowed down, the job ends all the same."""
    try:
        yield
    except (Exception, asyncio.CancelledError) as exc:
        keys = slowed.rate or " and ".join(sorted(slowed.keys))
        ctx.logger.warning("%s could not be slowed down: %s", keys, " ".join(str(exc).split()))


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    return [
        leaf
        for part in group.exceptions
        for leaf in (_leaves(part) if isinstance(part, BaseExceptionGroup) else [part])
    ]


def _heeding_stop(outcome: Outcome, ctx: JobContext, redactor: Redactor) -> Outcome:
    """The outcome of an attempt that was told to stop."""
    if ctx.stopping is Stop.LEASE_LOST:
        return Abandoned()
    ended_by_itself = isinstance(outcome, Completed | Skipped) or (
        isinstance(outcome, Failed) and not outcome.retryable
    )
    if ctx.stopping is None or ended_by_itself:
        return outcome
    if ctx.stopping < Stop.CANCEL and isinstance(outcome, RetryLater):
        return outcome
    if ctx.stopping < Stop.RELEASE:
        return Failed(error_entry(ctx.stopping.name.lower(), ctx.stop_reason), retryable=True)
    error = outcome.error if isinstance(outcome, Failed | CancelledOutcome) else None
    reason = redactor.head(ctx.stop_reason, ERROR_TEXT)
    return CancelledOutcome(reason, error) if ctx.stopping is Stop.CANCEL else Released(reason, error)


def is_the_users_own(exc: BaseException) -> bool:
    """Whether it is a Ctrl-C that no worker's handler would have seen."""
    return (
        isinstance(exc, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
