"""LISTEN by the host agent: a listener asks it instead of the server, and hears what it passes on.

An answer means what the server's would: that the queue is advertised, up to which transaction earlier writers
may still commit, and which is the oldest that runs. So nothing is lost here that is not lost there.
"""

from __future__ import annotations

import itertools
import select
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Self

import psycopg

from queue_workflows.db.connections.bounded_wire import Note, WireLost
from queue_workflows.db.listen.listener import ADVERTISE, CANARY, NEXT_TRANSACTION, OLDEST_RUNNING, WITHDRAW
from queue_workflows.errors import DatabaseError
from queue_workflows.roles.agent_link.address import AgentGone, Link

# What is asked of the agent instead of each statement.
VERBS: Final[Mapping[str, str]] = {
    ADVERTISE: "idle",
    WITHDRAW: "busy",
    NEXT_TRANSACTION: "mark",
    OLDEST_RUNNING: "oldest",
    CANARY: "echo",
}
# How long an agent that is there may take until it listens itself.
_LISTENS_WITHIN_S: Final = 2.0
_ANSWERS_WITHIN_S: Final = 5.0


class AgentWire:
    """One worker's; in place of `Wire`."""

    def __init__(self, link: Link, *, now: Callable[[], float] = time.monotonic) -> None:
        self._link = link
        self._now = now
        self._numbers = itertools.count(1)
        self._notes: list[Note] = []
        self._poll = select.poll()
        self._poll.register(link.fileno(), select.POLLIN)

    @classmethod
    def joined(cls, secret: str) -> Self | None:
        """A wire to an agent that listens; None where there is none."""
        if (link := Link.dial(secret)) is None:
            return None
        wire = cls(link)
        try:
            if wire._asked("listen", within_s=_LISTENS_WITHIN_S) is not None:
                return wire
        except WireLost:
            pass
        link.close()
        return None

    def fileno(self) -> int:
        """The socket, to wait on; its number also when it is closed."""
        return self._link.fileno()

    def ask(self, statement: str, *parameters: str) -> tuple[str | None, ...]:
        """What the statement would bring."""
        answer = self._asked(VERBS[statement], *parameters, within_s=_ANSWERS_WITHIN_S)
        if answer is None:
            raise WireLost(f"the host agent did not answer within {_ANSWERS_WITHIN_S:g} s")
        return (answer,)

    def send(self, statement: str, *parameters: str) -> None:
        """Ask without an answer."""
        self._say(VERBS[statement], 0, *parameters)

    def read(self) -> list[Note]:
        """The notifications that have arrived, without waiting; as often as they came."""
        self._take_in(None)
        found, self._notes = self._notes, []
        return found

    def lend(self) -> psycopg.Connection[Any]:
        """Refused: there is no connection."""
        raise DatabaseError("the host agent lends no connection", advice="open one")

    def close(self) -> None:
        """Hang up."""
        self._link.close()

    def _asked(self, verb: str, *parameters: str, within_s: float) -> str | None:
        number, until = next(self._numbers), self._now() + within_s
        self._say(verb, number, *parameters)
        while (left := until - self._now()) > 0:
            self._poll.poll(left * 1000)
            if (answer := self._take_in(number)) is not None:
                return answer
        return None

    def _take_in(self, number: int | None) -> str | None:
        """Gather notes; the answer of this number, if it is there."""
        answer = None
        try:
            for kind, *rest in self._link.heard():
                if kind == "note":
                    self._notes.append(Note(*rest))
                elif rest[0] == number:
                    answer = str(rest[1])
        except (AgentGone, LookupError, TypeError, ValueError) as gone:
            raise WireLost(f"the host agent: {gone}") from None
        return answer

    def _say(self, *words: Any) -> None:
        try:
            self._link.say(*words)
        except AgentGone as gone:
            raise WireLost(f"the host agent: {gone}") from None
