"""A worker's second connection, for what the jobs' own threads ask while it is at something else.

Opened for the first question. Questions stand in line, so each should be short. A database that is away is
not the job's failure: the question is asked again for as long as the job is held. So it must bear being asked
twice, as the answer to the first may have been lost.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, Final, TypeVar

import psycopg

from queue_workflows import clock as time
from queue_workflows.db.connections.failures import DATABASE_AWAY
from queue_workflows.db.connections.kept_line import Line
from queue_workflows.errors import LeaseLost
from queue_workflows.repositories.sql.claimed_job import ClaimedJob
from queue_workflows.repositories.sql.families import BY_NAME

_log = logging.getLogger(__name__)
T = TypeVar("T")

_RETRY_S: Final = 0.5


class SideConnection:
    """Asks for any number of threads; `holds` says whether a job is this worker's still."""

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection[Any]],
        holds: Callable[[ClaimedJob], bool],
        *,
        on_failure: Callable[[Exception], None] = lambda _exc: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`connect` gives a connection in autocommit; `on_failure` ends the process if that is at fault."""
        self._line = Line(connect)
        self._holds = holds
        self._on_failure = on_failure
        self._sleep = sleep
        self._turn = threading.Lock()
        self._next = threading.Lock()
        self._rng = Random()  # noqa: S311

    def ask(self, job: ClaimedJob, question: Callable[[psycopg.Connection[Any]], T]) -> T:
        """The answer, or `LeaseLost` if the job is another's by now; from the job's own thread."""
        while self._holds(job):
            try:
                with self._in_line(), self._line.asking() as connection:
                    return question(connection)
            except DATABASE_AWAY as exc:
                self._lost(exc)
            self._sleep(_RETRY_S * (0.5 + self._rng.random()))
        raise LeaseLost(BY_NAME[job.family].title, job.id, job.attempt)

    def is_awaited(self) -> bool:
        """Whether somebody waits for a turn."""
        return self._next.locked()

    def cut_if_stuck(self, after_s: float) -> None:
        """Let fail what has been asked for so long: others stand in line behind it. From any thread."""
        self._line.cut_if_stuck(after_s)

    def close(self) -> None:
        """Let go of the connection."""
        with self._in_line():
            self._line.let_go()

    @contextmanager
    def _in_line(self) -> Iterator[None]:
        """Wait in line for a turn: a thread that has just had one gets no other before those that wait."""
        with self._next:
            self._turn.acquire()
        try:
            yield
        finally:
            self._turn.release()

    def _lost(self, exc: Exception) -> None:
        self._on_failure(exc)
        with self._in_line():
            if self._line.let_go():
                _log.warning("jobs have no database to ask: %s", " ".join(str(exc).split()))
