"""The wiring of a host app with a durable function that writes down each step, its attempt with it."""

from __future__ import annotations

import asyncio
from typing import Any

from support.stages.durable_kills import note

from queue_workflows import ingest_task

STEPS = 10


@ingest_task("survivor", queue="fetch", durable=True, max_crashes=1000, max_attempts=100, backoff=0)
async def survivor(reason: str | None, args: dict[str, Any], *, ctx: Any) -> list[int]:
    """Ten steps, a nap in their midst, and an event that was emitted before."""

    async def do(number: int) -> int:
        await asyncio.sleep(0.05)
        note(args["ledger"], f"{ctx.id} {ctx.attempt} {number}")
        return number

    done = [await ctx.step(f"step {number}", do, number) for number in range(STEPS // 2)]
    await ctx.sleep(1.2)
    done.append(await ctx.wait_event(f"go:{args['n']}"))
    return done + [await ctx.step(f"step {number}", do, number) for number in range(STEPS // 2, STEPS)]


@ingest_task("branching", queue="fetch", durable=True, max_attempts=1)
async def branching(reason: str | None, args: dict[str, Any], *, ctx: Any) -> list[str]:
    """Branches with the same steps, the first of which is the last to have its first one."""

    async def fetch(number: int) -> int:
        await asyncio.sleep(0.02 * (3 - number))
        return number

    async def branch(number: int) -> str:
        await ctx.step("fetch", fetch, number)
        await ctx.sleep(1.2)
        return await ctx.step("pay", lambda: f"paid {number}")

    return await asyncio.gather(*[branch(number) for number in range(3)])
