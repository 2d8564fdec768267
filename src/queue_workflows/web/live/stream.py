"""A topic as server-sent events: one for each change, and a beat by which a dead peer is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

from queue_workflows.web.live.hub import Slot

BEAT_S: Final = 15.0
BEAT: Final = ":\n\n"
# How soon a browser comes back by itself, after a server that went away.
_COME_BACK: Final = "retry: 2000\n\n"


async def events(
    watching: AbstractAsyncContextManager[Slot],
    *,
    may_watch: Callable[[], Awaitable[bool]],
    beat_s: float = BEAT_S,
) -> AsyncIterator[str]:
    """What goes over the wire, until the browser goes away, or its user may not see it any more."""
    time = asyncio.get_running_loop().time
    async with watching as slot:
        yield _COME_BACK
        asked_at = time()
        while True:
            try:
                text = await asyncio.wait_for(slot.take(), beat_s)
                is_over, sent = text is None, event("page", text or "")
            except TimeoutError:
                is_over, sent = False, BEAT
            if time() - asked_at >= beat_s and not is_over:
                asked_at, is_over = time(), not await may_watch()
            if is_over:
                return
            yield sent


def event(name: str, text: str) -> str:
    """One event; each line of the text is a line of its own there."""
    data = "".join(f"data: {line}\n" for line in text.splitlines())
    return f"event: {name}\n{data}\n"
