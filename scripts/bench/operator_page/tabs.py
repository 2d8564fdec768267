"""Many open tabs over real HTTP: the connections they hold, how often a view is read, what is sent."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import httpx
import psycopg
import uvicorn

from bench.operator_page.looks import open_page
from queue_workflows.repositories.workers.hardware import CHANNEL
from queue_workflows.web import Web

_CONNECTIONS: Final = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
    AND backend_type = 'client backend'
"""
# Something happens all the time, so that no view may rest.
_HAPPENS: Final = (
    "INSERT INTO ingest_jobs (task_name, queue) VALUES ('fetch', 'fetch')",
    f"NOTIFY {CHANNEL}",
)
_EVERY_S: Final = 0.2
_ALL_OPEN_WITHIN_S: Final = 60.0


@dataclass
class Watched:
    """What tabs came to, once all were open."""

    connections: int = 0
    reads: int = 0
    seconds: float = 0.0
    size: int = 0
    silent: int = 0


def watch(dsn: str, views: Sequence[str], tabs: int, seconds: float) -> Watched:
    """Hold so many tabs open on these views, in turns, while something happens in the database."""
    with open_page(dsn) as app, _served(app) as url, psycopg.connect(dsn, autocommit=True) as eyes:
        return asyncio.run(_watch(app, url, eyes, [views[n % len(views)] for n in range(tabs)], seconds))


async def _watch(
    app: Web, url: str, eyes: psycopg.Connection[Any], pages: Sequence[str], seconds: float
) -> Watched:
    sizes = [0] * len(pages)
    limits = httpx.Limits(max_connections=len(pages) + 1)
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as client:
        streams = [asyncio.create_task(_tab(client, page, sizes, n)) for n, page in enumerate(pages)]
        deadline = time.monotonic() + _ALL_OPEN_WITHIN_S
        while not all(sizes):
            if time.monotonic() > deadline or any(one.done() for one in streams):
                raise SystemExit(f"{sizes.count(0)} of {len(pages)} tabs got nothing")
            await asyncio.sleep(0.1)
        found, before = Watched(), (app.hub.reads, sum(sizes), time.monotonic())
        opened = list(sizes)
        while time.monotonic() < before[2] + seconds:
            for sql in _HAPPENS:
                eyes.execute(sql)
            row = eyes.execute(_CONNECTIONS).fetchone()
            found.connections = max(found.connections, row[0] if row else 0)
            await asyncio.sleep(_EVERY_S)
        found.seconds = time.monotonic() - before[2]
        found.reads, found.size = app.hub.reads - before[0], sum(sizes) - before[1]
        found.silent = sum(now == then for now, then in zip(sizes, opened, strict=True))
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
    return found


async def _tab(client: httpx.AsyncClient, page: str, sizes: list[int], number: int) -> None:
    async with client.stream("GET", f"/live?page={quote(page)}") as answer:
        answer.raise_for_status()
        async for part in answer.aiter_raw():
            sizes[number] += len(part)


@contextmanager
def _served(app: Web) -> Iterator[str]:
    """The app on a port of this machine, from a thread."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as bound:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            app.hub.close()
            server.should_exit = True
            thread.join(10.0)
