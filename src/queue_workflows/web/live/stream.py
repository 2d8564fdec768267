"""A topic as server-sent events: one for each change, and a beat by which a dead peer is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

from queue_workflows.web.live.hub import Slot

BEAT_S: Final = 15.0
# Nothing is sent to a user that was asked about longer ago.
ASKED_AGAIN_S: Final = 5.0
BEAT: Final = ":\n\n"
# How soon a browser comes back by itself, after a server that went away.
_COME_BACK: Final = "retry: 2000\n\n"


async def events(
    watching: AbstractAsyncContextManager[Slot],
    *,
    refused: Callable[[], Awaitable[str | None]],
    beat_s: float = BEAT_S,
    asked_again_s: float = ASKED_AGAIN_S,
) -> AsyncIterator[str]:
    """What goes over the wire, until the browser goes away, or its user may not see it any more.

    `refused` says so: with the text that stands on the page from then on, which is the last that is sent.
    """
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
            if is_over:
                return
            if time() - asked_at >= asked_again_s:
                asked_at, why = time(), await refused()
                if why is not None:
                    yield event("page", why)
                    return
            yield sent


def event(name: str, text: str) -> str:
    """One event; each line of the text is a line of its own there."""
    data = "".join(f"data: {line}\n" for line in text.splitlines())
    return f"event: {name}\n{data}\n"
