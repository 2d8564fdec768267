"""execute(): every way in which a function can end becomes one outcome, and the worker goes on."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import pytest
from support.rows.claimed_jobs import MOMENT, context, ingest_job, node_job

from queue_workflows.engine.execution.callable import Work
from queue_workflows.engine.execution.context import JobContext
from queue_workflows.engine.execution.executor import EventLoop, execute, perform
from queue_workflows.engine.execution.redaction import Redactor
from queue_workflows.engine.outcomes import (
    Abandoned,
    Cancelled,
    CancelledOutcome,
    Completed,
    Discard,
    Failed,
    OnHold,
    Outcome,
    PutAside,
    Released,
    RetryAfter,
    RetryLater,
    Skip,
    Skipped,
    Stop,
)
from queue_workflows.engine.registry.node_modules import ModuleResolver
from queue_workflows.engine.registry.tasks import TaskRegistry
from queue_workflows.errors import LeaseLost
from queue_workflows.repositories.sql.checks import PayloadLimits


def work_of(fn: Callable[..., Any]) -> Work:
    registry = TaskRegistry()
    registry.register("task", fn)
    work = registry.find("task")
    assert work is not None
    return work


def executed(fn: Callable[..., Any], *, ctx: JobContext | None = None, **given: Any) -> Outcome:
    job = ingest_job()
    return execute(job, work_of(fn), ctx or context(job), **given)


def node_executed(module: Callable[..., Any], **given: Any) -> Outcome:
    job = node_job()
    work = ModuleResolver(resolver=lambda name: module).find("plan")
    assert work is not None
    return execute(job, work, context(job), **given)


def raising(exc: BaseException | type[BaseException]) -> Callable[[str], Any]:
    def fn(reason):
        raise exc

    return fn


def raising_async(exc: BaseException) -> Callable[[str], Any]:
    async def fn(reason):
        await asyncio.sleep(0)
        raise exc

    return fn


def entry_of(outcome: Outcome) -> dict[str, Any]:
    assert isinstance(outcome, Failed), outcome
    return json.loads(outcome.error)


def failure(fn: Callable[..., Any], **given: Any) -> dict[str, Any]:
    outcome = executed(fn, **given)
    assert isinstance(outcome, Failed)
    assert outcome.retryable
    return entry_of(outcome)


both = pytest.mark.parametrize("raiser", [raising, raising_async], ids=["sync", "async"])


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, None), ({"a": [1, None]}, '{"a":[1,null]}'), ("ä", '"ä"'), ([], "[]"), (0, "0")],
)
def test_what_a_task_returns_is_its_result(value: Any, text: str | None):
    """Any JSON; None is none."""

    async def asynchronous(reason):
        return value

    assert executed(lambda reason: value) == executed(asynchronous) == Completed(text)


def test_a_node_returns_a_dict_or_nothing():
    """Nothing is an empty delta; anything else fails, and is not retried."""
    assert node_executed(lambda inputs: None) == Completed("{}")
    assert node_executed(lambda inputs: {"a": 1}) == Completed('{"a":1}')
    outcome = node_executed(lambda inputs: [1])
    assert "returned list, not a dict" in entry_of(outcome)["message"]
    assert entry_of(outcome)["type"] == "queue_workflows.errors.PayloadError"
    assert outcome == Failed(outcome.error, retryable=False)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"a": {1}}, "the result of the ingest task 'task'"),
        ({"a": "x\x00"}, "NUL"),
        (float("nan"), "nan is not JSON"),
        ("a" * 2000, "larger than 1,000 bytes"),
        (object(), "object is not JSON"),
    ],
)
def test_a_result_that_cannot_be_stored_fails_the_job_for_good(value: Any, says: str):
    """The work was done: doing it again would only do it twice."""
    outcome = executed(lambda reason: value, limits=PayloadLimits(max_bytes=1000))
    assert says in entry_of(outcome)["message"]
    assert not outcome.retryable  # type: ignore[union-attr]


async def coroutine(reason: str = "") -> int:
    return 1


async def async_values() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (coroutine, "coroutine"),
        (lambda: (n for n in [1]), "generator"),
        (async_values, "async_generator"),
    ],
)
def test_what_nobody_would_run_is_no_result(value: Callable[[], Any], kind: str):
    """A forgotten await or a stray yield is said in words, without a warning of never having been awaited."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outcome = executed(lambda reason: value())
        gc.collect()
    assert f"returned a {kind}, which nobody runs" in entry_of(outcome)["message"]
    assert not outcome.retryable  # type: ignore[union-attr]


