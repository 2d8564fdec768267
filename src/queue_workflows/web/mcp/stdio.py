"""The protocol over standard input and output, for the program that started this one."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, BinaryIO, Final, Self, cast

from mcp.server.stdio import stdio_server

from queue_workflows.settings import Settings
from queue_workflows.web.access.redaction import Redaction
from queue_workflows.web.access.users import Users
from queue_workflows.web.database.opened import OpenedDatabase
from queue_workflows.web.database.readers import Readers
from queue_workflows.web.database.writers import Writers
from queue_workflows.web.mcp.server import server_of
from queue_workflows.web.mcp.tool_calls import ToolCalls

LONGEST_LINE: Final = 4 * 1_048_576
_STDIN: Final = 0
_MOST_AHEAD: Final = 16


@contextmanager
def tool_calls(dsn: str | None, settings: Settings, acts: Collection[str]) -> Iterator[ToolCalls]:
    """The tools of one database, for the one user that started this program and may do what it allowed."""
    users = Users(lambda _request: None, lambda _user, _verb, _target: True)
    with OpenedDatabase(dsn) as opened, ExitStack() as until_the_end:
        readers, writers = Readers(opened), Writers(opened)
        until_the_end.callback(readers.close)
        until_the_end.callback(writers.close)
        calls = ToolCalls(
            opened,
            readers,
            writers,
            users,
            redaction=Redaction(),
            settings=lambda: settings,
            allowed=acts,
        )
        until_the_end.callback(calls.close)
        yield calls


async def serve_stdio(calls: ToolCalls, user: str) -> None:
    """Answer until standard input closes. What else prints meanwhile goes to stderr."""
    server = server_of(calls, user)
    lines = _Lines(_taken_stdin(), asyncio.get_running_loop())
    async with stdio_server(stdin=cast("Any", lines)) as (read, write):
        await server.run(read, write, server.create_initialization_options())


def _taken_stdin() -> BinaryIO:
    """Standard input for us alone: a process that is started here finds an empty one."""
    taken = os.fdopen(os.dup(_STDIN), "rb", closefd=False)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, _STDIN)
    os.close(empty)
    return taken


class _Lines:
    """The lines of a stream, read by a daemon thread: a signal need not wait for the next of them."""

    def __init__(self, stream: BinaryIO, loop: asyncio.AbstractEventLoop) -> None:
        self._stream = stream
        self._loop = loop
        self._ready: asyncio.Queue[str | None] = asyncio.Queue(_MOST_AHEAD)
        threading.Thread(target=self._read, name="qwf-mcp-stdin", daemon=True).start()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        line = await self._ready.get()
        if line is None:
            raise StopAsyncIteration
        return line

    def _read(self) -> None:
        # Once the loop has ended, nobody takes a line.
        with suppress(RuntimeError, asyncio.CancelledError):
            while line := self._stream.readline(LONGEST_LINE):
                self._put(line.decode("utf-8", "replace"))
            self._put(None)

    def _put(self, line: str | None) -> None:
        asyncio.run_coroutine_threadsafe(self._ready.put(line), self._loop).result()
