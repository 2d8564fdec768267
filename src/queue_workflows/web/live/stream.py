"""A topic as server-sent events: one for each change, and a beat by which a dead peer is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Final

from queue_workflows.web.live.hub import Slot

BEAT_S: Final = 15.0
BEAT: Final = ":\n\n"
# How soon a browser comes back by itself, after a server that went away.
_COME_BACK: Final = "retry: 2000\n\n"


async def events(
    watching: AbstractAsyncContextManager[Slot], *, beat_s: float = BEAT_S
) -> AsyncIterator[str]:
    """What goes over the wire, until the browser goes away."""
    async with watching as slot:
        yield _COME_BACK
        while True:
            try:
                text = await asyncio.wait_for(slot.take(), beat_s)
            except TimeoutError:
                yield BEAT
                continue
            if text is None:
                return
            yield event("page", text)


def event(name: str, text: str) -> str:
    """One event; each line of the text is a line of its own there."""
    data = "".join(f"data: {line}\n" for line in text.splitlines())
    return f"event: {name}\n{data}\n"
