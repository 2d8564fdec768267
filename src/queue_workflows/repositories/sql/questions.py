"""Questions of several repositories, asked together: one round trip, and one transaction.

seen = questions.add(jobs.watching(fences, …))
others = questions.add(heartbeats.beating(worker_id, …))
questions.ask()
seen(), others()
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from queue_workflows.repositories.sql.connection import Handle, Params, Rows, Statements

T = TypeVar("T")


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

    def add(self, question: Question[T]) -> Callable[[], T]:
        """Have it asked with the others; what gives the answer after that."""
        answered: list[Rows] = []
        self._waiting.append((question, answered))
        return lambda: question.read(answered[0])

    def ask(self) -> None:
        """Ask all of them, together where the connection can."""
        waiting, self._waiting = self._waiting, []
        statements = [(question.sql, question.params) for question, _ in waiting]
        together = self._sql.ask_in_one_commit(*statements) if len(statements) > 1 else None
        for number, (_, answered) in enumerate(waiting):
            answered.append(self._sql.rows(*statements[number]) if together is None else together[number]())
