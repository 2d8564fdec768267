"""One thread with one connection looks for all callers of this process that await an end or watch a run.

    await_for ──> waits  ─┐                          ┌── LISTEN: something has ended, a run has changed
                          ├── the thread: one look ──┤
    awatch    ──> topics ─┘   for all of them        └── statements, on that very connection
                  ^                 │
                  └── their loops ──┘

A statement that ends jobs or runs notifies while somebody is known to wait, without saying of which; the look
that follows is one statement for all. Where ends come thick and fast this asks for no more announcements for
a while and looks ten times a second. Announced or not, all are looked at again after a tenth of what they
have waited, and after a second at the latest. The connection goes when nobody has waited for a while.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import psycopg

from queue_workflows import clock as time
from queue_workflows.db.connections.engine import Database
from queue_workflows.db.connections.own import opened_for
from queue_workflows.db.connections.snapshot_read import KeptConnection, at_one_moment
from queue_workflows.db.listen.listener import Listener, Wake
from queue_workflows.engine.watch.follow import (
    CHANNEL,
    LOOK_AT_MOST_EVERY_S,
    LOOK_EVERY_S,
    SETTLING_S,
    is_other,
)
from queue_workflows.engine.watch.run_reader import RunReader
from queue_workflows.engine.watch.run_view import RunOverview
from queue_workflows.engine.watch.wait_for import absent, pause_after, plain_errors
from queue_workflows.errors import DatabaseUnreachable
from queue_workflows.repositories.reports.ends import EndOf, EndRepository, SeenEnd

T = TypeVar("T")

ENDED_CHANNEL: Final = "something_ended"
ENDED: Final = "qwf:ended"
LINGER_S: Final = 10.0
# Each advertised run is a lock in the server's memory; of more than these a change is seen within a second.
MOST_ADVERTISED: Final = 200
# One after the other, looks that found nothing over: then announcements are of others' jobs.
_MOST_FUTILE: Final = 6
_FUTILE_WITHIN_S: Final = 0.25
_UNANNOUNCED_S: Final = 5.0
_SHORTEST_S: Final = 0.005
_LONGEST_S: Final = 0.1
_JOINS_WITHIN_S: Final = 1.0
# A database that has just answered is not said to be away to a caller that has just come.
_MOMENT_S: Final = 2.0
_LOOKED_AT_S: Final = 0.02
_LISTENING: Final = ("QWF_LISTEN", "QWF_DIRECT_DB_URL")


@dataclass(eq=False)
class Wait:
    """One caller that waits for an end; `news` is set after the first look, and when it is over."""

    wanted: EndOf
    loop: asyncio.AbstractEventLoop
    news: asyncio.Event = field(default_factory=asyncio.Event)
    seen: SeenEnd | None = None
    trouble: Exception | None = None
    # The thread's own.
    joined_at: float = 0.0
    due_at: float = 0.0
    is_looked_at: bool = False

    def tell(self, seen: SeenEnd | Exception | None) -> None:
        """What was found, nothing while the database is away; in the caller's loop."""
        if isinstance(seen, Exception):
            self.trouble = seen
        else:
            self.seen = seen
        if seen is not None:
            self.news.set()


@dataclass(eq=False)
class RunWatcher:
    """One caller that watches a run: the latest of it that the caller has not taken yet."""

    run_id: uuid.UUID
    loop: asyncio.AbstractEventLoop
    news: asyncio.Event = field(default_factory=asyncio.Event)
    latest: RunOverview | None = None
    trouble: Exception | None = None
    # The thread's own.
    has_some: bool = False

    def tell(self, seen: RunOverview | Exception) -> None:
        """What was found; in the caller's loop."""
        if isinstance(seen, Exception):
            self.trouble = seen
        else:
            self.latest = seen
        self.news.set()


@dataclass(eq=False)
class _Topic:
    """A run that is watched, by however many."""

    reader: RunReader
    watchers: set[RunWatcher] = field(default_factory=set)
    latest: RunOverview | None = None
    heard: bool = True
    looked_at: float = float("-inf")

    def due_at(self, *, settling: bool) -> float:
        """When it is to be looked at again."""
        pause = LOOK_AT_MOST_EVERY_S if self.heard else SETTLING_S if settling else LOOK_EVERY_S
        return self.looked_at + pause


