"""What every answer and every server gets of the page, whatever was asked: headers, a start and an end."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Receive, Send

from queue_workflows.web.access.requests import HEADERS


def with_headers(send: Send) -> Send:
    """As `send`, with the headers that every response has."""

    async def sends(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
        await send(message)

    return sends


async def live_through(receive: Receive, send: Send) -> None:
    """A server that asks for a start and an end gets both; nothing here waits for them."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await send({"type": "lifespan.shutdown.complete"})
            return
