"""The LISTEN connection: a loop waits here for work, or for its next poll.

NOTIFY is a hint, never the record; each loop that waits here polls as well. What this adds is that the hint
is seldom missed and that its absence is known.

    off         no LISTEN, as the user wants it: poll only

    apart ──try──> joining ──heard its own canary──> listening
      ^               │ no: again after a growing,       │ the socket ended, an answer was late,
      │               │ jittered pause                   │ or a canary did not come back
      └───────────────┴──────────────────────────────────┘

Where a proxy in between keeps no sessions this stays apart, and looks again after the longest pause.

Where something nearer listens for all of this host, this joins there first, and moves there later if it was
not to be had: it answers what the server would.

Joining happens in a thread, so that no loop waits for it. On arrival what was advertised is advertised
again, and the caller is woken once: it may have missed something.

An idle worker *advertises* its queue by a shared advisory lock on this connection, and writers notify only
where somebody does. A transaction that inserted before the lock was taken sends nothing and may commit at
any time after. So with the lock held we keep the next transaction id N that the server would hand out: one
that inserted before has a smaller id. As long as `pg_snapshot_xmin(pg_current_snapshot()) < N` such a
transaction may still be running, and the caller must look again; once it is not, one last look sees all of
them.

N, and not `pg_snapshot_xmax` of a kept snapshot: that is the latest *completed* id + 1, so that the newest
running transaction stands at or above it and would be taken for ended.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import select
import threading
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self, TypeVar

import psycopg

from queue_workflows import clock as time
from queue_workflows.db.connections.bounded_wire import ListenWire, Note, Wire, WireLost
from queue_workflows.db.connections.engine import Database
from queue_workflows.db.connections.failures import PROXY_ADVICE, classify_failure
from queue_workflows.db.connections.proxies import is_announced
from queue_workflows.db.listen.join_thread import INTERRUPT, Attempt, Wakeup
from queue_workflows.errors import DatabaseError

_log = logging.getLogger(__name__)
T = TypeVar("T")

# By try only: a writer that probes holds the exclusive lock for a moment, and waiting for it would hold up
# the loop.
ADVERTISE: Final = "SELECT pg_try_advisory_lock_shared(qwf_wake_class(), qwf_wake_key($1))"
WITHDRAW: Final = "SELECT pg_advisory_unlock_shared(qwf_wake_class(), qwf_wake_key($1))"
# age() counts from an id to the next one that the server will hand out, without using one up.
NEXT_TRANSACTION: Final = """
SELECT pg_snapshot_xmax(now)::text::bigint + age(pg_snapshot_xmax(now)::xid) FROM pg_current_snapshot() AS now
"""
OLDEST_RUNNING: Final = "SELECT pg_snapshot_xmin(pg_current_snapshot())"
CANARY: Final = "SELECT pg_notify($1, $2)"
# A thread that was lost as it started is not waited for any longer.
_BEGINS_WITHIN_S: Final = 5.0
# How often to look whether something nearer is there by now.
_NEARER_EVERY_S: Final = 5.0


@dataclass(frozen=True)
class Wake:
    """Why `wait` returned early; after `listening` and `reconnected` poll once, hints may be lost.

    `number` is how many notifications there were: each is another transaction's.
    """

    reason: Literal["notified", "listening", "reconnected", "interrupted"]
    notes: frozenset[Note] = frozenset()
    number: int = field(default=0, compare=False)


@dataclass(frozen=True)
class Pace:
    """How often and how patiently, in seconds."""

    canary_every: float = 30.0
    answer_within: float = 10.0
    retry_first: float = 0.5
    retry_most: float = 30.0

    def retry_after(self, failures: int, chance: float) -> float:
        """The pause before the next try: doubled each time, between half and all of it by chance."""
        whole = min(self.retry_most, self.retry_first * 2.0 ** min(failures, 30))
        return whole * (0.5 + chance / 2)


class Listener:
    """One loop's LISTEN connection; all but `interrupt` and `absorb` belong to the thread that runs the loop.

    `connect` gives a fresh autocommit connection, None means poll only. With `payloads` only notifications
    that carry one of them wake the loop. `on_failure` is told why a connection could not be made, in the
    thread that tried, and ends the process if that is at fault. `nearer` gives what listens for all of this
    host, or None while there is nothing.
    """

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection[Any]] | None,
        channels: Sequence[str],
        *,
        payloads: Collection[str] | None = None,
        pace: Pace | None = None,
        on_failure: Callable[[Exception], None] = lambda _exc: None,
        nearer: Callable[[], ListenWire | None] | None = None,
        now: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._connect = connect
        self._channels = [_checked_channel(channel) for channel in channels]
        self._payloads = None if payloads is None else frozenset(payloads)
        self._pace = pace or Pace()
        self._on_failure = on_failure
        self._now = now
        self._chance = chance
        self._opened_in = os.getpid()
        self._nearer = nearer
        self._is_near = False
        self._nearer_at = 0.0
        self._wire: ListenWire | None = None
        self._attempt: Attempt | None = None
        self._try_at = now()
        self._failures = 0
        self._joined_before = False
        self._owed: Literal["listening", "reconnected"] | None = None
        self._notes: set[Note] = set()
        self._heard = 0
        self._canary_channel = f"qwf_canary_{uuid.uuid4().hex}"
        self._canary_numbers = itertools.count(1)
        self._canary: Note | None = None
        self._canary_at = 0.0
        self._wanted: set[str] = set()
        self._advertised: set[str] = set()
        self._mark: int | None = None
        self.trouble: str | None = None
        self._bell = Wakeup()
        # Kept, as the way from a wake to the claim is as long as what is done on it for the first time.
        self._ready = select.poll()
        self._ready.register(self._bell, select.POLLIN)
        self._beside: int | None = None
        self._is_called = False
        self._rang = True
        self._in_use = threading.RLock()

    @classmethod
    def on(cls, database: Database, channels: Sequence[str], **more: Any) -> Self:
        """A listener on the configured database: past a proxy with a direct DSN, else poll-only."""
        connect = (lambda: database.connect_session(autocommit=True)) if database.can_listen else None
        return cls(connect, channels, **more)

    @property
    def state(self) -> Literal["off", "apart", "joining", "listening"]:
        """Where in the diagram above this listener is."""
        if self._connect is None:
            return "off"
        if self._wire is not None:
            return "listening"
        return "joining" if self._attempt is not None else "apart"

    @property
    def is_near(self) -> bool:
        """Whether something of this host listens for it, so that it has no connection."""
        return self._is_near and self._wire is not None

    @property
    def wanted(self) -> frozenset[str]:
        """The queues that are advertised, or are to be as soon as that can be done."""
        with self._in_use:
            return frozenset(self._wanted)

    @property
    def mark(self) -> int | None:
        """The next transaction at the last advertisement, while an earlier one may still run."""
        with self._in_use:
            return self._mark

    def oldest_running(self) -> int | None:
        """The oldest transaction that runs; None without a connection."""
        self._refuse_fork()
        with self._in_use:
            oldest = self._keep_wire(_oldest_running)
            if oldest is not None and self._mark is not None and oldest >= self._mark:
                self._mark = None
            return oldest

    def also(self, fileno: int) -> None:
        """Have a `wait` end, as if interrupted, also when this descriptor is readable."""
        self._beside = fileno
        self._ready.register(fileno, select.POLLIN)

    def wait(self, timeout: float) -> Wake | None:
        """Wait for a reason to look for work, or the timeout; connects and checks on the way."""
        self._refuse_fork()
        until = self._now() + timeout
        with self._in_use:
            self._rang = True  # perhaps, before we came
            while True:
                self._tend()
                wake = self._next_wake()
                if wake is not None:
                    return wake
                if self._attempt is not None and self._attempt.done:
                    continue  # it arrived after we had looked, and its bell is answered already
                now = self._now()
                if now >= until:
                    return None
                self._sleep(min(until, self._next_duty()) - now)

    def interrupt(self) -> None:
        """End the current or the next `wait` early; from any thread, and from a signal handler."""
        self._bell.ring(INTERRUPT)

    def advertise(self, queue: str) -> bool:
        """Ask writers to notify for this queue; false if that must still come about (then poll)."""
        self._refuse_fork()
        with self._in_use:
            self._wanted.add(queue)
            self._keep_wire(self._advertise_wanted)
            return queue in self._advertised

    def is_wanted(self, queue: str) -> bool:
        """Whether this queue is advertised, or is to be as soon as that can be done."""
        with self._in_use:  # a thread that takes it back in `absorb` may have done half of that
            return queue in self._wanted

    def withdraw(self, queue: str) -> None:
        """Writers need not notify for this queue any more."""
        self._refuse_fork()
        with self._in_use:
            self._wanted.discard(queue)
            if queue in self._advertised:
                self._advertised.discard(queue)
                self._keep_wire(lambda wire: wire.ask(WITHDRAW, queue))
            if not self._wanted:
                self._mark = None

    def absorb(self, *, withdraw: Callable[[], bool] = lambda: False) -> bool:
        """Take in what has arrived, for a loop that is busy elsewhere; whether there was anything.

        From any thread, and without waiting. What nobody reads the server has to keep, for all listeners of
        all databases. If `withdraw` says that the loop will be busy for longer, what is advertised is taken
        back as well; it is asked when the loop can no more go idle on what it has found advertised.
        """
        if os.getpid() != self._opened_in or not self._in_use.acquire(blocking=False):
            return False  # the loop is in here itself
        try:
            taken = bool(self._keep_wire(self._take_in))
            if self._wanted and self._canary is None and withdraw():
                self._keep_wire(self._withdraw_all)
                self._wanted.clear()
                self._advertised.clear()
                self._mark = None
            return taken
        finally:
            self._in_use.release()

    def must_look_again(self) -> bool:
        """Whether work may come, or have come, without a wake: look once more after each true.

        The call that finds all earlier writers ended says so one last time, because only a look after it
        sees all.
        """
        self._refuse_fork()
        with self._in_use:
            if not self._wanted and self._wire is not None:
                return False
            settled = self._keep_wire(self._settle)
            return settled is not True

    def borrow(self) -> psycopg.Connection[Any] | None:
        """The connection itself, for what the loop reads between two waits; None while there is none."""
        self._refuse_fork()
        with self._in_use:
            return self._keep_wire(lambda wire: wire.lend())

    def close(self) -> None:
        """Let go of the connection; a forked child lets go without a word, for the socket is its parent's."""
        ours = os.getpid() == self._opened_in
        if self._attempt is not None:
            self._attempt.abandon()
            self._attempt = None
        wire = self._drop_wire()
        if wire is not None and ours:
            wire.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refuse_fork(self) -> None:
        if os.getpid() != self._opened_in:
            raise DatabaseError(
                f"this listener belongs to process {self._opened_in}",
                advice="open another one after the fork",
            )

    def _tend(self) -> None:
        """Do what is due: take in what arrived, take over or start a connection, see to the canary."""
        if self._connect is None:
            return
        if self._wire is not None:
            self._keep_wire(self._take_in)
            if self._now() >= self._canary_at:
                self._keep_wire(self._check_canary)
            self._see_to_nearer()
        elif self._attempt is not None:
            if self._attempt.done:
                self._take_over(self._attempt)
            elif not self._attempt.begun and self._now() >= self._try_at:
                self._attempt.abandon()
                self._begin_attempt()
        elif self._now() >= self._try_at:
            self._begin_attempt()

    def _see_to_nearer(self) -> None:
        """Move to what is nearer, if it has come: the queue is advertised there before it is not here."""
        if self._nearer is None or self._is_near or self._wire is None:
            return
        if self._attempt is None and self._now() >= self._nearer_at:
            self._nearer_at = self._now() + _NEARER_EVERY_S
            self._attempt = Attempt(self._join_nearer, self._bell)
            self._attempt.start()
        elif self._attempt is not None and self._attempt.done:
            attempt, self._attempt = self._attempt, None
            if attempt.wire is not None and (farther := self._drop_wire()) is not None:
                self._advertised.clear()
                self._take_wire(attempt.wire)
                farther.close()
        elif self._attempt is not None and self._now() >= self._nearer_at:
            self._attempt.abandon()
            self._attempt = None

    def _begin_attempt(self) -> None:
        self._attempt = Attempt(self._join, self._bell, self._on_failure)
        self._try_at = self._now() + _BEGINS_WITHIN_S
        self._attempt.start()

    def _next_duty(self) -> float:
        """When `_tend` has something to do that no file descriptor announces."""
        if self._wire is not None:
            is_far = self._nearer is not None and not self._is_near
            return min(self._canary_at, self._nearer_at) if is_far else self._canary_at
        is_to_try = self._connect is not None and (self._attempt is None or not self._attempt.begun)
        return self._try_at if is_to_try else float("inf")

    def _next_wake(self) -> Wake | None:
        if self._rang:
            self._rang = False
            if INTERRUPT in self._bell.answer():
                return Wake("interrupted")
        if self._owed is not None:
            reason, self._owed = self._owed, None
            # The look that this causes covers what these announce.
            self._notes.clear()
            self._heard = 0
            return Wake(reason)
        if self._notes:
            wake = Wake("notified", frozenset(self._notes), self._heard)
            self._notes, self._heard = set(), 0
            return wake
        if self._is_called:
            self._is_called = False
            return Wake("interrupted")
        return None

    def _sleep(self, seconds: float) -> None:
        # A poll is in whole milliseconds; rounding down would spin through the last one.
        ready = self._ready.poll(None if seconds == float("inf") else max(0, -int(-seconds * 1000 // 1)))
        self._rang = len(ready) > 1 or (len(ready) == 1 and ready[0][0] == self._bell.fileno())
        if self._beside is not None:
            self._is_called = any(number == self._beside for number, _ in ready)

    def _take_in(self, wire: ListenWire) -> int:
        arrived = wire.read()
        for note in arrived:
            if note == self._canary:
                self._canary = None
                self._canary_at = self._now() + self._pace.canary_every
            elif note.channel in self._channels and (
                self._payloads is None or note.payload in self._payloads
            ):
                self._notes.add(note)
                self._heard += 1
        return len(arrived)

    def _check_canary(self, wire: ListenWire) -> None:
        if self._canary is not None:
            raise WireLost(f"its own notification did not come back within {self._pace.answer_within:g} s")
        self._canary = Note(self._canary_channel, str(next(self._canary_numbers)))
        self._canary_at = self._now() + self._pace.answer_within
        wire.send(CANARY, *self._canary)
        # Sending may have taken in what the socket will not announce again.
        self._take_in(wire)

    def _join_nearer(self) -> ListenWire:
        """Join what is nearer; runs in a thread and changes nothing of ours."""
        if self._nearer is not None and (wire := self._nearer()) is not None:
            return wire
        raise WireLost("nothing nearer listens")

    def _join(self) -> ListenWire:
        """Join what is nearer, else connect, LISTEN and hear the first canary; runs in a thread."""
        if self._nearer is not None and (nearer := self._nearer()) is not None:
            return nearer
        assert self._connect is not None  # noqa: S101 - `_tend` starts no attempt when LISTEN is off
        connection = self._connect()
        wire = self._wired(connection)
        try:
            for channel in (*self._channels, self._canary_channel):
                wire.listen(channel)
            self._hear_first_canary(wire, connection)
        except BaseException:
            wire.close()
            raise
        return wire

    def _hear_first_canary(self, wire: Wire, connection: psycopg.Connection[Any]) -> None:
        """Through a transaction-pooling proxy a session's own notification may arrive, another's does not."""
        first = Note(self._canary_channel, "0")
        if is_announced(wire, connection) or self._connect is None:
            wire.send(CANARY, *first)
            heard = wire.expect(first)
        else:
            with closing(self._connect()) as another:
                self._wired(another).ask(CANARY, *first)
                heard = wire.expect(first)
        if not heard:
            raise DatabaseError("NOTIFY does not come back on this connection", advice=PROXY_ADVICE)

    def _wired(self, connection: psycopg.Connection[Any]) -> Wire:
        return Wire(connection, answer_within_s=self._pace.answer_within, now=self._now)

    def _take_over(self, attempt: Attempt) -> None:
        self._attempt = None
        if attempt.wire is None:
            self._failures += 1
            pause = self._pace.retry_after(30 if attempt.is_pointless else self._failures - 1, self._chance())
            self._try_at = self._now() + pause
            self._report(attempt.trouble or "", is_known=attempt.is_pointless)
            return
        self._take_wire(attempt.wire)

    def _take_wire(self, wire: ListenWire) -> None:
        self._wire, self._is_near = wire, not isinstance(wire, Wire)
        self._nearer_at = self._now() + _NEARER_EVERY_S
        self._ready.register(wire, select.POLLIN)
        self._mark = None
        self._failures = 0
        self._canary = None
        self._canary_at = self._now() + self._pace.canary_every
        self._owed = "reconnected" if self._joined_before else "listening"
        if self.trouble is not None:
            _log.info("LISTEN works again")
        self._joined_before, self.trouble = True, None
        self._keep_wire(self._advertise_wanted)

    def _keep_wire(self, use: Callable[[ListenWire], T]) -> T | None:
        """Use the connection if there is one; if it is lost on the way, there is none afterwards."""
        if self._wire is None:
            return None
        try:
            return use(self._wire)
        except WireLost as lost:
            self._lose(str(lost))
        except psycopg.Error as exc:
            raise classify_failure(exc, "") from exc
        return None

    def _drop_wire(self) -> ListenWire | None:
        wire, self._wire = self._wire, None
        if wire is not None:
            # Before it is closed: by then its number may be that of another descriptor.
            self._ready.unregister(wire)
        return wire

    def _lose(self, why: str) -> None:
        wire = self._drop_wire()
        if wire is not None:
            wire.close()
        if self._attempt is not None:
            self._attempt.abandon()
            self._attempt = None
        self._advertised.clear()
        self._mark = None
        # Half a pause by chance, so that a restarted server does not meet all its listeners at once.
        self._try_at = self._now() + self._pace.retry_after(0, self._chance()) * self._chance()
        self._report(why)

    def _report(self, why: str, *, is_known: bool = False) -> None:
        if why != self.trouble and not is_known:
            _log.warning("LISTEN does not work, polling meanwhile: %s", why)
        self.trouble = why

    def _advertise_wanted(self, wire: ListenWire) -> None:
        for queue in sorted(self._wanted - self._advertised):
            if wire.ask(ADVERTISE, queue) == ("t",):
                # Asked in a statement after the lock's: what inserted before the lock was held is below.
                self._mark = int(wire.ask(NEXT_TRANSACTION)[0] or 0)
                # Only now: without the mark nobody would look for those writers.
                self._advertised.add(queue)

    def _withdraw_all(self, wire: ListenWire) -> None:
        """Withdraw all without waiting for the answers: the next question takes them first."""
        for queue in sorted(self._advertised):
            wire.send(WITHDRAW, queue)

    def _settle(self, wire: ListenWire) -> bool:
        """Whether everything is advertised and no transaction is left that inserted before it was."""
        self._advertise_wanted(wire)
        if self._wanted - self._advertised:
            return False
        if self._mark is None:
            return True
        if _oldest_running(wire) >= self._mark:
            self._mark = None
        return False


def _oldest_running(wire: ListenWire) -> int:
    return int(wire.ask(OLDEST_RUNNING)[0] or 0)


def _checked_channel(channel: str) -> str:
    """Longer names are cut by LISTEN but not by pg_notify, and then never meet."""
    if not channel or "\0" in channel or len(channel.encode()) > 63:
        raise ValueError(f"{channel!r} is no channel name")
    return channel
