"""One synchronous flow of a verb on an asynchronous connection: what it asks is awaited by its caller's loop.

    await run_flow(flow)          flow(), on a stack of its own
        await fetch(…)   <─────   await_here(fetch(…)): the flow stands still
                         ─────>   and goes on with the rows

A verb checks, sends, reads and decides in the same lines on every connection; only where it waits for the
server does the loop get its turn. SQLAlchemy's `run_sync` works in this way, and is used for its connections.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from greenlet import getcurrent, greenlet

T = TypeVar("T")
_IS_FLOWING: Final[ContextVar[bool]] = ContextVar("queue_workflows_flow", default=False)


class _Flow(greenlet):
    """A flow with what is current where it is awaited, its trace for one."""

    def __init__(self, flow: Callable[[], Any]) -> None:
        awaiting = getcurrent()
        super().__init__(flow, awaiting)
        self.gr_context = awaiting.gr_context


async def run_flow(flow: Callable[[], T]) -> T:
    """What the flow returns or raises; a cancellation reaches it where it waits."""
    flowing = _Flow(lambda: within_flow(flow))
    asked = flowing.switch()
    while not flowing.dead:
        try:
            got = await asked
        except BaseException:
            asked = flowing.throw(*sys.exc_info())
        else:
            asked = flowing.switch(got)
    result: T = asked
    return result


def within_flow(flow: Callable[[], T]) -> T:
    """The flow, marked as one that is awaited."""
    token = _IS_FLOWING.set(True)
    try:
        return flow()
    finally:
        _IS_FLOWING.reset(token)


def is_flowing() -> bool:
    """Whether what runs here is a flow that is awaited."""
    return _IS_FLOWING.get()


def await_here(ask: Callable[[], Awaitable[T]]) -> T:
    """Have the loop await this, and come back with what it brings; only in a flow of `run_flow`."""
    awaiting = getcurrent().parent
    assert awaiting is not None  # noqa: S101 - a flow was made by what awaits it
    got: T = awaiting.switch(ask())
    return got
