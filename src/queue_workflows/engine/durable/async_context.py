"""`ctx` of an async durable function: each call is a step from the moment that it is called.

A function parks when nothing of it runs any more: a branch that waits lets the steps of the others end first.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from json import loads
from typing import Any, TypeVar

import psycopg

from queue_workflows import clock as time
from queue_workflows.engine.durable.arrivals import STILL, Arrivals
from queue_workflows.engine.durable.base import (
    AGAIN_S,
    IN_PLACE_S,
    NO_DEFAULT,
    VERDICTS,
    DurableBase,
    NotStored,
    all_steps,
    backoff_s_of,
    check_failures,
    check_tries,
    checked_event,
    current_transaction,
    event_of,
    replayed,
    sleep_s,
    took_s_since,
    wait_s,
)
from queue_workflows.engine.durable.branches import is_alone, path_here
from queue_workflows.engine.durable.children import Child, ids_of, is_failure, results_json, results_of
from queue_workflows.engine.durable.connections import CURRENT, AsyncStepTransaction
from queue_workflows.engine.durable.history import Call, History
from queue_workflows.engine.durable.procedures import NewChild, Wait, as_stored
from queue_workflows.engine.limits.wait_loop import Procedure
from queue_workflows.errors import EventTimeout, StepTimeout
from queue_workflows.repositories.durable.steps import NewStep, StepRow, Stored
from queue_workflows.repositories.sql.connection import awaited
from queue_workflows.states import StepKind, StepStatus

T = TypeVar("T")


class AsyncDurableContext(DurableBase):
    """What a durable function does that has to be done once, awaited."""

    def step(
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        retries: int = 0,
        backoff_s: float = 1.0,
        timeout_s: float | None = None,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, Any]:
        """Await `fn(*args, **kwargs)`, and store what it came to; another attempt gets that without a call.

        What it writes on `await ctx.connection()` happens exactly once, in the transaction that stores its
        result; all else that it does at least once. It is tried `retries` times more, at first after
        `backoff_s`; a try that takes longer than `timeout_s` is cancelled. When all have failed it raises
        `StepFailed`. A function that is no coroutine is called in a thread.
        """
        check_tries(retries, backoff_s, timeout_s)
        call = self._come_to(name, StepKind.STEP)
        return self._step(call, lambda: _called(fn, args, kwargs), retries, backoff_s, timeout_s)

    async def connection(self) -> psycopg.AsyncConnection[Any]:
        """The connection that stores the step which runs here; its transaction is not yours to end."""
        connection: psycopg.AsyncConnection[Any] = await current_transaction().begun()
        return connection

    def sleep(
        self,
        seconds: float | timedelta = 0.0,
        *,
        minutes: float = 0.0,
        hours: float = 0.0,
        days: float = 0.0,
        until: datetime | None = None,
        name: str = "sleep",
    ) -> Coroutine[Any, Any, None]:
        """Sleep; from a second on the job parks, and holds no worker meanwhile."""
        delay_s = sleep_s(seconds, minutes, hours, days, until)
        return self._sleep(self._come_to(name, StepKind.SLEEP), delay_s)

    def wait_event(
        self,
        event: str,
        *,
        timeout: float | timedelta | None = None,
        default: Any = NO_DEFAULT,
    ) -> Coroutine[Any, Any, Any]:
        """The payload of an event, which nobody else gets; parked until it is emitted, if it was not before.

        After `timeout` it is `default`, or `EventTimeout` is raised.
        """
        delay_s = wait_s(timeout)
        return self._wait_event(self._come_to(checked_event(event), StepKind.EVENT), event, delay_s, default)

    def gather(self, *children: Child, return_exceptions: bool = False) -> Coroutine[Any, Any, list[Any]]:
        """The results of children, in their order; parked until all of them are over.

        The first that has none is raised as `ChildFailed`, or with `return_exceptions` stands in its place.
        """
        return self._gather(self._come_to("qwf:gather", StepKind.CHILDREN), children, return_exceptions)

    async def continue_as_new(self, args: dict[str, Any] | None = None) -> None:
        """Begin the function anew with these arguments, under this id, and without the steps that it has."""
        text = self._args_of_round(args)
        await self._flush(None)
        self._check_place()
        if self._running:
            raise RuntimeError(
                "steps or waits of this round still run: await them before ctx.continue_as_new"
            )
        anew = self._anew()
        await self._run(self._asks.begin_round(self._history.round + 1, text))
        raise anew

    # What follows is for what runs the function.

    async def begin(self) -> History:
        """Read what is stored."""
        self._running = 0
        self._changed = asyncio.Event()
        self._flushing = asyncio.Lock()
        self._arrivals = Arrivals(self._job.started_at.timestamp())
        rows = await self._run(self._asks.load())
        self._history = History(self._asks.name, rows)
        return self._history

    async def finish(self) -> None:
        """The function has returned: store what is not, and see that nothing was left out."""
        if self._parked is not None:
            raise self._parked
        self._history.close()
        await self._flush(None)

    async def leave(self) -> None:
        """The function has raised: enqueue what it has spawned all the same."""
        async with self._flushing:
            await self._spawn(*self._taken_on_leaving())

    async def _step(
        self,
        call: Call,
        fn: Callable[[], Coroutine[Any, Any, Any]],
        retries: int,
        backoff_s: float,
        timeout_s: float | None,
    ) -> Any:
        self._running += 1
        try:
            row = self._history.stored(call)
            if row is not None:
                await self._comes_again(call, row)
                return replayed(row)
            await self._flush(call)
            tries = 0
            while True:
                tries += 1
                try:
                    value, at = await self._tried(call, fn, tries, timeout_s)
                    break
                except VERDICTS:
                    raise
                except NotStored:
                    tries -= 1
                    await asyncio.sleep(AGAIN_S)
                    continue
                except Exception as exc:
                    if tries > retries:
                        ended_at = await self._comes(call)
                        raise self._failed(call, exc, tries, ended_at=ended_at) from exc
                await asyncio.sleep(backoff_s_of(backoff_s, tries))
            if isinstance(value, StepRow):
                await self._comes_again(call, value)
                return replayed(value)
            await self._comes(call, at)
            return value
        finally:
            self._over()

    async def _sleep(self, call: Call, delay_s: float) -> None:
        self._running += 1
        try:
            row = self._history.stored(call)
            if row is not None and row.status is not StepStatus.WAITING:
                await self._comes_again(call, row)
                return
            left_s = delay_s if row is None or row.wakes_in_s is None else row.wakes_in_s
            if row is None:
                await self._flush(call)
            in_place = left_s <= IN_PLACE_S
            if row is None or not in_place:
                first = self._first_wait(not in_place)
                with self._arrivals.storing():
                    came = await self._run(
                        self._asks.wait(Wait(call, delay_s, parks=not in_place, is_first=first))
                    )
                if came.is_over:
                    await self._comes(call, came.now)
                    return
            if not in_place:
                await self._park(StepKind.SLEEP, call.name)
            await asyncio.sleep(max(0.0, left_s))
            ended_at = await self._comes(call)
            self._late.append(self._asks.step(call, ended_at=ended_at))
        finally:
            self._over()

    async def _wait_event(self, call: Call, event: str, delay_s: float | None, default: Any) -> Any:
        self._running += 1
        try:
            row = self._history.stored(call)
            if row is None or row.status is StepStatus.WAITING:
                await self._flush(call)
                first = self._first_wait(True)
                with self._arrivals.storing():
                    came = await self._run(self._asks.wait(Wait(call, delay_s, event, is_first=first)))
                if not came.is_over:
                    await self._park(StepKind.EVENT, event)
                in_time, payload = came.by_event, came.payload
                await self._comes(call, came.now)
            else:
                await self._comes_again(call, row)
                in_time, payload = event_of(row.result)
            if in_time:
                return payload
            if default is NO_DEFAULT:
                raise EventTimeout(event)
            return default
        finally:
            self._over()

    async def _gather(self, call: Call, children: tuple[Child, ...], return_exceptions: bool) -> list[Any]:
        self._running += 1
        try:
            row = self._history.stored(call)
            if row is not None and row.status is StepStatus.DONE:
                await self._comes_again(call, row)
                return results_of(row.result, return_exceptions=return_exceptions)
            await self._flush(call)
            ids = ids_of(children)
            ends = await self._run(self._asks.gather(call, ids, is_first=self._first_wait(True)))
            if ends is None:
                await self._park(StepKind.CHILDREN, str(len(ids)))
            text = results_json(ids, ends or [])
            if return_exceptions or not is_failure(ends or [], ids):
                await self._comes(call, await self._store(self._asks.step(call, result=text)))
            else:
                ended_at = await self._comes(call)
                self._fails_by(call, self._asks.step(call, result=text, ended_at=ended_at))
            return results_of(loads(text), return_exceptions=return_exceptions)
        finally:
            self._over()

    async def _gather_one(self, child: Child) -> Any:
        return (await self.gather(child))[0]

    def _branch(self) -> str:
        self._arrivals.happened()
        return path_here()

    def _over(self) -> None:
        self._running -= 1
        self._history.ended()
        self._arrivals.happened()
        self._changed.set()

    async def _comes(self, call: Call, at: float | None = None) -> float | None:
        """Let a result come to the function in its turn; when that was, of one that is not stored yet."""
        alone = is_alone()
        ended_at = self._arrivals.moment() if at is None and not alone else None
        moment = at if at is not None else ended_at or self._arrivals.moment()
        await self._arrivals.in_turn(call, moment, alone=alone)
        return ended_at

    async def _comes_again(self, call: Call, row: StepRow) -> None:
        """Let a stored result come in its turn; others run meanwhile, as they did while it was made."""
        if is_alone():
            await asyncio.sleep(0)
        await self._comes(call, row.at)

    def _first_wait(self, parks: bool) -> bool:
        """Whether this is the first wait of the attempt; of those that are under way one alone may be."""
        first = not self._has_waited
        self._has_waited = self._has_waited or parks
        return first

    async def _park(self, kind: StepKind, key: str) -> None:
        """Leave the function as soon as nothing of it runs; what waits does not."""
        self._running -= 1
        try:
            turns = 0
            while turns < STILL:
                if self._running > 0:
                    self._changed.clear()
                    await self._changed.wait()
                    turns = 0
                else:
                    await asyncio.sleep(0)
                    turns += 1
        finally:
            self._running += 1
        raise self._parks(kind, key)

    async def _run(self, procedure: Procedure[T]) -> T:
        return await self._calls.run_async(self._ctx, procedure)

    async def _flush(self, call: Call | None) -> None:
        """Store what has to be before anything goes on, after what another branch is about to store."""
        async with self._flushing:
            await self._spawn(*self._taken(call))

    async def _spawn(self, unborn: list[tuple[NewChild, Child]], steps: list[NewStep]) -> None:
        try:
            if unborn and any(step.status is StepStatus.FAILED for step in steps):
                check_failures(steps, await self._run(self._asks.store(steps)))
                steps = []
            if unborn:
                ids = await self._run(self._asks.spawn(all_steps(unborn), steps))
                for new, child in unborn:
                    child.id = ids[new.call]
            elif steps:
                check_failures(steps, await self._run(self._asks.store(steps)))
        except BaseException:
            self._left(unborn, steps)
            raise

    async def _store(self, step: NewStep) -> float:
        """Store a step; when, by the server's clock."""
        late, self._late = self._late, []
        with self._arrivals.storing():
            return (await self._run(self._asks.store([*late, step])))[-1].at

    async def _store_late(self) -> None:
        late, self._late = self._late, []
        await self._run(self._asks.store(late))

    async def _stored(self, transaction: AsyncStepTransaction, step: NewStep) -> Stored:
        """Store a step, with what it has written if it has."""
        if transaction.connection is not None:
            transaction.take_back(transaction.connection)
            if any(late.ended_at is not None for late in self._late):
                # The branch that came after it is not to be stored before it.
                await self._store_late()
            answer: Any = await awaited(
                transaction.connection, lambda usable: usable and self._asks.store_on(usable, step)
            )
            stored: Stored = answer
            if stored.is_new:
                await transaction.commit()
            return stored
        late, self._late = self._late, []
        return (await self._run(self._asks.store([*late, step])))[-1]

    async def _tried(
        self, call: Call, fn: Callable[[], Coroutine[Any, Any, Any]], tries: int, timeout_s: float | None
    ) -> tuple[Any, float]:
        transaction, began = AsyncStepTransaction(), time.monotonic()
        token = CURRENT.set(transaction)
        try:
            value = await (fn() if timeout_s is None else _within(timeout_s, fn, call.name))
        except BaseException:
            await transaction.roll_back()
            raise
        finally:
            CURRENT.reset(token)
        try:
            text = self._json(call, value)
            step = self._asks.step(call, result=text, tries=tries, took_s=took_s_since(began))
            with self._arrivals.storing():
                stored = await self._stored(transaction, step)
        except BaseException as exc:
            await transaction.roll_back()
            if isinstance(exc, VERDICTS) or not (transaction.is_lost and isinstance(exc, Exception)):
                raise
            # It may be committed all the same, which the database says once it is there again.
            row = await self._run(self._asks.row_of(call))
            if row is None:
                raise NotStored from exc
            return row, row.at
        if stored.is_new:
            return as_stored(value, text), stored.at
        # An attempt before this one has stored it since, or the answer to our own question was lost.
        await transaction.roll_back()
        row = await self._run(self._asks.row_of(call))
        return (value, stored.at) if row is None else (row, row.at)


async def _called(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None)):  # noqa: B004
        return await fn(*args, **kwargs)
    value = await asyncio.to_thread(fn, *args, **kwargs)
    return await value if inspect.isawaitable(value) else value


async def _within(timeout_s: float, fn: Callable[[], Coroutine[Any, Any, Any]], name: str) -> Any:
    try:
        async with asyncio.timeout(timeout_s) as limit:
            return await fn()
    except TimeoutError as exc:
        if limit.expired():
            raise StepTimeout(name, timeout_s) from exc
        raise