class _Announcements:
    """Whether ends are to be announced, and when the next announcement is worth a look."""

    def __init__(self) -> None:
        self.heard = False
        self.look_from = 0.0
        self._futile = 0
        self._looked_at = float("-inf")
        self._unwanted_until = float("-inf")

    def are_wanted(self, now: float) -> bool:
        """Not for a while after too many that were of no use."""
        return now >= self._unwanted_until

    def looked(self, began: float, now: float, *, fruitful: bool) -> None:
        """A look for ends was made, which takes a part of the time at the most."""
        is_futile = not fruitful and began - self._looked_at < _FUTILE_WITHIN_S
        self._futile = self._futile + 1 if is_futile else 0
        self._looked_at, self.heard = now, False
        pause = min(_LONGEST_S, _SHORTEST_S * 2**self._futile)
        if not self.are_wanted(now):
            pause = _LONGEST_S
        elif self._futile > _MOST_FUTILE:
            self._unwanted_until, self._futile = now + _UNANNOUNCED_S, 0
        self.look_from = now + max(pause, min(LOOK_EVERY_S, 5 * (now - began)))


class SharedWatch:
    """The callers of one database, and the thread that looks for them while there are any."""

    def __init__(
        self,
        db_url: str | None = None,
        *,
        linger_s: float = LINGER_S,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._db_url = db_url
        self._linger_s = linger_s
        self._now = now
        self._guard = threading.Lock()
        self._waits: set[Wait] = set()
        self._topics: dict[uuid.UUID, _Topic] = {}
        self._thread: threading.Thread | None = None
        self._listener: Listener | None = None
        self._left_at = 0.0
        self._is_closed = False
        self._announcements = _Announcements()
        self._answered_at = float("-inf")
        # How many statements or reads of runs there were, for all callers together.
        self.looks = 0
        self._advertised: set[uuid.UUID] = set()

    @property
    def callers(self) -> int:
        """How many wait or watch now."""
        with self._guard:
            return len(self._waits) + sum(len(topic.watchers) for topic in self._topics.values())

    @property
    def is_idle(self) -> bool:
        """Whether it has neither a thread nor a connection."""
        return self._thread is None

    def join(self, wait: Wait) -> None:
        """Look for this one too."""
        with self._guard:
            wait.joined_at = self._now()
            self._waits.add(wait)
            self._begin_or_wake()

    def leave(self, wait: Wait) -> None:
        """The caller has its answer, or waits no more."""
        with self._guard:
            self._waits.discard(wait)
            self._left_at = self._now()

    def watch(self, watcher: RunWatcher) -> None:
        """Look at this run too, for as long as somebody watches it."""
        with self._guard:
            topic = self._topics.get(watcher.run_id)
            if topic is None:
                topic = self._topics[watcher.run_id] = _Topic(RunReader(watcher.run_id))
            topic.watchers.add(watcher)
            topic.heard = True
            self._begin_or_wake()

    def unwatch(self, watcher: RunWatcher) -> None:
        """The caller watches no more."""
        with self._guard:
            topic = self._topics.get(watcher.run_id)
            if topic is not None:
                topic.watchers.discard(watcher)
                if not topic.watchers:
                    del self._topics[watcher.run_id]
            self._left_at = self._now()

    def close(self) -> None:
        """End the thread, though some wait; for the end of the process."""
        with self._guard:
            self._is_closed = True
            thread = self._thread
            if self._listener is not None:
                self._listener.interrupt()
        if thread is not None:
            thread.join(1.0)

    def _begin_or_wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="qwf-waiter", daemon=True)
            self._thread.start()
        elif self._listener is not None:
            self._listener.interrupt()

    def _serve(self) -> None:
        try:
            with (
                Database.open(self._db_url, role="waiter", pool_size=1) as database,
                KeptConnection(database) as kept,
                Listener.on(database, [ENDED_CHANNEL, CHANNEL]) as listener,
            ):
                self._listener = listener
                self._advertised.clear()
                self._let_join(listener)
                while self._round(listener, kept):
                    pass
        except Exception as error:
            self._end_all(error)

    def _let_join(self, listener: Listener) -> None:
        """Give it a moment to connect, so that the first look needs no connection beside it."""
        until = self._now() + _JOINS_WITHIN_S
        while listener.state in {"apart", "joining"} and listener.trouble is None and self._now() < until:
            self._heard(listener.wait(_LOOKED_AT_S))

    def _round(self, listener: Listener, kept: KeptConnection) -> bool:
        """Look for those that are due, and wait for the next reason to; false if nobody waits any more."""
        with self._guard:
            waits, topics = list(self._waits), dict(self._topics)
            if self._is_closed or self._is_over(waits or topics, listener):
                self._thread = self._listener = None
                return False
        self._advertise(listener, topics, wants_ends=bool(waits))
        settling = listener.must_look_again() and listener.state == "listening"
        now = self._now()
        if now >= self._announcements.look_from:
            is_heard = self._announcements.heard or not self._announcements.are_wanted(now)
            if due := [wait for wait in waits if is_heard or wait.due_at <= now]:
                self._look_for_ends(listener, kept, due)
        due_topics = sorted((topic.due_at(settling=settling), run_id) for run_id, topic in topics.items())
        if due_topics and due_topics[0][0] <= now:
            # One a round, so that nobody waits for all of them.
            self._look_at_run(listener, kept, due_topics[0][1], topics[due_topics[0][1]])
        duties = [self._next_ends(waits), *(topic.due_at(settling=settling) for topic in topics.values())]
        self._heard(listener.wait(max(0.0, min(duties) - self._now())))
        return True

    def _is_over(self, present: Collection[object], listener: Listener) -> bool:
        """Whether nobody has come for a while; a connection that is lost meanwhile is not made again."""
        is_late = self._now() >= self._left_at + self._linger_s
        return not present and (is_late or listener.state == "apart")

    def _next_ends(self, waits: Sequence[Wait]) -> float:
        """When to look for ends again, or to see whether somebody has come."""
        if not waits:
            return self._left_at + self._linger_s
        if self._announcements.heard or not self._announcements.are_wanted(self._now()):
            return self._announcements.look_from
        return max(self._announcements.look_from, min(wait.due_at for wait in waits))

    def _heard(self, wake: Wake | None) -> None:
        if wake is None or wake.reason == "interrupted":
            return
        with self._guard:
            if wake.reason != "notified":
                self._announcements.heard = True
                heard = list(self._topics.values())
            else:
                self._announcements.heard |= any(note.channel == ENDED_CHANNEL for note in wake.notes)
                runs = {note.payload for note in wake.notes if note.channel == CHANNEL}
                heard = [topic for run_id, topic in self._topics.items() if str(run_id) in runs]
            for topic in heard:
                topic.heard = True

    def _advertise(self, listener: Listener, topics: Collection[uuid.UUID], *, wants_ends: bool) -> None:
        """Have writers notify for what somebody waits for, and for nothing else."""
        if wants_ends and self._announcements.are_wanted(self._now()):
            if not listener.is_wanted(ENDED):
                listener.advertise(ENDED)
        elif listener.is_wanted(ENDED):
            listener.withdraw(ENDED)
        for run_id in self._advertised.difference(topics):
            listener.withdraw(f"run:{run_id}")
            self._advertised.discard(run_id)
        for run_id in topics:
            if run_id not in self._advertised and len(self._advertised) < MOST_ADVERTISED:
                self._advertised.add(run_id)
                listener.advertise(f"run:{run_id}")

    def _look_for_ends(self, listener: Listener, kept: KeptConnection, due: Sequence[Wait]) -> None:
        began = self._now()
        for wait in due:
            wait.due_at = began + pause_after(began - wait.joined_at)
        wanted = {wait.wanted for wait in due}
        try:
            seen = self._read(listener, kept, lambda connection: EndRepository(connection).look(wanted))
        except Exception as error:
            spared = {wait for wait in due if self._is_waited_out(error, wait.is_looked_at)}
            self._tell([(wait, None if wait in spared else error) for wait in due])
            self._announcements.looked(began, self._now(), fruitful=False)
            return
        told = [(wait, seen.get(wait.wanted) or absent(wait.wanted)) for wait in due]
        self._tell([(wait, found) for wait, found in told if _is_news(wait, found)])
        for wait in due:
            wait.is_looked_at = True
        fruitful = any(isinstance(found, Exception) or found.is_over for _, found in told)
        self._announcements.looked(began, self._now(), fruitful=fruitful)

    def _look_at_run(
        self, listener: Listener, kept: KeptConnection, run_id: uuid.UUID, topic: _Topic
    ) -> None:
        with self._guard:
            topic.heard = False
            watchers = list(topic.watchers)

        def look(connection: psycopg.Connection[Any]) -> RunOverview:
            with at_one_moment(connection):
                return topic.reader.look(connection)

        try:
            seen = self._read(listener, kept, look)
        except Exception as error:
            self._tell([(one, error) for one in watchers if not self._is_waited_out(error, one.has_some)])
        else:
            changed = is_other(topic.latest, seen)
            topic.latest = seen
            self._tell([(one, seen) for one in watchers if changed or not one.has_some])
            for watcher in watchers:
                watcher.has_some = True
        topic.looked_at = self._now()

    def _read(
        self, listener: Listener, kept: KeptConnection, ask: Callable[[psycopg.Connection[Any]], T]
    ) -> T:
        """By the connection that listens, or another while there is none; by a new one if it is lost."""
        self.looks += 1
        borrowed = listener.borrow()
        if borrowed is not None:
            kept.close()
        while True:
            is_new = borrowed is None and not kept.is_open
            try:
                with plain_errors():
                    answer = ask(kept.connection() if borrowed is None else borrowed)
                self._answered_at = self._now()
                return answer
            except DatabaseUnreachable:
                if is_new:
                    raise
                borrowed = None
                kept.close()

    def _is_waited_out(self, error: Exception, has_looked: bool) -> bool:
        """Whether the database is away for a caller that knows it, or for a moment only."""
        if not isinstance(error, DatabaseUnreachable):
            return False
        return has_looked or self._now() < self._answered_at + _MOMENT_S

    def _tell(self, told: Sequence[tuple[Wait | RunWatcher, Any]]) -> None:
        """Each in its own loop, and all of one loop at once."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Wait | RunWatcher, Any]]] = {}
        for caller, found in told:
            by_loop.setdefault(caller.loop, []).append((caller, found))
        for loop, ours in by_loop.items():
            try:
                loop.call_soon_threadsafe(_tell_here, ours)
            except RuntimeError:  # closed while somebody waited on it
                self._forget(loop)

    def _forget(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._guard:
            self._waits = {wait for wait in self._waits if wait.loop is not loop}
            for run_id, topic in list(self._topics.items()):
                topic.watchers = {one for one in topic.watchers if one.loop is not loop}
                if not topic.watchers:
                    del self._topics[run_id]
            self._left_at = self._now()

    def _end_all(self, error: Exception) -> None:
        """Nothing can be looked at: everybody hears why."""
        with self._guard:
            if self._thread is not threading.current_thread():
                return  # it had ended already, but for closing what it had open
            callers: list[Wait | RunWatcher] = [*self._waits]
            callers.extend(one for topic in self._topics.values() for one in topic.watchers)
            self._waits.clear()
            self._topics.clear()
            self._thread = self._listener = None
        self._tell([(caller, error) for caller in callers])


def _is_news(wait: Wait, found: SeenEnd | Exception) -> bool:
    return isinstance(found, Exception) or found.is_over or not wait.is_looked_at


def _tell_here(told: Sequence[tuple[Wait | RunWatcher, Any]]) -> None:
    for caller, found in told:
        caller.tell(found)


class _Shared:
    """The shared watches of this process, by what they were opened for."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._open: list[tuple[tuple[object, ...], SharedWatch]] = []

    def of(self, db_url: str | None) -> SharedWatch:
        """The one of this database."""
        wanted = (db_url, *opened_for(), *map(os.environ.get, _LISTENING))
        with self._guard:
            for opened, found in self._open:
                if opened == wanted:
                    return found
            new = SharedWatch(db_url)
            self._open = [*((opened, each) for opened, each in self._open if not each.is_idle), (wanted, new)]
            return new

    def close(self) -> None:
        """End all of them; nobody can wait any more."""
        with self._guard:
            closing, self._open = self._open, []
        for _, each in closing:
            each.close()

    def forget(self) -> None:
        """In a forked child, which has neither the thread nor the connection of its parent."""
        self._guard = threading.Lock()
        self._open = []


_shared: Final = _Shared()
shared_watch: Final = _shared.of
atexit.register(_shared.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_shared.forget)
