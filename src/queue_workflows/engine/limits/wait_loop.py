"""How a job's own code asks the database and waits for the answer, in sync and in async code alike.

A procedure is a generator that yields what it needs, a question or a pause, and is sent what came of it. So
each exists once; what differs between the two worlds is here. An async job that is cancelled while a question
is under way gets the answer all the same, and the cancellation with the step after it: whatever the answer
brought is then let go of.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import psycopg

from queue_workflows.repositories.sql.claimed_job import ClaimedJob

T = TypeVar("T")
Question: TypeAlias = Callable[[psycopg.Connection[Any]], Any]


class Wakeup:
    """Ends a pause before its time; rung from any thread, any number of times."""

    def __init__(self) -> None:
        self._rung = threading.Event()
        self._listener: Callable[[], None] | None = None

    def ring(self) -> None:
        """End the pause, also one that has yet to begin."""
        self._rung.set()
        if self._listener is not None:
            self._listener()

    def wait(self, seconds: float) -> None:
        """Pause this thread."""
        self._rung.wait(min(seconds, threading.TIMEOUT_MAX))

    async def wait_async(self, seconds: float) -> None:
        """Pause this task."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            # The loop may be closed by now: then nobody pauses on it.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(woken.set)

        self._listener = wake
        if self._rung.is_set():
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(woken.wait(), seconds)


class Ask(NamedTuple):
    """A short question, which has to bear being asked twice."""

    question: Question


class Pause(NamedTuple):
    """So long, or until the bell rings; also the place where an attempt that has to stop does so."""

    seconds: float
    bell: Wakeup | None = None


Procedure: TypeAlias = Generator[Ask | Pause, Any, T]


class Wait(Enum):
    """What a wait was for."""

    RATE = "rate"
    LIMIT = "limit"
    HOST_LOCK = "host_lock"


class Awaited(NamedTuple):
    """What a job waits for: a rate's tokens, a slot of each of these keys, or a lock of its machine."""

    what: Wait
    keys: tuple[str, ...]


class Waiter(Protocol):
    """What is needed of a `JobContext`."""

    job: Any

    def raise_if_cancelled(self) -> None: ...

    def interrupted_by(self, interrupt: Callable[[], None]) -> AbstractContextManager[None]: ...

    def waiting(self, what: Awaited | None) -> AbstractContextManager[Callable[[], None]]: ...

    def uses(self, rate: str | None = None) -> None: ...

    def left_window(self, exc: BaseException, keys: Sequence[str]) -> None: ...


class DatabaseCalls:
    """One for all jobs of a worker: what asks in the name of a job, and a thread that async code asks on."""

    def __init__(
        self,
        ask: Callable[[ClaimedJob, Question], Any],
        *,
        on_failure: Callable[[BaseException], None] = lambda _exc: None,
    ) -> None:
        """`ask` waits out an outage while the job is held, and raises `LeaseLost` when it is not.

        `on_failure` is told why the thread cannot be started, and ends the process if that is at fault.
        """
        self._ask = ask
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._thread: ThreadPoolExecutor | None = None

    def run(self, waiter: Waiter, procedure: Procedure[T], what: Awaited | None = None) -> T:
        """Do it in this thread."""
        answer: Any = None
        failure: BaseException | None = None
        with waiter.waiting(what) as begins:
            while True:
                try:
                    step = procedure.send(answer) if failure is None else procedure.throw(failure)
                except StopIteration as ended:
                    result: T = ended.value
                    return result
                answer = failure = None
                try:
                    if isinstance(step, Ask):
                        answer = self._ask(waiter.job, step.question)
                    else:
                        _pause(waiter, step, begins)
                except BaseException as exc:
                    failure = exc

    async def run_async(self, waiter: Waiter, procedure: Procedure[T], what: Awaited | None = None) -> T:
        """Do it on the running loop; an answer that a cancelled task no longer waits for is not lost."""
        answer: Any = None
        failure: BaseException | None = None
        cancelled: asyncio.CancelledError | None = None
        with waiter.waiting(what) as begins:
            while True:
                try:
                    step = procedure.send(answer) if failure is None else procedure.throw(failure)
                except StopIteration as ended:
                    if cancelled is not None:
                        raise cancelled from None
                    result: T = ended.value
                    return result
                answer = failure = None
                if cancelled is not None:
                    failure, cancelled = cancelled, None
                    continue
                try:
                    if isinstance(step, Ask):
                        asked = self._in_thread(partial(self._ask, waiter.job, step.question))
                        cancelled = await _settled(asked)
                        answer = asked.result()
                    else:
                        await _pause_async(waiter, step, begins)
                except BaseException as exc:
                    failure = exc

    async def apart(self, work: Callable[[], T]) -> T:
        """Do what waits for the database off the loop, and to its end whatever is cancelled meanwhile."""
        asked = self._in_thread(work)
        cancelled = await _settled(asked)
        answer: T = asked.result()
        if cancelled is not None:
            raise cancelled
        return answer

    def close(self) -> None:
        """Nobody asks any more."""
        with self._lock:
            if self._thread is not None:
                self._thread.shutdown(wait=False)

    def _in_thread(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """Not on the loop's usual threads: all of those may wait for what a job on the loop holds."""
        with self._lock:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="qwf-ask")
        try:
            return asyncio.get_running_loop().run_in_executor(self._thread, work)
        except Exception as refused:
            self._on_failure(refused)
            raise


def _pause(waiter: Waiter, pause: Pause, begins: Callable[[], None]) -> None:
    if pause.seconds > 0:
        begins()
        bell = pause.bell or Wakeup()
        with waiter.interrupted_by(bell.ring):
            bell.wait(pause.seconds)
    waiter.raise_if_cancelled()


async def _pause_async(waiter: Waiter, pause: Pause, begins: Callable[[], None]) -> None:
    if pause.seconds > 0:
        begins()
        bell = pause.bell or Wakeup()
        with waiter.interrupted_by(bell.ring):
            await bell.wait_async(pause.seconds)
    waiter.raise_if_cancelled()


async def _settled(asked: asyncio.Future[Any]) -> asyncio.CancelledError | None:
    """Wait for an answer to the end; the cancellation that came meanwhile, if one did."""
    cancelled = None
    while not asked.done():
        try:
            await asyncio.wait([asked])
        except asyncio.CancelledError as exc:
            cancelled = exc
    return cancelled


def in_event_loop() -> bool:
    """Whether what blocks here blocks an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def refuse_in_event_loop(called: str, instead: str) -> None:
    """Blocking calls are for sync code, as one of them would stop all jobs of the loop."""
    if in_event_loop():
        raise RuntimeError(f"{called}() would block the event loop: use `{instead}`")
