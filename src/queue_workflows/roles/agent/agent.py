"""The host agent's loop: it waits at one poll for the server, for its workers, and for the next round.

listener: a NOTIFY ──────────> a packet to each worker that waits at that queue
          lost, joined again ─> each of them is hung up on, and goes on by itself until it comes back
workers:  idle, busy ─────────> a queue is advertised while one of them waits at it
a second: one round ──────────> a packet to each worker that rests
"""

from __future__ import annotations

import itertools
import logging
import math
import secrets
import select
import socket
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from queue_workflows.db.connections.bounded_wire import Note
from queue_workflows.db.connections.failures import DATABASE_FAILED
from queue_workflows.db.listen.listener import Listener, Wake
from queue_workflows.errors import ExitCode, QwfError
from queue_workflows.roles.agent.rounds import Place, Rounds
from queue_workflows.roles.agent_link.address import AgentGone, Link, is_of_ours
from queue_workflows.roles.loop import Halt, Urgency
from queue_workflows.settings import check_queue_name

_log = logging.getLogger(__name__)

ROUND_S: Final = 1.0
# How long a queue stays advertised at which no worker waits any more: the next may come in a moment.
_WITHDRAWN_AFTER_S: Final = 1.0
_LISTENING: Final = "listening"


@dataclass(eq=False)
class _Caller:
    """A worker's connection: `queues` are those at which its main thread waits, `place` is a guardian's."""

    link: Link
    queues: set[str] = field(default_factory=set)
    place: Place | None = None
    worker_id: str | None = None
    # The number of its question whether we listen, while we do not.
    asks_to_listen: int | None = None
    listens: bool = False
    is_known: bool = False