@both
def test_the_verdicts(raiser: Callable[[BaseException], Any]):
    """Skip, Discard, PutAside, RetryAfter and Cancelled end a job as what they say."""
    assert executed(raiser(Skip("seen"))) == Skipped("seen")
    assert executed(raiser(PutAside("binary_missing", "wget", 60.0))) == OnHold(
        60.0, "binary_missing", "wget"
    )
    assert executed(raiser(RetryAfter(2.5, "429"))) == RetryLater(2.5, "429")
    assert executed(raiser(RetryAfter(timedelta(minutes=1)))) == RetryLater(60.0, "")
    assert executed(raiser(Cancelled("done with it"))) == CancelledOutcome("done with it")
    outcome = executed(raiser(Discard("bad page")))
    assert entry_of(outcome)["message"] == "bad page"
    assert not outcome.retryable  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("value", "delay_s"),
    [
        ("120", 120),
        (" 0 ", 0),
        ("Thu, 01 Jan 2026 00:01:30 GMT", 90),
        ("Thursday, 01-Jan-26 00:01:30 GMT", 90),
        ("Thu, 01 Jan 2026 00:01:30 -0000", 90),
        ("Thu, 01 Jan 2026 02:01:30 +0200", 90),
        ("Wed, 31 Dec 2025 00:00:00 GMT", 0),
        ("Thu, 01 Jan 2099 00:00:00 GMT", 86_400),
        ("9" * 400, 86_400),
        (None, 60),
        ("", 60),
        ("-5", 60),
        ("1.5", 60),
        ("soon", 60),
        ("\u0661\u0662", 60),
        ("Thu, 01 Jan 99999999999999999999 00:00:00 GMT", 60),
        ("Thu, 01 Jan 2026 00:01:30 +99999999999999999999", 60),
    ],
)
def test_retry_after_reads_the_header_of_an_answer(value: str | None, delay_s: float) -> None:
    """Seconds or a date, believed for a day; nonsense is what it is without one."""
    later = RetryAfter.from_header(value, "429", penalize="unpaywall", now=MOMENT)
    assert (later.delay_s, later.reason, later.penalize) == (delay_s, "429", "unpaywall")
    assert RetryAfter.from_header("7", default_s=1, at_most_s=5).delay_s == 5


@pytest.mark.parametrize(
    "delay", [-1, float("nan"), float("inf"), "30", None, True, timedelta(days=-1), 1e12]
)
def test_a_delay_is_a_number_of_seconds(delay: Any):
    """Anything else is an error where it is written, and so an ordinary failure of the job."""
    assert failure(lambda reason: (_ for _ in ()).throw(RetryAfter(delay)))["type"] == "ValueError"


@both
def test_any_other_exception_is_a_failure(raiser: Callable[[BaseException], Any]):
    """With its type, message, cause, and a traceback that begins in the host app's code."""

    def fn(reason):
        try:
            {}["key"]
        except KeyError as missing:
            raise LookupError("no page") from missing

    entry = failure(fn)
    assert (entry["kind"], entry["type"], entry["message"]) == ("exception", "LookupError", "no page")
    assert "KeyError: 'key'" in entry["traceback"]
    assert "direct cause" in entry["traceback"]
    assert "engine/execution/executor.py" not in entry["traceback"]
    assert failure(raiser(json.JSONDecodeError("bad", "x", 0)))["type"] == "json.decoder.JSONDecodeError"
    assert failure(raiser(asyncio.CancelledError()))["type"] == "asyncio.exceptions.CancelledError"
    assert failure(raiser(GeneratorExit()))["type"] == "GeneratorExit"


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_exception_that_cannot_be_shown_is_a_failure_all_the_same():
    """Its type says enough."""
    entry = failure(raising(Unspeakable()))
    assert entry["type"].endswith("Unspeakable")
    assert entry["message"] == "(no message: str() of it raised RuntimeError)"


