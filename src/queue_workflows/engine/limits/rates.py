"""Token buckets as a job uses them: take, wait for what was granted in advance, give back, slow everybody.

A bucket's arithmetic and its clock are the server's (`repositories/limits/rates`); here is only what to do
about the answer. A wait that is too long is not slept through: a thread that sleeps is one that works for
nobody, and the job's own time runs on. Then nothing is taken, and the job is put back until it is worth
another try.
"""

from __future__ import annotations

import math
import threading
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import psycopg

from queue_workflows.engine.limits.wait_loop import (
    Ask,
    DatabaseCalls,
    Pause,
    Procedure,
    Waiter,
    refuse_in_event_loop,
)
from queue_workflows.engine.outcomes import PutBack
from queue_workflows.errors import CostAboveBurst, PayloadError, UnknownRate
from queue_workflows.repositories.limits.rates import RateRepository, Rule, Taken
from queue_workflows.repositories.limits.rates import rule as checked_rule
from queue_workflows.repositories.sql import checks

MAX_WAIT_S: Final = 60.0
Connection: TypeAlias = psycopg.Connection[Any]


class Wish(NamedTuple):
    """What a job wants of a key; `rule` is for a key that nobody else ruled."""

    key: str
    cost: float
    rule: Rule | None
    max_wait_s: float


def wish(key: str, cost: float, *, per_s: float | None, burst: float | None, max_wait_s: float) -> Wish:
    """A checked wish."""
    checks.limit_key(key)
    if not _is_number(cost) or not 0 <= cost < math.inf:
        raise PayloadError(f"cost must be a number from 0 on, not {cost!r:.80}", path="cost")
    if not _is_number(max_wait_s) or not max_wait_s >= 0:
        raise PayloadError(
            f"max_wait_s must be a number of seconds, not {max_wait_s!r:.80}", path="max_wait_s"
        )
    return Wish(key, float(cost), rule_of(per_s, burst), min(float(max_wait_s), checks.LONGEST_S))


def rule_of(per_s: float | None, burst: float | None) -> Rule | None:
    """What code says of a rate, if it does."""
    if per_s is not None:
        return checked_rule(per_s, burst)
    if burst is not None:
        raise PayloadError("burst is given without per_s", path="burst", advice="give both, or neither")
    return None


def taking(wished: Wish) -> Procedure[Taken]:
    """Take, and wait for it; anew where a penalty made void what was granted."""
    while True:
        taken: Taken | None = yield Ask(partial(_take, wished))
        if taken is None:
            raise UnknownRate(wished.key)
        if wished.cost > taken.rule.burst:
            raise CostAboveBurst(wished.key, wished.cost, taken.rule.burst)
        if not taken.granted:
            raise PutBack(min(taken.wait_s, checks.LONGEST_S), f"the rate of {wished.key!r} is used up")
        try:
            yield Pause(taken.wait_s)
        except BaseException:
            with suppress(Exception):
                yield from refunding(wished.key, wished.cost, taken.epoch)
            raise
        if not taken.wait_s:
            return taken
        is_void: bool = yield Ask(partial(_is_void, wished.key, taken.epoch))
        if not is_void:
            return taken


def refunding(key: str, tokens: float, epoch: datetime | None) -> Procedure[None]:
    """Give back what was not used."""
    yield Ask(partial(_refund, key, tokens, epoch))


def penalizing(key: str, seconds: float, rule: Rule | None) -> Procedure[None]:
    """Slow a key for everybody."""
    until: datetime | None = yield Ask(partial(_penalize, key, seconds, rule))
    if until is None:
        raise UnknownRate(key)


class Grant:
    """What `ctx.rate` took, to give back what was not used after all."""

    def __init__(self, wished: Wish, taken: Taken, waiter: Waiter, calls: DatabaseCalls) -> None:
        self.key = wished.key
        self.cost = wished.cost
        self._epoch = taken.epoch
        self._waiter = waiter
        self._calls = calls
        self._lock = threading.Lock()

    def refund(self, tokens: float | None = None) -> None:
        """Give some of it back, or all: the request was not made. Never more than was taken."""
        refuse_in_event_loop("refund", "await grant.refund_async(…)")
        self._calls.run(self._waiter, self._refunding(tokens))

    async def refund_async(self, tokens: float | None = None) -> None:
        """`refund` for async code."""
        await self._calls.run_async(self._waiter, self._refunding(tokens))

    def _refunding(self, tokens: float | None) -> Procedure[None]:
        with self._lock:
            given_back = self.cost if tokens is None else tokens
            if not _is_number(given_back) or not 0 <= given_back <= self.cost:
                raise PayloadError(f"refund: of {self.cost:g} tokens not {tokens!r:.80} can be given back")
            self.cost -= given_back
        return refunding(self.key, given_back, self._epoch)


def _take(wished: Wish, connection: Connection) -> Taken | None:
    buckets = RateRepository(connection)
    return buckets.take(wished.key, wished.cost, rule=wished.rule, max_wait_s=wished.max_wait_s)


def _is_void(key: str, epoch: datetime | None, connection: Connection) -> bool:
    return RateRepository(connection).is_void(key, epoch)


def _refund(key: str, tokens: float, epoch: datetime | None, connection: Connection) -> None:
    RateRepository(connection).refund(key, tokens, epoch)


def _penalize(key: str, seconds: float, rule: Rule | None, connection: Connection) -> datetime | None:
    return RateRepository(connection).penalize(key, seconds, rule=rule)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