class Agent:
    """Runs in the main thread until told to stop."""

    def __init__(
        self,
        listener: Listener,
        door: socket.socket,
        halt: Halt,
        *,
        secret: str,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`door` is where workers come in that know the `secret`."""
        self._secret = secret
        self._listener = listener
        self._door = door
        self._halt = halt
        self._now = now
        self._epoll = select.epoll()
        self._epoll.register(door.fileno(), select.EPOLLIN)
        listener.also(self._epoll.fileno())
        self._callers: dict[int, _Caller] = {}
        self._unwanted: dict[str, float] = {}
        self._rounds = Rounds()
        self._round_at = 0.0
        self._is_failing = False
        self._sweepers = itertools.count()
        self.turned_at = now()

    def run(self) -> ExitCode:
        """Serve until there is a reason to stop."""
        while self._halt.urgency is Urgency.NONE:
            self.turned_at = now = self._now()
            wake = self._listener.wait(max(0.0, self._next_at() - now))
            if wake is not None:
                self._see_to_wake(wake)
            self._see_to_listening()
            self._see_to_callers()
            self._withdraw_unwanted()
            self._see_to_round()
        return self._halt.exit_code

    def close(self) -> None:
        """Hang up on all."""
        for caller in list(self._callers.values()):
            self._drop(caller)
        self._epoll.close()
        self._door.close()

    def _next_at(self) -> float:
        due = self._now() + ROUND_S
        if any(caller.place for caller in self._callers.values()):
            due = min(due, self._round_at)
        return min([due, *(at + _WITHDRAWN_AFTER_S for at in self._unwanted.values())])

    # Listening.

    def _see_to_wake(self, wake: Wake) -> None:
        for note in wake.notes:
            self._hand_on(note)
        if wake.reason == "reconnected":
            # What came meanwhile was heard by nobody: each looks for itself, and comes back.
            for caller in [caller for caller in self._callers.values() if caller.listens]:
                self._drop(caller)

    def _hand_on(self, note: Note) -> None:
        for caller in list(self._callers.values()):
            if note.payload in caller.queues:
                self._tell(caller, "note", *note)

    def _see_to_listening(self) -> None:
        """Hang up on those that count on us when we are deaf; answer those that wait until we are not."""
        hears = self._listener.state == _LISTENING
        for caller in list(self._callers.values()):
            if hears and caller.asks_to_listen is not None:
                number, caller.asks_to_listen, caller.listens = caller.asks_to_listen, None, True
                self._tell(caller, "re", number, _LISTENING)
            elif not hears and caller.listens:
                self._drop(caller)

    def _withdraw_unwanted(self) -> None:
        wanted = {queue for caller in self._callers.values() for queue in caller.queues}
        now = self._now()
        for queue in [queue for queue in self._unwanted if queue in wanted]:
            del self._unwanted[queue]
        for queue in self._listener.wanted - wanted:
            if now - self._unwanted.setdefault(queue, now) >= _WITHDRAWN_AFTER_S:
                del self._unwanted[queue]
                self._listener.withdraw(queue)

    # Callers.

    def _see_to_callers(self) -> None:
        for number, _ in self._epoll.poll(0):
            if number == self._door.fileno():
                self._let_in()
            elif (caller := self._callers.get(number)) is not None:
                try:
                    for words in caller.link.heard():
                        self._answer(caller, *words)
                    if caller.link.is_over:
                        self._drop(caller)
                except (AgentGone, QwfError, LookupError, TypeError, ValueError):
                    self._drop(caller)

    def _let_in(self) -> None:
        try:
            while True:
                came, _ = self._door.accept()
                if not is_of_ours(came):
                    came.close()
                    continue
                caller = _Caller(Link(came))
                self._callers[caller.link.fileno()] = caller
                self._epoll.register(caller.link.fileno(), select.EPOLLIN)
        except OSError:
            # None is left; or no descriptor is, and the next comes when there is one.
            return

    def _drop(self, caller: _Caller) -> None:
        if self._callers.pop(caller.link.fileno(), None) is not None:
            self._epoll.unregister(caller.link.fileno())
            caller.link.close()
            if caller.worker_id is not None:
                self._rounds.forget(caller.worker_id)

    def _tell(self, caller: _Caller, *words: Any) -> None:
        try:
            caller.link.say(*words)
        except AgentGone:
            self._drop(caller)

    def _answer(self, caller: _Caller, verb: str, *rest: Any) -> None:
        match verb, rest:
            case "secret", (secret,):
                caller.is_known = secrets.compare_digest(secret, self._secret)
            case _ if not caller.is_known:
                self._drop(caller)
            case "listen", (number,):
                caller.asks_to_listen = number
                self._see_to_listening()
            case "echo", (_, channel, payload):
                self._tell(caller, "note", channel, payload)
            case "watch", (host_label, queue):
                caller.place = Place(host_label, check_queue_name(queue))
            case "beat", (worker_id, said, at):
                caller.worker_id = worker_id
                self._rounds.beat(worker_id, said, at)
            case _, (number, *parameters) if caller.listens:
                answer = self._answer_of_server(caller, verb, *parameters)
                if self._listener.state != _LISTENING:
                    self._see_to_listening()
                elif number:
                    self._tell(caller, "re", number, answer)
            case _:
                self._drop(caller)

    def _answer_of_server(self, caller: _Caller, verb: str, *parameters: str) -> str:
        """What our own listener knows; it may lose its connection over that."""
        match verb, parameters:
            case "idle", (queue,):
                # First, as from the answer on the worker counts on what we pass on.
                caller.queues.add(queue)
                try:
                    return "t" if self._listener.advertise(queue) else "f"
                except QwfError as refused:
                    _log.warning("%s is not advertised: %s", queue, refused)
                    return "f"
            case "busy", (queue,):
                caller.queues.discard(queue)
                return "t"
            case "mark", ():
                return str(self._listener.mark or 0)
            case "oldest", ():
                return str(self._listener.oldest_running() or 0)
        return ""

    # The round.

    def _see_to_round(self) -> None:
        resting: defaultdict[Place, list[_Caller]] = defaultdict(list)
        for caller in self._callers.values():
            if caller.place is not None:
                resting[caller.place].append(caller)
        if not resting or self._now() < self._round_at:
            return
        self._round_at = self._now() + ROUND_S
        try:
            if (connection := self._listener.borrow()) is None:
                return
            told = self._rounds.ask(connection, resting, self._now())
        except DATABASE_FAILED as exc:
            if not self._is_failing:
                _log.warning("nothing can be asked for the workers that rest: %s", " ".join(str(exc).split()))
            self._is_failing = True
            return
        self._is_failing = False
        for caller in [each for each in self._callers.values() if each.worker_id in self._rounds.unknown]:
            # It beats by itself, and so has a row, before it rests again.
            self._drop(caller)
        everybody = [(place, caller) for place, callers in resting.items() for caller in callers]
        # Another each time: one that is stopped does not hear it.
        sweeper = next(self._sweepers) % len(everybody) if self._rounds.take_left() else None
        for number, (place, caller) in enumerate(everybody):
            self._tell(caller, "told", *replace(told[place], sweeps=number == sweeper).words())

    def is_fine(self) -> bool:
        """Whether the loop turns; from any thread."""
        return self._now() - self.turned_at < math.ceil(10 * ROUND_S)