def test_an_error_is_bounded_redacted_and_storable():
    """Whatever the exception carries."""
    secret = "postgresql://u:hunter2@h/d and pearl"

    def fn(reason):
        try:
            raise ValueError(f"{secret} \x00 \udc80 " + "a" * 500_000)
        except ValueError:
            raise RuntimeError(f"{secret} \x00 \udc80 " + "ä" * 500_000) from None

    outcome = executed(fn, redactor=Redactor(["pearl"]))
    assert isinstance(outcome, Failed)
    entry = json.loads(outcome.error)
    assert entry["message"].startswith("postgresql://u:***@h/d and ***  ? ä")
    assert len(entry["message"]) <= 2000
    assert len(entry["traceback"]) <= 8000
    assert not {"hunter2", "pearl"} & set(outcome.error.replace("@", " ").replace(":", " ").split())
    assert "\\u0000" not in outcome.error
    outcome.error.encode()


def test_a_skip_reason_is_redacted_too():
    """Every text that is stored is."""
    assert executed(raising(Skip("password=x"))) == Skipped("password=***")
    assert executed(raising(RetryAfter(1, "token=x"))) == RetryLater(1.0, "token=***")


def test_endless_recursion_is_a_failure():
    """And leaves the worker room to say so."""

    def fn(reason):
        return fn(reason)

    assert failure(fn)["type"] == "RecursionError"


