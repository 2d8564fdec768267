"""Tasks on the event loop that all async jobs of a worker share."""

from __future__ import annotations

import asyncio
from typing import Any

from chaos.behaviours import BAD, GOOD, behaviour
from chaos.ledger import monotonic, sleep, work


def _well(ctx: Any) -> dict[str, Any]:
    return {"attempt": ctx.attempt}


@behaviour(*BAD, *GOOD, hangs=True)
async def blocks_the_loop(args: dict[str, Any], ctx: Any) -> None:
    """Everybody on the loop stands still."""
    sleep(60)


@behaviour(*GOOD)
async def good_async(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Does its work on the loop."""
    await asyncio.sleep(args.get("s", 0.02))
    work(ctx, 0)
    return _well(ctx)


@behaviour(*BAD, hangs=True)
async def swallows_cancellation(args: dict[str, Any], ctx: Any) -> None:
    """Will not be cancelled."""
    until = monotonic() + 20
    while monotonic() < until:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            continue


@behaviour(*BAD)
async def raises_cancelled(args: dict[str, Any], ctx: Any) -> None:
    """Raises what the loop takes for a cancellation."""
    raise asyncio.CancelledError


@behaviour(*BAD, *GOOD, harms=True)
async def stops_the_loop(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Stops the loop that everybody shares."""
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0)
    return _well(ctx)


@behaviour(*BAD, *GOOD, harms=True)
async def cancels_the_others(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """Cancels every other task of the loop."""
    here = asyncio.current_task()
    for task in asyncio.all_tasks():
        if task is not here:
            task.cancel()
    return _well(ctx)


@behaviour(*GOOD)
async def leaves_a_task(args: dict[str, Any], ctx: Any) -> dict[str, Any]:
    """A task on the loop that goes on for ever."""

    async def go_on() -> None:
        while True:
            await asyncio.sleep(0.1)

    _TASKS.append(asyncio.get_running_loop().create_task(go_on()))
    return _well(ctx)


_TASKS: list[Any] = []
