"""One connection used without ever blocking for long: each answer is waited for up to a bound.

psycopg's own calls wait as long as the network lets them; a peer that acknowledges and never answers would
hold a worker for ever. libpq's asynchronous calls, which psycopg exposes as `psycopg.pq`, do not.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import psycopg
from psycopg import pq


class Note(NamedTuple):
    """A notification."""

    channel: str
    payload: str


class WireLost(Exception):
    """The connection is gone, or as good as gone."""


class ListenWire(Protocol):
    """What a listener needs of a connection; `Wire` is one to the server."""

    def fileno(self) -> int:
        """The socket, to wait on."""

    def ask(self, statement: str, *parameters: str) -> tuple[str | None, ...]:
        """The first row of one statement."""

    def send(self, statement: str, *parameters: str) -> None:
        """Send one statement, of which nobody wants the answer."""

    def read(self) -> list[Note]:
        """The notifications that have arrived, without waiting."""

    def lend(self) -> psycopg.Connection[Any]:
        """The connection itself, at rest."""

    def close(self) -> None:
        """Let go of it, without waiting."""


def absorb(pgconn: pq.abc.PGconn) -> None:
    """Take in what has arrived, without waiting; OperationalError if what arrived was the end."""
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    _absorb(pgconn, poll)


def _absorb(pgconn: pq.abc.PGconn, poll: select.poll) -> None:
    more: Any = True
    while more:
        pgconn.consume_input()
        more = poll.poll(0)
    pgconn.is_busy()  # which parses it
    if pgconn.status != pq.ConnStatus.OK:
        raise psycopg.OperationalError("server closed the connection")


class Wire:
    """An autocommit connection: questions with a bound, and the notifications that came in the meantime."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        *,
        answer_within_s: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._descriptor = self._pgconn.socket
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)
        self._within_s = answer_within_s
        self._now = now
        self._unanswered = False
        self._notes: list[Note] = []
        # What arrives while psycopg itself is at a statement.
        connection.add_notify_handler(lambda note: self._notes.append(Note(note.channel, note.payload)))

    def fileno(self) -> int:
        """The socket, to wait on; its number also when it is closed."""
        return self._descriptor

    def ask(self, statement: str, *parameters: str) -> tuple[str | None, ...]:
        """Run one statement and return the first row, empty if there is none."""
        self.send(statement, *parameters)
        return self._answer()

    def send(self, statement: str, *parameters: str) -> None:
        """Send one statement; its answer is thrown away when the next one is sent."""
        if self._unanswered:
            self._answer()
        values = [parameter.encode() for parameter in parameters]
        self._lost_if_fails(lambda: self._pgconn.send_query_params(statement.encode(), values))
        self._unanswered = True
        self._flush(self._now() + self._within_s)

    def listen(self, channel: str) -> None:
        """LISTEN; identifiers cannot be parameters, so libpq quotes."""
        quoted = pq.Escaping(self._pgconn).escape_identifier(channel.encode()).decode()
        self.ask(f"LISTEN {quoted}")

    def read(self) -> list[Note]:
        """The notifications that have arrived, without waiting; as often as they came."""
        try:
            _absorb(self._pgconn, self._poll)
        except psycopg.OperationalError as exc:
            raise _lost(exc) from None
        # libpq reads no further than to an answer that nobody has taken.
        while self._unanswered and not self._pgconn.is_busy():
            self._unanswered = self._pgconn.get_result() is not None
        self._collect()
        found, self._notes = self._notes, []
        return found

    def expect(self, note: Note) -> bool:
        """Wait for one notification up to the bound; false if it did not come."""
        until = self._now() + self._within_s
        while True:
            found = self.read()
            self._notes = [one for one in found if one != note]
            if note in found:
                return True
            left = until - self._now()
            if left <= 0:
                return False
            self._wait(select.POLLIN, left)

    def lend(self) -> psycopg.Connection[Any]:
        """The connection itself, at rest, for statements with psycopg; these are not bounded."""
        if self._unanswered:
            self._answer()
        if self._connection.closed or self._pgconn.status != pq.ConnStatus.OK:
            raise WireLost("the server closed the connection")
        return self._connection

    def close(self) -> None:
        """Say good-bye, if anybody is there; never waits."""
        self._connection.close()

    def _answer(self) -> tuple[str | None, ...]:
        until = self._now() + self._within_s
        row: tuple[str | None, ...] = ()
        failure: psycopg.Error | None = None
        while (result := self._next_result(until)) is not None:
            if result.status == pq.ExecStatus.TUPLES_OK and result.ntuples:
                row = tuple(_text(result.get_value(0, column)) for column in range(result.nfields))
            elif result.status not in {pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK}:
                failure = _failure(result)
        self._unanswered = False
        self._collect()
        if self._pgconn.status != pq.ConnStatus.OK:
            raise WireLost(str(failure or "the server closed the connection"))
        if failure is not None:
            raise failure
        return row

    def _next_result(self, until: float) -> pq.abc.PGresult | None:
        while self._pgconn.is_busy():
            left = until - self._now()
            if left <= 0:
                raise WireLost(f"no answer within {self._within_s:g} s")
            if self._wait(select.POLLIN, left):
                self._lost_if_fails(self._pgconn.consume_input)
                self._collect()
        return self._pgconn.get_result()

    def _flush(self, until: float) -> None:
        while True:
            if self._lost_if_fails(self._pgconn.flush) == 0:
                return
            left = until - self._now()
            if left <= 0 or not self._wait(select.POLLIN | select.POLLOUT, left):
                raise WireLost(f"nothing could be sent for {self._within_s:g} s")
            # The server may be waiting for us to read before it reads on.
            self._lost_if_fails(lambda: _absorb(self._pgconn, self._poll))

    def _wait(self, events: int, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._pgconn.socket, events)
        return bool(poll.poll(max(0.0, seconds) * 1000))

    def _collect(self) -> None:
        while (arrived := self._pgconn.notifies()) is not None:
            self._notes.append(Note(arrived.relname.decode(), arrived.extra.decode()))

    def _lost_if_fails(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except psycopg.OperationalError as exc:
            raise _lost(exc) from None


def _lost(exc: psycopg.OperationalError) -> WireLost:
    return WireLost(" ".join(str(exc).split()))


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _failure(result: pq.abc.PGresult) -> psycopg.Error:
    """The statement's error as the exception class that its SQLSTATE has everywhere else."""
    message = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message).decode()
    state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    try:
        return psycopg.errors.lookup(state)(message)
    except KeyError:
        return psycopg.OperationalError(message)