@pytest.fixture
def as_in_a_worker() -> Iterator[None]:
    """SIGINT handled by the worker."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    yield
    signal.signal(signal.SIGINT, before)


def subtask(exc: BaseException) -> Callable[[str], Any]:
    async def fn(reason):
        async def child():
            raise exc

        task = asyncio.get_running_loop().create_task(child())
        await asyncio.sleep(3600)
        return await task

    return fn


@pytest.mark.usefixtures("as_in_a_worker")
@pytest.mark.parametrize("raiser", [raising, raising_async, subtask], ids=["sync", "async", "subtask"])
def test_a_job_cannot_exit_the_worker(raiser: Callable[[BaseException], Any]):
    """sys.exit() and a KeyboardInterrupt of its own are failures, and the event loop serves the next job."""
    with EventLoop() as loop:
        assert failure(raiser(SystemExit(3)), loop=loop)["message"] == "it called sys.exit(3)"
        assert failure(raiser(SystemExit()), loop=loop)["message"] == "it called sys.exit()"
        assert failure(raiser(KeyboardInterrupt()), loop=loop)["type"] == "KeyboardInterrupt"
        assert executed(coroutine, loop=loop) == Completed("1")


def test_a_job_that_stops_its_loop_goes_on():
    """Alone in its worker as beside others, and nothing of it is left for the loop of the next one."""
    went_on: list[str] = []

    async def stops(reason):
        for _ in range(3):
            asyncio.get_running_loop().stop()
            await asyncio.sleep(0)
        went_on.append(reason)
        return 1

    with EventLoop() as loop:
        assert executed(stops, loop=loop) == Completed("1")
        assert len(went_on) == 1
        assert executed(coroutine, loop=loop) == Completed("1")
    assert len(went_on) == 1


def test_a_loop_that_cannot_run_here_says_so():
    """As inside another loop: nobody waits for a job that will never be run."""

    async def inside():
        with pytest.raises(RuntimeError, match="another loop is running"):
            executed(coroutine, loop=loop)

    with EventLoop() as loop:
        asyncio.run(inside())
        assert executed(coroutine, loop=loop) == Completed("1")


@pytest.mark.parametrize("raiser", [raising, raising_async, subtask], ids=["sync", "async", "subtask"])
def test_ctrl_c_is_passed_on_where_nobody_handles_it(raiser: Callable[[BaseException], Any]):
    """A test or a shell that runs a job is interrupted as ever; what was around the job is left."""
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    left: list[str] = []

    @contextmanager
    def around(job, run):
        try:
            yield
        except BaseException as exc:
            left.append(type(exc).__name__)
            raise

    with EventLoop() as loop:
        with pytest.raises(KeyboardInterrupt):
            executed(raiser(KeyboardInterrupt()), loop=loop, invoke_context=around)
        assert executed(coroutine, loop=loop) == Completed("1")
    assert left in (["KeyboardInterrupt"], ["CancelledError"])


# Stopping


@pytest.mark.parametrize(
    ("why", "expected"),
    [
        (Stop.CANCEL, CancelledOutcome("asked")),
        (Stop.RELEASE, Released("asked")),
        (Stop.LEASE_LOST, Abandoned()),
    ],
)
def test_a_job_that_notices_that_it_has_to_stop(why: Stop, expected: Outcome):
    """Ends as what it was stopped for, from the next place where it looks; sync and async."""
    ctx = context(ingest_job())

    def fn(reason, ctx):
        ctx.stop(why, "asked")
        ctx.raise_if_cancelled()

    async def asynchronous(reason, ctx):
        ctx.stop(why, "asked")
        await asyncio.sleep(3600)

    assert executed(fn, ctx=ctx) == expected
    assert executed(asynchronous, ctx=context(ingest_job())) == expected


def test_a_job_that_has_to_stop_before_it_began_does_not_begin():
    """Neither its function nor what is put around it is called."""
    called: list[int] = []
    ctx = context(ingest_job())
    ctx.stop(Stop.CANCEL, "too late")
    outcome = executed(lambda reason: called.append(1), ctx=ctx, invoke_context=lambda *_: called.append(2))
    assert (outcome, called) == (CancelledOutcome("too late"), [])


def test_a_cancel_from_another_thread_ends_an_async_job_at_once():
    """Its task is cancelled, so it need not look; its clean-up runs."""
    ctx = context(ingest_job())
    waiting, cleaned = threading.Event(), threading.Event()

    async def fn(reason):
        try:
            waiting.set()
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)
            cleaned.set()

    def cancel() -> None:
        waiting.wait(150)
        ctx.stop(Stop.CANCEL, "by mia")

    guard = threading.Thread(target=cancel)
    guard.start()
    assert executed(fn, ctx=ctx) == CancelledOutcome("by mia")
    guard.join()
    assert cleaned.is_set()


def test_a_stop_after_the_end_reaches_no_other_job():
    """The loop's next job is not cancelled for the last one."""
    ctx = context(ingest_job())
    with EventLoop() as loop:
        assert executed(coroutine, ctx=ctx, loop=loop) == Completed("1")
        ctx.stop(Stop.CANCEL)

        async def next_job(reason):
            await asyncio.sleep(0.01)
            return 2

        assert executed(next_job, loop=loop) == Completed("2")
    ctx.stop(Stop.LEASE_LOST)


def test_a_stop_at_the_last_moment_does_not_reach_what_awaits_the_execution():
    """The body is over when the loop comes to the cancellation: its worker's next await is not the job's."""

    async def fn(reason, ctx):
        ctx.stop(Stop.CANCEL)
        return 1

    async def worker():
        job = ingest_job()
        outcome = await perform(job, work_of(fn), context(job))
        await asyncio.sleep(0.01)
        return outcome

    assert asyncio.run(worker()) == Completed("1")


def stopped_and(then: Callable[[], Any], why: Stop) -> Outcome:
    def fn(reason, ctx):
        ctx.stop(why, "asked")
        return then()

    return executed(fn)


