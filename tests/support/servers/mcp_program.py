"""A program that asks by the Model Context Protocol: the SDK's own client, over both ways that lead to us."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult

from queue_workflows.config import effective_settings
from queue_workflows.web.serving import Served, served_page

T = TypeVar("T")
Talk = Callable[[Client], Awaitable[T]]
PATIENCE_S = 120


def over_stdio(dsn: str, *options: str, talk: Talk[T], mode: Any = "auto", **environment: str) -> T:
    """Talk with a real `qwf mcp`, which has to end by itself when the talk does."""
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "queue_workflows", "--db", dsn, "mcp", *options],
        env={**os.environ, **environment},
    )
    return _talked(lambda: Client(server, mode=mode), talk)


def over_http(served: Served, *, talk: Talk[T], mode: Any = "auto", **headers: str) -> T:
    """Talk with a served page by the token that it has for programs, unless headers say otherwise."""
    sent = {"Authorization": f"Bearer {served.mcp_token}", **headers}

    async def talked() -> T:
        async with httpx2.AsyncClient(headers=sent, timeout=PATIENCE_S) as http:
            transport = streamable_http_client(f"{served.url}/mcp", http_client=http)
            async with Client(transport, mode=mode) as client:
                return await talk(client)

    return asyncio.run(asyncio.wait_for(talked(), PATIENCE_S))


@contextmanager
def page_for_programs(dsn: str, *, acts: Sequence[str] = (), **options: Any) -> Iterator[Served]:
    """A page that programs may ask, and have do these acts, in a thread of this process."""
    settings = effective_settings()
    with served_page(dsn, user="ann@here", settings=settings, port=0, mcp_acts=acts, **options) as served:
        yield served


def said(result: CallToolResult) -> dict[str, Any]:
    """The answer of a call that was not refused."""
    assert not result.is_error, result.content
    told: dict[str, Any] = result.structured_content
    return told


def refused(result: CallToolResult) -> str:
    """Why a call was refused."""
    assert result.is_error
    (text,) = result.content
    return text.text


def _talked(connect: Callable[[], Client], talk: Talk[T]) -> T:
    async def talked() -> T:
        async with connect() as client:
            return await talk(client)

    return asyncio.run(asyncio.wait_for(talked(), PATIENCE_S))
