"""Statements on whatever connection the caller brought, inside the caller's transaction.

A SQLAlchemy Session or Connection runs them as driver SQL, so that its autobegin, events and logging see
them; Django's connection on a cursor of Django's, and a driver's own on a cursor of ours, so that its row and
cursor factories do not matter. On an asynchronous one they are awaited, within the verb's awaitable form.
Nothing here begins, commits, rolls back or sets a savepoint, and the driver's errors pass as they are: the
caller's retry logic must see a unique violation, a serialization failure or a lock timeout for what it is.
Only what no retry can mend is said in words of ours: a failed transaction, and a schema that is not there.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from queue_workflows import clock as time
from queue_workflows.repositories.sql.drivers.failures import explained
from queue_workflows.repositories.sql.drivers.handles import Answer, AsyncHandle, Handle, Params, Rows
from queue_workflows.repositories.sql.drivers.recognize import asker_of, awaited
from queue_workflows.repositories.sql.pipeline import OneCommit
from queue_workflows.repositories.sql.prepared import IDLE, NO_PIPELINE, is_at_rest

__all__ = [
    "Answer",
    "AsyncHandle",
    "Handle",
    "Params",
    "Question",
    "Questions",
    "Rows",
    "Statements",
    "awaited",
]

T = TypeVar("T")
_BEGUN: Final = TransactionStatus.INTRANS


class Statements:
    """Runs statements for one repository; its `table` finds the database where a Session has several."""

    def __init__(self, handle: Handle | AsyncHandle, table: str) -> None:
        self._handle = handle
        self._ask = asker_of(handle, table)
        self._sent: dict[str, tuple[psycopg.Cursor[Any], bytes]] = {}
        self._one_commit = OneCommit(handle) if isinstance(handle, psycopg.Connection) else None

    @property
    def commits_each(self) -> bool:
        """Whether each statement is a transaction of its own, which it may then set as it likes.

        In a pipeline it is not: what is sent between two syncs is one transaction.
        """
        handle = self._handle
        return isinstance(handle, psycopg.Connection) and handle.autocommit and is_at_rest(handle)

    def rows(self, sql: str, params: Params) -> Rows:
        """All rows of one statement in psycopg's `%(name)s` style; one that writes says what by RETURNING.

        Fetching is what makes it real: on a psycopg pipeline an unfetched statement fails later, elsewhere.
        """
        try:
            return self._ask(sql, params)()
        except Exception as error:
            if (said := explained(error, self._handle)) is None:
                raise
            raise said from error

    async def awaited(self, flow: Callable[[], T]) -> T:
        """What a verb of the repository returns, on a connection that has to be awaited."""
        handle: Any = self._handle
        return await awaited(handle, lambda _: flow())

    def ask(self, sql: str, params: Params) -> Answer:
        """What gives the rows; in a psycopg pipeline the statement is on its way until that is called.

        Elsewhere it has been answered, and its rows are read when they are called for, whatever is asked
        meanwhile.
        """
        try:
            return self._ask(sql, params)
        except Exception as error:
            if (said := explained(error, self._handle)) is None:
                raise
            raise said from error

    def ask_in_one_commit(self, *statements: tuple[str, Params]) -> list[Answer] | None:
        """Statements that are a transaction, each of which sees what was committed by then.

        Done and not read; None, and nothing done, where only a caller's transaction could make them one.
        """
        if self._one_commit is None or (got := self._one_commit.ask(*statements)) is None:
            return None
        return [Answer(one.rows, one.number) for one in got]

    def flowing(self) -> AbstractContextManager[object]:
        """Where what is asked is on its way until its answer is called for, if the caller's connection can.

        Not in autocommit, where a pipeline would make one transaction of its statements.
        """
        handle = self._handle
        if not isinstance(handle, psycopg.Connection) or handle.pgconn.pipeline_status != NO_PIPELINE:
            return nullcontext()
        status = handle.pgconn.transaction_status
        is_begun = status == _BEGUN or (status == IDLE and not handle.autocommit)
        return handle.pipeline() if is_begun and psycopg.Pipeline.is_supported() else nullcontext()

    def send(self, sql: str, params: Params) -> None:
        """Send a statement of which nobody wants the rows. In a psycopg pipeline nobody waits for it either:
        what goes wrong comes out with a later answer, or when the pipeline ends."""
        if isinstance(self._handle, psycopg.Connection):
            # Never one that `ask` uses: there this statement's rows would be taken for the next one's.
            cursor, query = self._sent.get(sql) or (psycopg.Cursor(self._handle), sql.encode())
            self._sent[sql] = cursor.execute(query, params), query
        else:
            self._ask(sql, params)


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """A statement with its parameters, and what its rows mean."""

    sql: str
    params: Params
    read: Callable[[Rows], T]


class Questions:
    """Questions to a connection in autocommit, where none depends on the answer to another.

    Kept for as long as the connection, as it knows what is prepared there.
    """

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self._sql = Statements(handle, "worker_heartbeats")
        self._waiting: list[tuple[Question[Any], list[Rows]]] = []
        # How long the server took for one answer, the last time.
        self.took_s = 0.0

    def add(self, question: Question[T]) -> Callable[[], T]:
        """Have it asked with the others; what gives the answer after that."""
        answered: list[Rows] = []
        self._waiting.append((question, answered))
        return lambda: question.read(answered[0])

    def ask(self) -> None:
        """Ask all of them, together where the connection can."""
        waiting, self._waiting = self._waiting, []
        statements = [(question.sql, question.params) for question, _ in waiting]
        began = time.monotonic()
        together = self._sql.ask_in_one_commit(*statements) if len(statements) > 1 else None
        for number, (_, answered) in enumerate(waiting):
            answered.append(self._sql.rows(*statements[number]) if together is None else together[number]())
        self.took_s = (time.monotonic() - began) / (len(statements) if together is None and statements else 1)