def throw(exc: BaseException) -> Callable[[], Any]:
    return lambda: raising(exc)("")


@pytest.mark.parametrize(
    ("then", "cancelled", "released"),
    [
        (lambda: 1, Completed, Completed),
        (throw(Skip("x")), Skipped, Skipped),
        (throw(Discard("x")), Failed, Failed),
        (throw(RetryAfter(5)), CancelledOutcome, RetryLater),
        (throw(OSError("x")), CancelledOutcome, Released),
        (throw(Cancelled("x")), CancelledOutcome, Released),
        (throw(SystemExit(1)), CancelledOutcome, Released),
    ],
)
def test_what_counts_when_a_job_was_stopped(then: Callable[[], Any], cancelled: type, released: type):
    """What it finished or decided stands; what it came down with is put down to the stop. Lost is lost."""
    assert isinstance(stopped_and(then, Stop.CANCEL), cancelled)
    assert isinstance(stopped_and(then, Stop.RELEASE), released)
    assert stopped_and(then, Stop.LEASE_LOST) == Abandoned()


def test_the_error_of_a_stopped_job_is_kept():
    """A cancelled job whose clean-up failed says so."""
    outcome = stopped_and(throw(OSError("disk full")), Stop.CANCEL)
    assert isinstance(outcome, CancelledOutcome)
    assert json.loads(outcome.error or "")["message"] == "disk full"


def test_a_lost_lease_is_nobodys_failure():
    """Noticed through the fence, or through a fenced write of the task's own, even if it is swallowed."""

    def through_the_fence(reason, ctx):
        try:
            return str(ctx.fence)
        except Exception:
            return "swallowed"

    lost = context(ingest_job(), make_durable=lambda: False)
    assert executed(through_the_fence, ctx=lost) == Abandoned()
    assert executed(raising(LeaseLost("ingest job", 7, 2))) == Abandoned()
    assert failure(raising(LeaseLost("ingest job", 8, 2)))["type"].endswith("LeaseLost")
    assert failure(raising(LeaseLost("node job", 7, 2)))["type"].endswith("LeaseLost")


# Groups


def test_a_verdict_in_a_task_group_counts():
    """The group is asyncio's wrapping, not the task's word."""

    async def fn(reason):
        async with asyncio.TaskGroup() as group:
            group.create_task(raising_async(RetryAfter(9))("x"))
            group.create_task(asyncio.sleep(3600))

    assert executed(fn) == RetryLater(9.0, "")
    several = ExceptionGroup("g", [RetryAfter(1), ExceptionGroup("h", [RetryAfter(30, "longest")])])
    assert executed(raising(several)) == RetryLater(30.0, "longest")
    assert executed(raising(ExceptionGroup("g", [Skip("x")]))) == Skipped("x")
    mixed = failure(raising(ExceptionGroup("g", [RetryAfter(1), ValueError("both")])))
    assert mixed["type"] == "ExceptionGroup"
    assert "ValueError: both" in mixed["traceback"]


# The invoke context


class Around:
    """A host app's context that writes down what happens to it."""

    def __init__(self, **fails: BaseException) -> None:
        self.seen: list[Any] = []
        self.fails = fails
        self.swallow = False

    def _at(self, step: str) -> None:
        if step in self.fails:
            raise self.fails[step]

    def __call__(self, job: Any, run: Any) -> Around:
        self._at("factory")
        self.seen.append(("factory", job.id, run))
        return self

    def __enter__(self) -> Callable[[Any], Any]:
        self._at("enter")
        self.seen.append("enter")
        return self.finalize

    def finalize(self, value: Any) -> Any:
        self._at("finalize")
        self.seen.append("finalize")
        return {**value, "final": True}

    def __exit__(self, kind: Any, exc: Any, tb: Any) -> bool:
        self.seen.append(type(exc).__name__)
        self._at("exit")
        return self.swallow


