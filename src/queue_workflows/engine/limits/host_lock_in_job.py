"""`ctx.host_lock`: a lock of this machine around a part of a job's body.

It is waited for as a window is: no stall, told by `qwf explain`, ended by whatever stops the job. What the
function leaves held is freed with the job's end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar, Token
from functools import partial
from random import uniform
from typing import Any, Final, Self

import psycopg

from queue_workflows.engine.limits.held_host_locks import KeptLocks
from queue_workflows.engine.limits.wait_loop import (
    Ask,
    Awaited,
    DatabaseCalls,
    Pause,
    Procedure,
    Wait,
    Waiter,
    refuse_in_event_loop,
)
from queue_workflows.engine.outcomes import PutBack
from queue_workflows.host.locks.lock import FIRST_LOOK_S, LONGEST_LOOK_S, HostLock
from queue_workflows.repositories.claims.by_host_lock import HostLockRepository, keys_of, lock_of

# How long a job is put back for that waited in vain.
PUT_BACK_S: Final = 1.0
# What is held around the code that runs here.
_AROUND: Final[ContextVar[tuple[str, ...]]] = ContextVar("qwf_host_locks", default=())


class Locked:
    """What `ctx.host_lock(…)` gives: held between `with` or `async with` and the end of that block."""

    def __init__(
        self,
        waiter: Waiter,
        calls: DatabaseCalls,
        locks: KeptLocks,
        name: str,
        *,
        max_wait_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._waiter = waiter
        self._calls = calls
        self._locks = locks
        self._name = name
        self._max_wait_s = max_wait_s
        self._clock = clock
        self._lock: HostLock | None = None
        self._token: Token[tuple[str, ...]] | None = None

    def __enter__(self) -> Self:
        refuse_in_event_loop("with ctx.host_lock", "async with ctx.host_lock(…)")
        self._begin()
        if not self._is_had:
            self._lock = self._calls.run(self._waiter, self._taking(), self._awaited)
        self._token = _AROUND.set((*_AROUND.get(), self._name))
        return self

    def __exit__(self, *_: object) -> None:
        if self._end():
            with suppress(Exception):
                self._calls.run(self._waiter, self._telling())

    async def __aenter__(self) -> Self:
        self._begin()
        if not self._is_had:
            self._lock = await self._calls.run_async(self._waiter, self._taking(), self._awaited)
        self._token = _AROUND.set((*_AROUND.get(), self._name))
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._end():
            with suppress(Exception):
                await self._calls.run_async(self._waiter, self._telling())

    @property
    def _awaited(self) -> Awaited:
        return Awaited(Wait.HOST_LOCK, (self._name,))

    @property
    def _is_had(self) -> bool:
        """Whether it is the job's own `host_lock`, which it has as long as it runs."""
        own = self._waiter.job.host_lock
        return own is not None and lock_of(own) == self._name

    def _begin(self) -> None:
        if self._name in _AROUND.get():
            raise RuntimeError(f"the host lock {self._name!r} is held around this: it would wait for itself")

    def _taking(self) -> Procedure[HostLock]:
        job = self._waiter.job
        lock = self._locks.lock_for(job, self._name)
        give_up_at, look_s = self._clock() + self._max_wait_s, FIRST_LOOK_S
        while not lock.try_acquire():
            left_s = give_up_at - self._clock()
            if left_s <= 0:
                waited = f"waited {self._max_wait_s:g} s for the host lock {self._name!r}"
                raise PutBack(PUT_BACK_S, waited)
            yield Pause(min(look_s * uniform(0.75, 1.25), left_s))  # noqa: S311
            look_s = min(look_s * 2, LONGEST_LOOK_S)
        self._locks.keep(job.fence, lock)
        try:
            yield Pause(0)
        except BaseException:
            self._locks.let_go(job.fence, lock)
            raise
        return lock

    def _end(self) -> bool:
        """Free it first, whatever the database does; whether somebody is to be told."""
        token, self._token = self._token, None
        if token is not None:
            # A generator may be closed in another context than the one that it was begun in.
            with suppress(ValueError):
                _AROUND.reset(token)
        lock, self._lock = self._lock, None
        return lock is not None and self._locks.let_go(self._waiter.job.fence, lock)

    def _telling(self) -> Procedure[None]:
        host = self._waiter.job.claimed_by.partition(":")[0]
        yield Ask(partial(_promote, self._name, host))


def _promote(name: str, host: str, connection: psycopg.Connection[Any]) -> None:
    HostLockRepository(connection).promote(keys_of([name]), host=host)
