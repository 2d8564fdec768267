"""The one place that reads for all watchers: a topic is read while it is watched, and sent when it changed.

    watch ──first──> task of the topic: read ──changed?──> a slot for each watcher, in which the latest wins
      │                   ^                │ no
      └──last leaves──> task ends          └── pause: a second, longer while nothing changes,
                                               short again once something was heard

Each slot holds one text at most: a slow watcher misses what came between, and never holds up the others. The
tasks belong to the event loop of the first watcher, so a mounted app needs no start of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from queue_workflows.errors import QwfError

_log = logging.getLogger(__name__)

SHORTEST_S: Final = 1.0
LONGEST_S: Final = 4.0
_LOOK_S: Final = 0.05
MOST_STREAMS: Final = 1000
MOST_STREAMS_A_USER: Final = 200

Render = Callable[[], Awaitable[str]]


class TooManyStreams(QwfError):
    """Another stream would be one too many, of this user or of all."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"{most} pages are being watched already", advice="close some; this one can be reloaded"
        )


@dataclass(eq=False)
class Slot:
    """What one watcher has yet to be sent: the latest, or nothing."""

    text: str | None = None
    filled: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: bool = False

    def put(self, text: str) -> None:
        """Instead of what it had not taken yet; nothing any more once it is over."""
        if self.is_over:
            return
        self.text = text
        self.filled.set()

    async def take(self) -> str | None:
        """The latest, once there is any; None when there will be none any more."""
        await self.filled.wait()
        self.filled.clear()
        return self.text

    def end(self) -> None:
        """There will be no more."""
        self.text, self.is_over = None, True
        self.filled.set()


@dataclass(eq=False)
class _Topic:
    render: Render
    slots: set[Slot] = field(default_factory=set)
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    latest: str | None = None
    task: asyncio.Task[None] | None = None
    # How many reads of it have begun, and how many have ended.
    begun: int = 0
    ended: int = 0

    async def end(self) -> None:
        """Read no more."""
        if self.task is not None:
            self.task.cancel()
            with suppress(asyncio.CancelledError):
                await self.task


class Hub:
    """The topics that are watched now."""

    def __init__(self, *, shortest_s: float = SHORTEST_S, longest_s: float = LONGEST_S) -> None:
        self._shortest_s = shortest_s
        self._longest_s = longest_s
        self._topics: dict[object, _Topic] = {}
        self._streams: dict[str, int] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self.reads = 0

    @property
    def topics(self) -> int:
        """How many distinct views are watched."""
        return len(self._topics)

    @property
    def streams(self) -> int:
        """How many tabs watch."""
        return sum(self._streams.values())

    def heard(self) -> None:
        """Something happened in the database: every topic is read as soon as it may be.

        For the loop's thread.
        """
        for topic in self._topics.values():
            topic.heard.set()

    def close(self) -> None:
        """End every stream, so that a server which stops need not wait for browsers; from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end_all)

    def show_the_last(self, within_s: float) -> None:
        """Let every watcher have what there is now, before its stream ends.

        From another thread than the loop's.
        """
        if self._loop is None or not self._loop.is_running() or not self._topics:
            return
        shown = asyncio.run_coroutine_threadsafe(self._all_read_again(), self._loop)
        with suppress(TimeoutError, RuntimeError):
            shown.result(within_s)
        shown.cancel()

    async def _all_read_again(self) -> None:
        """Each topic is read once more from its beginning on, and what that changed has been taken."""
        wanted = {key: topic.begun + 1 for key, topic in self._topics.items()}
        self.heard()
        while any(
            topic.ended < wanted.get(key, 0) or any(slot.filled.is_set() for slot in topic.slots)
            for key, topic in self._topics.items()
        ):
            await asyncio.sleep(_LOOK_S)

    def _end_all(self) -> None:
        for topic in self._topics.values():
            for slot in topic.slots:
                slot.end()

    @asynccontextmanager
    async def watching(self, key: object, user: str, render: Render) -> AsyncIterator[Slot]:
        """A slot that gets the topic's text now and whenever it changes; `key` names the topic."""
        self.admit(user)
        self._loop = asyncio.get_running_loop()
        self._streams[user] = self._streams.get(user, 0) + 1
        slot = Slot()
        topic = self._topics.get(key)
        if topic is None:
            topic = self._topics[key] = _Topic(render)
        try:
            topic.slots.add(slot)
            if topic.latest is not None:
                slot.put(topic.latest)
            if topic.task is None:
                topic.task = asyncio.create_task(self._keep_up(topic))
            yield slot
        finally:
            self._leave(user)
            topic.slots.discard(slot)
            if not topic.slots:
                self._topics.pop(key, None)
                await topic.end()

    def admit(self, user: str) -> None:
        """Raise `TooManyStreams` if another stream of this user's would be one."""
        if self.streams >= MOST_STREAMS:
            raise TooManyStreams(MOST_STREAMS)
        if self._streams.get(user, 0) >= MOST_STREAMS_A_USER:
            raise TooManyStreams(MOST_STREAMS_A_USER)

    def _leave(self, user: str) -> None:
        self._streams[user] -= 1
        if not self._streams[user]:
            del self._streams[user]

    async def _keep_up(self, topic: _Topic) -> None:
        """Read, send what changed, pause; until nobody watches."""
        pause = self._shortest_s
        while True:
            topic.heard.clear()
            self.reads += 1
            topic.begun += 1
            try:
                text = await topic.render()
            except Exception:
                _log.exception("a page that is watched could not be rendered; it is tried again")
                text = None
            if text is not None and text != topic.latest:
                topic.latest, pause = text, self._shortest_s
                for slot in topic.slots:
                    slot.put(text)
            else:
                pause = min(self._longest_s, pause * 1.5)
            topic.ended = topic.begun
            await self._pause(topic, pause)

    async def _pause(self, topic: _Topic, pause: float) -> None:
        """At least the shortest time; then until something is heard, or the pause is over."""
        await asyncio.sleep(self._shortest_s)
        with suppress(TimeoutError):
            await asyncio.wait_for(topic.heard.wait(), pause - self._shortest_s)