def test_the_invoke_context_is_around_the_job():
    """It gets the job and its run, and its finalize has the last word on the result."""
    around = Around()
    outcome = node_executed(lambda inputs: {"a": 1}, invoke_context=around, run="the run")
    assert outcome == Completed('{"a":1,"final":true}')
    assert around.seen == [("factory", 7, "the run"), "enter", "finalize", "NoneType"]


@pytest.mark.parametrize(
    "exc", [ValueError("x"), Skip(), Discard(), RetryAfter(1), Cancelled(), SystemExit(1), GeneratorExit()]
)
@both
def test_it_is_left_on_every_path_with_the_exception(
    raiser: Callable[[BaseException], Any], exc: BaseException
):
    """Finalize is not called, and swallowing the exception changes nothing."""
    around = Around()
    around.swallow = True
    plain = executed(raiser(exc))
    assert type(executed(raiser(exc), invoke_context=around)) is type(plain)
    assert around.seen[1:] == ["enter", type(exc).__name__]


def test_it_is_left_when_the_job_is_cancelled_or_its_result_is_refused():
    """Also then with the exception, so that a transaction of the host app's is rolled back."""
    around = Around()
    assert isinstance(executed(lambda reason: {1}, invoke_context=around), Failed)

    async def fn(reason, ctx):
        ctx.stop(Stop.CANCEL)
        await asyncio.sleep(3600)

    executed(fn, invoke_context=around)
    assert [each for each in around.seen if isinstance(each, str)] == [
        "enter",
        "finalize",
        "InvokeContextError",
        "enter",
        "CancelledError",
    ]


@pytest.mark.parametrize(
    ("step", "named"),
    [("factory", "making it"), ("enter", "entering it"), ("finalize", "finalize"), ("exit", "leaving it")],
)
@pytest.mark.parametrize("exc", [ValueError("tenant gone"), SystemExit(4)])
def test_its_own_errors_are_named_as_its_own(step: str, named: str, exc: BaseException):
    """They fail the job, which may be retried, and the cause is in the traceback."""
    around = Around(**{step: exc})
    entry = failure(lambda reason: {}, invoke_context=around)
    assert entry["type"] == "queue_workflows.errors.InvokeContextError"
    assert entry["message"] == f"the invoke context failed ({named}): {type(exc).__name__}"
    assert f"{type(exc).__name__}: {exc}" in entry["traceback"]


def test_a_failed_exit_after_a_failed_job_keeps_both():
    """The exit's error is the outcome, the job's is in the chain."""
    entry = failure(raising(LookupError("first")), invoke_context=Around(exit=ValueError("second")))
    assert "leaving it" in entry["message"]
    assert "LookupError: first" in entry["traceback"]
    assert "ValueError: second" in entry["traceback"]


def test_it_may_decide_the_job_like_the_job_itself():
    """A tenant that is suspended is skipped, not failed."""
    assert executed(lambda reason: 1, invoke_context=Around(enter=Skip("suspended"))) == Skipped("suspended")
    assert executed(lambda reason: {}, invoke_context=Around(finalize=RetryAfter(3))) == RetryLater(3.0, "")


def test_a_generator_context_that_yields_nothing_finalizes_nothing():
    """The commonest form: set up, yield, tear down; re-raising is no error of its own."""
    seen: list[str] = []

    @contextmanager
    def around(job, run):
        seen.append("in")
        try:
            yield
        except LookupError:
            seen.append("failed")
            raise
        finally:
            seen.append("out")

    assert executed(lambda reason: {"a": 1}, invoke_context=around) == Completed('{"a":1}')
    assert failure(raising(LookupError("x")), invoke_context=around)["type"] == "LookupError"
    assert seen == ["in", "out", "in", "failed", "out"]


