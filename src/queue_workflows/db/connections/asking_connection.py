"""A connection on which something can be done while the server is at the answer, for however long it is.

It knows what was found between it and the server, and says so when an answer shows that to be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from threading import Lock
from typing import Any, Final, TypeVar, cast

import psycopg
from psycopg.errors import DuplicatePreparedStatement, InvalidSqlStatementName
from psycopg.waiting import WAIT_R

from queue_workflows import clock as time
from queue_workflows.db.connections.proxies import Proxy

T = TypeVar("T")
# What a server says that another session than the one before was asked (SQLSTATE 26000 and 42P05).
ANOTHER_SESSION: Final = (InvalidSqlStatementName, DuplicatePreparedStatement)


class _Taken:
    """In the place of a connection's lock for the thread that has it, and would wait for itself for ever."""

    def __enter__(self) -> None:
        raise psycopg.InterfaceError("this connection is at a question: ask when that is answered")

    def __exit__(self, *_: object) -> None:
        """Nothing was taken."""


_TAKEN: Final = _Taken()


class AskingConnection(psycopg.Connection[Any]):
    """Calls `meanwhile`, once, as soon as its next statement is on its way."""

    meanwhile: Callable[[], None] | None = None
    # What is between it and the server.
    between: Proxy = Proxy()
    # Told when the server shows that this is no session of its own.
    on_doubt: Callable[[str], None] | None = None
    # On the monotonic clock; None while nobody waits for an answer.
    waiting_since: float | None = None
    # On the same clock: from then on nothing more is asked, as if the server had cancelled it.
    asks_until: float | None = None
    # Whether a caller of `connect()` has it, which does with it what it likes.
    is_callers: bool = False

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        """Let psycopg wait for the answer; what it waits with first stops when there is nothing to send."""
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            gen = self._with(gen, meanwhile)
        self.waiting_since = time.monotonic()
        if self.asks_until is not None and self.waiting_since >= self.asks_until:
            gen.close()
            self.waiting_since = None
            raise psycopg.errors.QueryCanceled("the time for all that was to be asked is over")
        try:
            return super().wait(gen, *args, **kwargs)
        except ANOTHER_SESSION as exc:
            raise self.doubted(exc) from exc
        finally:
            self.waiting_since = None

    def doubted(self, exc: Exception) -> psycopg.OperationalError:
        """Close, as the session behind is another than before; what to raise, which is a lost connection."""
        said = " ".join(str(exc).split())
        if self.on_doubt is not None:
            self.on_doubt(said)
        self.close()
        return psycopg.OperationalError(f"a proxy in between changed the session of the server: {said}")

    def _with(self, asking: Generator[Any, Any, T], meanwhile: Callable[[], None]) -> Generator[Any, Any, T]:
        try:
            awaited = next(asking)
            while awaited != WAIT_R:  # a long statement takes its time to be sent
                awaited = asking.send((yield awaited))
            lock, self.lock = self.lock, cast(Lock, _TAKEN)
            try:
                meanwhile()
            finally:
                self.lock = lock
            while True:
                awaited = asking.send((yield awaited))
        except StopIteration as answered:
            answer: T = answered.value
            return answer
