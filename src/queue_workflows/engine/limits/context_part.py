"""The part of `ctx` by which a job keeps to limits that it shares with all others: rates and windows."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from queue_workflows.engine.limits.host_lock_in_job import Locked
from queue_workflows.engine.limits.rates import MAX_WAIT_S, Grant, penalizing, rule_of, taking, wish
from queue_workflows.engine.limits.wait_loop import Awaited, Procedure, Wait, refuse_in_event_loop
from queue_workflows.engine.limits.windows import Window, Windows
from queue_workflows.engine.outcomes import RetryAfter
from queue_workflows.engine.telemetry import UNOBSERVED, Unobserved
from queue_workflows.errors import ConfigurationError
from queue_workflows.repositories.limits.rates import Rule
from queue_workflows.repositories.sql import checks
from queue_workflows.telemetry.names import LIMIT_WAIT, LOCK_WAIT, RATE_SLEEP

if TYPE_CHECKING:
    from queue_workflows.engine.limits.refusals import Refused

_METRICS: Final = {Wait.RATE: RATE_SLEEP, Wait.LIMIT: LIMIT_WAIT, Wait.HOST_LOCK: LOCK_WAIT}


class Waits(NamedTuple):
    """How long, and how often, an attempt has waited for rates, for windows and for host locks."""

    rate_s: float = 0.0
    rates: int = 0
    limit_s: float = 0.0
    limits: int = 0
    lock_s: float = 0.0
    locks: int = 0

    def plus(self, what: Wait, seconds: float) -> Waits:
        """One wait more."""
        if what is Wait.RATE:
            return self._replace(rate_s=self.rate_s + seconds, rates=self.rates + 1)
        if what is Wait.HOST_LOCK:
            return self._replace(lock_s=self.lock_s + seconds, locks=self.locks + 1)
        return self._replace(limit_s=self.limit_s + seconds, limits=self.limits + 1)


class Limited(ABC):
    """What a `JobContext` has of limits; nothing of it costs a job that keeps to none."""

    job: Any
    last_beat: float | None
    waits: Waits = Waits()
    # What it waits for at this moment, each with when that began; an async job may wait for several at once.
    awaiting: tuple[tuple[Awaited, float], ...] = ()
    # What telemetry is told of it; of the class, as most have nobody to tell.
    observed: Unobserved = UNOBSERVED
    _windows: Windows | None = None
    _clock: Callable[[], float]
    # The rate that it took from last, when it began to use what it shares, and the windows that an exception
    # has left.
    _rate: str | None = None
    _used_at: float | None = None
    _left_by: tuple[BaseException, tuple[str, ...]] | None = None
    _waiting = 0
    _beat_before = -math.inf

    def rate(
        self,
        key: str,
        cost: float = 1.0,
        *,
        per_s: float | None = None,
        burst: float | None = None,
        max_wait_s: float = MAX_WAIT_S,
    ) -> Grant:
        """Take `cost` tokens of a key's bucket, which all workers share, and wait until they are there.

        `per_s` and `burst` are the rule where no operator set one. Where the wait would be longer than
        `max_wait_s`, nothing is taken and `RetryAfter` puts the job back, uncounted.
        """
        refuse_in_event_loop("ctx.rate", "await ctx.rate_async(…)")
        wished = wish(key, cost, per_s=per_s, burst=burst, max_wait_s=max_wait_s)
        calls = self._reach().calls
        taken = calls.run(self, taking(wished), Awaited(Wait.RATE, (key,)))
        self.uses(key)
        return Grant(wished, taken, self, calls)

    async def rate_async(
        self,
        key: str,
        cost: float = 1.0,
        *,
        per_s: float | None = None,
        burst: float | None = None,
        max_wait_s: float = MAX_WAIT_S,
    ) -> Grant:
        """`rate` for async code."""
        wished = wish(key, cost, per_s=per_s, burst=burst, max_wait_s=max_wait_s)
        calls = self._reach().calls
        taken = await calls.run_async(self, taking(wished), Awaited(Wait.RATE, (key,)))
        self.uses(key)
        return Grant(wished, taken, self, calls)

    def penalize(
        self, key: str, seconds: float, *, per_s: float | None = None, burst: float | None = None
    ) -> None:
        """Let no job, not even a waiting one, take from a key's bucket for so long, as its server asked."""
        refuse_in_event_loop("ctx.penalize", "await ctx.penalize_async(…)")
        self._reach().calls.run(self, self._penalizing(key, seconds, per_s, burst))

    async def penalize_async(
        self, key: str, seconds: float, *, per_s: float | None = None, burst: float | None = None
    ) -> None:
        """`penalize` for async code."""
        await self._reach().calls.run_async(self, self._penalizing(key, seconds, per_s, burst))

    def limit(self, *keys: str, max: int | None = None, max_wait_s: float = MAX_WAIT_S) -> Window:  # noqa: A002
        """A window: `with` or `async with` it, and inside hold a slot of each key; a key has only so many.

        That is what the operator set, or `max` where that is less or nothing was set; without either the key
        is open. All keys are waited for together. A job that waits for longer than `max_wait_s` is put back
        by `RetryAfter`, uncounted.
        """
        checks.seconds_or_none("max_wait_s", min(max_wait_s, checks.LONGEST_S), zero=True)
        return Window(self, self._reach(), keys, most=max, max_wait_s=max_wait_s)

    def host_lock(self, name: str, *, max_wait_s: float = MAX_WAIT_S) -> Locked:
        """A lock of this machine: `with` or `async with` it, and inside be the only one here that has it.

        A job that waits for longer than `max_wait_s` is put back by `RetryAfter`, uncounted.
        """
        checks.seconds_or_none("max_wait_s", min(max_wait_s, checks.LONGEST_S), zero=True)
        reach = self._reach()
        return Locked(
            self,
            reach.calls,
            reach.locks,
            checks.text("name", name),
            max_wait_s=max_wait_s,
            clock=reach.clock,
        )

    # What follows is for what waits in the job's name.

    def uses(self, rate: str | None = None) -> None:
        """Something of a server begins now: with a token of this rate, or in a window."""
        self._used_at = self._clock()
        if rate is not None:
            self._rate = rate

    def left_window(self, exc: BaseException, keys: Sequence[str]) -> None:
        """An exception has left the window of these keys."""
        before = self._left_by[1] if self._left_by is not None and self._left_by[0] is exc else ()
        self._left_by = exc, (*before, *keys)

    def refused(self, exc: BaseException, verdict: BaseException) -> Refused | None:
        """What of this job's limits was asked too much, as its function raised `exc`; None if nothing was.

        `verdict` is that of the exceptions in a group which counts.
        """
        # Most jobs end as they should, and most workers would load it for nothing.
        from queue_workflows.engine.limits.refusals import Refused, asks_for_less

        rate = verdict.penalize if isinstance(verdict, RetryAfter) else None
        if rate is None and (self._windows is None or not asks_for_less(verdict)):
            return None
        left = self._left_by[1] if self._left_by is not None and self._left_by[0] in (exc, verdict) else ()
        keys = {self.job.limit_key, *left, rate or self._rate} - {None}
        return Refused(frozenset(keys), self._since, rate, getattr(verdict, "delay_s", 0.0))

    @property
    def _since(self) -> datetime | float:
        """When that began which a server refuses: so many seconds ago, or the moment of the claim."""
        began: datetime = self.job.started_at
        return began if self._used_at is None else self._clock() - self._used_at

    def heed(self, refused: Refused) -> None:
        """Ask less of what was asked too much."""
        self._reach().calls.run(self, self._heeding(refused))

    async def heed_async(self, refused: Refused) -> None:
        """`heed` for async code."""
        await self._reach().calls.run_async(self, self._heeding(refused))

    def _heeding(self, refused: Refused) -> Procedure[None]:
        from queue_workflows.engine.limits.refusals import lowering

        unadapted = self._reach().unadapted
        try:
            if refused.rate is not None:
                yield from penalizing(refused.rate, refused.delay_s, None)
        finally:
            yield from lowering(unadapted, refused.keys, refused.since)

    @contextmanager
    def waiting(self, what: Awaited | None) -> Iterator[Callable[[], None]]:
        """What the engine has a job wait for is no stall; yields what to call where the wait begins."""
        began: list[float] = []

        def begins() -> None:
            began.append(self._clock())
            if len(began) == 1 and what is not None:
                with self._lock:
                    self.awaiting = (*self.awaiting, (what, began[0]))

        with self._lock:
            if self._waiting == 0:
                self._beat_before = -math.inf if self.last_beat is None else self.last_beat
                self.last_beat = None if self.last_beat is None else math.inf
            self._waiting += 1
        try:
            yield begins
        finally:
            with self._lock:
                now = self._clock()
                self._waiting -= 1
                if self._waiting == 0 and self.last_beat is not None:
                    self.last_beat = max(now, self._beat_before)
                if began and what is not None:
                    self.waits = self.waits.plus(what.what, now - began[0])
                    self.awaiting = tuple(one for one in self.awaiting if one != (what, began[0]))
            if began and what is not None:
                self.observed.waited(_METRICS[what.what], now - began[0])

    @property
    @abstractmethod
    def _lock(self) -> threading.Lock:
        """Around what several threads of a job may change."""

    @abstractmethod
    def raise_if_cancelled(self) -> None:
        """Raise `Cancelled` if this attempt has to stop."""

    @abstractmethod
    def interrupted_by(self, interrupt: Callable[[], None]) -> AbstractContextManager[None]:
        """Have `interrupt` called when the attempt has to stop."""

    def _reach(self) -> Windows:
        if self._windows is None:
            raise ConfigurationError(
                "this job runs outside a worker, which shares limits with nobody",
                advice="give what runs it a stand-in for ctx, or run a worker",
            )
        return self._windows

    def _penalizing(
        self, key: str, seconds: float, per_s: float | None, burst: float | None
    ) -> Procedure[None]:
        checks.limit_key(key)
        checks.seconds_or_none("seconds", seconds, zero=True)
        return self._slowing(key, float(seconds), rule_of(per_s, burst))

    def _slowing(self, key: str, seconds: float, rule: Rule | None) -> Procedure[None]:
        from queue_workflows.engine.limits.refusals import lowering

        yield from penalizing(key, seconds, rule)
        yield from lowering(self._reach().unadapted, [key], self._since)