def test_a_context_manager_that_was_made_for_something_else():
    """What it yields is no function of the result, so the result stays as it is."""
    entered: list[object] = []

    class AppContext:
        """As a web framework has it: it yields itself."""

        def __enter__(self):
            entered.append(self)
            return self

        def __exit__(self, *_):
            entered.remove(self)

    assert executed(lambda reason: len(entered), invoke_context=lambda job, run: AppContext()) == Completed(
        "1"
    )
    assert entered == []


def test_what_is_no_context_manager_is_said():
    """A generator function without its decorator, for one."""

    def around(job, run):
        yield

    entry = failure(lambda reason: 1, invoke_context=around)
    assert "is no context manager but generator" in entry["message"]
    assert "contextlib.contextmanager" in entry["message"]


def test_what_finalize_returns_is_checked_like_a_result():
    """A node's finalize that forgot to return is a failure and not an empty delta."""

    @contextmanager
    def around(job, run):
        yield lambda value: None

    outcome = node_executed(lambda inputs: {"a": 1}, invoke_context=around)
    assert "NoneType, not a dict" in entry_of(outcome)["message"]
    assert executed(lambda reason: {"a": 1}, invoke_context=around) == Completed(None)


# What lies between jobs


tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


def test_context_variables_end_with_the_job():
    """What a job or its invoke context sets, the job sees, and the next job does not."""

    @contextmanager
    def around(job, run):
        tenant.set("shop")
        yield

    def fn(reason):
        before = tenant.get()
        tenant.set("left over")
        return before

    async def asynchronous(reason):
        await asyncio.sleep(0)
        return fn(reason)

    with EventLoop() as loop:
        for each in (fn, asynchronous, fn, asynchronous):
            assert executed(each, loop=loop) == Completed('"nobody"')
            assert executed(each, loop=loop, invoke_context=around) == Completed('"shop"')
    assert tenant.get() == "nobody"


def test_async_jobs_share_one_loop():
    """So that a client that was opened by one job serves the next; closing it cancels what is left on it."""
    loops, left = [], []

    async def fn(reason):
        async def background():
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                left.append("cancelled")
                raise

        loops.append(asyncio.get_running_loop())
        loops.append(asyncio.create_task(background()))
        await asyncio.sleep(0)

    with EventLoop() as loop:
        executed(fn, loop=loop)
        executed(fn, loop=loop)
        assert loops[0] is loops[2]
        assert left == []
    assert left == ["cancelled", "cancelled"]


def test_many_executions_share_a_loop_of_the_workers_own():
    """perform() is awaited side by side; stopping one leaves the others alone."""
    contexts = [context(ingest_job(id=number)) for number in range(10)]

    async def fn(reason, ctx):
        if ctx.id == 3:
            contexts[5].stop(Stop.CANCEL, "five")
        await asyncio.sleep(0.05)
        return ctx.id

    async def worker():
        work = work_of(fn)
        return await asyncio.gather(*(perform(ctx.job, work, ctx) for ctx in contexts))

    outcomes = asyncio.run(worker())
    assert outcomes[5] == CancelledOutcome("five")
    assert [each for each in outcomes if each != outcomes[5]] == [
        Completed(str(number)) for number in range(10) if number != 5
    ]


def test_the_end_closes_the_context():
    """A thread that the function left behind reports to nobody; its last word before is kept."""
    ctx = context(ingest_job())

    def fn(reason, ctx):
        ctx.progress(1.0, "all")

    executed(fn, ctx=ctx)
    ctx.progress(0.1, "late")
    assert json.loads(ctx.take_progress(now=0, final=True) or "")["message"] == "all"


def test_running_a_job_costs_little():
    """A no-op through execute() stays far below the cost of a statement."""
    job, work = ingest_job(), work_of(lambda reason: None)
    best = min(_time_of(job, work) for _ in range(5))
    assert best < 100e-6  # some 2 µs; the bound is for a slow machine, and other processes do not count


def _time_of(job: Any, work: Work) -> float:
    began = time.process_time()
    for _ in range(1000):
        execute(job, work, context(job))
    return (time.process_time() - began) / 1000
