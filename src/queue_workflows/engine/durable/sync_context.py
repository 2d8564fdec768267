"""`ctx` of a durable function that is no coroutine: each call returns when its step is stored."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context
from datetime import datetime, timedelta
from json import loads
from typing import Any, ParamSpec, TypeVar

import psycopg

from queue_workflows import clock as time
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
from queue_workflows.engine.durable.children import Child, ids_of, is_failure, results_json, results_of
from queue_workflows.engine.durable.connections import CURRENT, StepTransaction
from queue_workflows.engine.durable.history import Call, History
from queue_workflows.engine.durable.procedures import NewChild, Wait, as_stored
from queue_workflows.engine.limits.wait_loop import Procedure
from queue_workflows.errors import EventTimeout, StepTimeout
from queue_workflows.repositories.durable.steps import NewStep
from queue_workflows.states import StepKind, StepStatus

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class DurableContext(DurableBase):
    """What a durable function does that has to be done once."""

    def step(
        self,
        name: str,
        fn: Callable[..., R],
        *args: Any,
        retries: int = 0,
        backoff_s: float = 1.0,
        timeout_s: float | None = None,
        **kwargs: Any,
    ) -> R:
        """Call `fn(*args, **kwargs)`, and store what it returned; another attempt gets that without a call.

        What it writes on `ctx.connection()` happens exactly once, in the transaction that stores its result;
        all else that it does at least once. It is tried `retries` times more, at first after `backoff_s`; a
        try that takes longer than `timeout_s` is given up, though it may go on in its thread. When all have
        failed it raises `StepFailed`.
        """
        check_tries(retries, backoff_s, timeout_s)
        call = self._come_to(name, StepKind.STEP)
        try:
            row = self._history.stored(call)
            if row is not None:
                return replayed(row)  # type: ignore[no-any-return]
            self._flush(call)
            tries = 0
            while True:
                tries += 1
                try:
                    return self._tried(call, lambda: fn(*args, **kwargs), tries, timeout_s)
                except VERDICTS:
                    raise
                except NotStored:
                    tries -= 1
                    self._ctx.sleep(AGAIN_S)
                    continue
                except Exception as exc:
                    if tries > retries:
                        raise self._failed(call, exc, tries) from exc
                self._ctx.sleep(backoff_s_of(backoff_s, tries))
        finally:
            self._history.ended()

    def connection(self) -> psycopg.Connection[Any]:
        """The connection that stores the step which runs here; its transaction is not yours to end."""
        connection: psycopg.Connection[Any] = current_transaction().begun()
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
    ) -> None:
        """Sleep; from a second on the job parks, and holds no worker meanwhile."""
        delay_s = sleep_s(seconds, minutes, hours, days, until)
        call = self._come_to(name, StepKind.SLEEP)
        try:
            row = self._history.stored(call)
            if row is not None and row.status is not StepStatus.WAITING:
                return
            left_s = delay_s if row is None or row.wakes_in_s is None else row.wakes_in_s
            if row is None:
                self._flush(call)
            in_place = left_s <= IN_PLACE_S
            if row is None or not in_place:
                came = self._run(
                    self._asks.wait(Wait(call, delay_s, parks=not in_place, is_first=not self._has_waited))
                )
                if came.is_over:
                    return
            if not in_place:
                self._has_waited = True
                raise self._parks(StepKind.SLEEP, call.name)
            self._ctx.sleep(max(0.0, left_s))
            self._late.append(self._asks.step(call))
        finally:
            self._history.ended()

    def wait_event(
        self,
        event: str,
        *,
        timeout: float | timedelta | None = None,
        default: Any = NO_DEFAULT,
    ) -> Any:
        """The payload of an event, which nobody else gets; parked until it is emitted, if it was not before.

        After `timeout` it is `default`, or `EventTimeout` is raised.
        """
        delay_s = wait_s(timeout)
        call = self._come_to(checked_event(event), StepKind.EVENT)
        try:
            row = self._history.stored(call)
            if row is None or row.status is StepStatus.WAITING:
                self._flush(call)
                came = self._run(self._asks.wait(Wait(call, delay_s, event, is_first=not self._has_waited)))
                if not came.is_over:
                    self._has_waited = True
                    raise self._parks(StepKind.EVENT, event)
                in_time, payload = came.by_event, came.payload
            else:
                in_time, payload = event_of(row.result)
            if in_time:
                return payload
            if default is NO_DEFAULT:
                raise EventTimeout(event)
            return default
        finally:
            self._history.ended()

    def gather(self, *children: Child, return_exceptions: bool = False) -> list[Any]:
        """The results of children, in their order; parked until all of them are over.

        The first that has none is raised as `ChildFailed`, or with `return_exceptions` stands in its place.
        """
        call = self._come_to("qwf:gather", StepKind.CHILDREN)
        try:
            row = self._history.stored(call)
            if row is not None and row.status is StepStatus.DONE:
                return results_of(row.result, return_exceptions=return_exceptions)
            self._flush(call)
            ids = ids_of(children)
            ends = self._run(self._asks.gather(call, ids, is_first=not self._has_waited))
            if ends is None:
                self._has_waited = True
                raise self._parks(StepKind.CHILDREN, str(len(ids)))
            text = results_json(ids, ends)
            if return_exceptions or not is_failure(ends, ids):
                self._store([self._asks.step(call, result=text)])
            else:
                self._fails_by(call, self._asks.step(call, result=text))
            return results_of(loads(text), return_exceptions=return_exceptions)
        finally:
            self._history.ended()

    def continue_as_new(self, args: dict[str, Any] | None = None) -> None:
        """Begin the function anew with these arguments, under this id, and without the steps that it has."""
        text = self._args_of_round(args)
        self._flush(None)
        anew = self._anew()
        self._run(self._asks.begin_round(self._history.round + 1, text))
        raise anew

    # What follows is for what runs the function.

    def begin(self) -> History:
        """Read what is stored."""
        self._thread = threading.get_ident()
        rows = self._run(self._asks.load())
        self._history = History(self._asks.name, rows)
        return self._history

    def finish(self) -> None:
        """The function has returned: store what is not, and see that nothing was left out."""
        if self._parked is not None:
            raise self._parked
        self._history.close()
        self._flush(None)

    def leave(self) -> None:
        """The function has raised: enqueue what it has spawned all the same."""
        self._spawn(*self._taken_on_leaving())

    def _gather_one(self, child: Child) -> Any:
        return self.gather(child)[0]

    def _branch(self) -> str:
        if threading.get_ident() != self._thread:
            raise RuntimeError(
                "ctx was called by another thread than the function's, so that another attempt could not tell"
                " which call it is: let an async function run steps side by side, or spawn jobs"
            )
        return ""

    def _run(self, procedure: Procedure[T]) -> T:
        return self._calls.run(self._ctx, procedure)

    def _flush(self, call: Call | None) -> None:
        """Store what has to be before anything goes on."""
        self._spawn(*self._taken(call))

    def _spawn(self, unborn: list[tuple[NewChild, Child]], steps: list[NewStep]) -> None:
        try:
            if unborn and any(step.status is StepStatus.FAILED for step in steps):
                check_failures(steps, self._run(self._asks.store(steps)))
                steps = []
            if unborn:
                ids = self._run(self._asks.spawn(all_steps(unborn), steps))
                for new, child in unborn:
                    child.id = ids[new.call]
            elif steps:
                check_failures(steps, self._run(self._asks.store(steps)))
        except BaseException:
            self._left(unborn, steps)
            raise

    def _store(self, steps: list[NewStep]) -> None:
        late, self._late = self._late, []
        self._run(self._asks.store([*late, *steps]))

    def _stored(self, transaction: StepTransaction, step: NewStep) -> bool:
        """Store a step, with what it has written if it has; whether it was not there before."""
        if transaction.connection is not None:
            transaction.take_back(transaction.connection)
            is_new = self._asks.store_on(transaction.connection, step).is_new
            if is_new:
                transaction.commit()
            return is_new
        late, self._late = self._late, []
        return (self._run(self._asks.store([*late, step])))[-1].is_new

    def _tried(self, call: Call, fn: Callable[[], R], tries: int, timeout_s: float | None) -> R:
        transaction, began = StepTransaction(), time.monotonic()
        token = CURRENT.set(transaction)
        try:
            value = fn() if timeout_s is None else _within(timeout_s, fn, call.name)
        except BaseException:
            transaction.roll_back()
            raise
        finally:
            CURRENT.reset(token)
        try:
            text = self._json(call, value)
            step = self._asks.step(call, result=text, tries=tries, took_s=took_s_since(began))
            stored = self._stored(transaction, step)
        except BaseException as exc:
            transaction.roll_back()
            if isinstance(exc, VERDICTS) or not (transaction.is_lost and isinstance(exc, Exception)):
                raise
            # It may be committed all the same, which the database says once it is there again.
            row = self._run(self._asks.row_of(call))
            if row is None:
                raise NotStored from exc
            return replayed(row)  # type: ignore[no-any-return]
        if stored:
            return as_stored(value, text)  # type: ignore[no-any-return]
        # An attempt before this one has stored it since, or the answer to our own question was lost.
        transaction.roll_back()
        row = self._run(self._asks.row_of(call))
        return value if row is None else replayed(row)


def _within(timeout_s: float, fn: Callable[[], R], name: str) -> R:
    """Call it in a thread of its own, which is left to itself when the time is over."""
    results: list[R] = []
    raised: list[BaseException] = []

    def call() -> None:
        try:
            results.append(fn())
        except BaseException as exc:
            raised.append(exc)

    thread = threading.Thread(target=copy_context().run, args=(call,), name="qwf-step", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if raised:
        raise raised[0]
    if not results:
        raise StepTimeout(name, timeout_s)
    return results[0]
