"""Stores and reads steps: all jobs of a worker that do so at the moment share a statement, and its commit.

A job puts its steps down and asks for its turn. Whichever is first writes all that lie there; the others
find, when it is their turn, that theirs are stored. Of what is stored of jobs that begin an attempt likewise.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import psycopg

from queue_workflows.db.connections.failures import DATABASE_AWAY
from queue_workflows.engine.limits.wait_loop import Ask, DatabaseCalls, Procedure
from queue_workflows.repositories.durable.steps import NewStep, StepRepository, StepRow, Stored
from queue_workflows.states import JobFamily

Answer = dict[tuple[int, str, int], Stored]
# Beside the job that reads: each may have stored much.
_READ_AT_ONCE: Final = 100


class _Write:
    """The steps of one job, and what became of them."""

    __slots__ = ("answer", "is_alone", "steps")

    def __init__(self, steps: Sequence[NewStep]) -> None:
        self.steps = steps
        self.answer: Answer | None = None
        # What the server refused together with others.
        self.is_alone = False


class _Read:
    """A job that begins, and what is stored of it once that was read."""

    __slots__ = ("job_id", "rows")

    def __init__(self, job_id: int) -> None:
        self.job_id = job_id
        self.rows: list[StepRow] | None = None


class StepWriter:
    """For the jobs of one family that a worker runs."""

    def __init__(self, family: JobFamily) -> None:
        self._family = family.value
        self._guard = threading.Lock()
        self._waiting: list[_Write] = []
        self._beginning: list[_Read] = []

    def storing(self, steps: Sequence[NewStep]) -> Procedure[Answer]:
        """Store the steps of a job."""
        write = _Write(steps)
        with self._guard:
            self._waiting.append(write)
        try:
            yield Ask(lambda connection: self._write(connection, write))
        finally:
            if write.answer is None:
                with self._guard:
                    if write in self._waiting:
                        self._waiting.remove(write)
        return write.answer or {}

    def reading(self, job_id: int) -> Procedure[list[StepRow]]:
        """What is stored of a job that begins."""
        read = _Read(job_id)
        with self._guard:
            self._beginning.append(read)
        try:
            yield Ask(lambda connection: self._read(connection, read))
        finally:
            with self._guard:
                if read in self._beginning:
                    self._beginning.remove(read)
        return read.rows or []

    def _read(self, connection: psycopg.Connection[Any], own: _Read) -> None:
        if own.rows is not None:
            return
        with self._guard:
            others = [one for one in self._beginning if one is not own and one.rows is None]
        together = [own, *others[:_READ_AT_ONCE]]
        found = StepRepository(connection, self._family).stored_of([one.job_id for one in together])
        for one in together:
            one.rows = found[one.job_id]

    def _write(self, connection: psycopg.Connection[Any], own: _Write) -> None:
        if own.answer is not None:
            return
        with self._guard:
            together = [one for one in self._waiting if own.is_alone is one.is_alone]
            if own.is_alone or own not in together:
                together = [own]
            self._waiting = [one for one in self._waiting if one not in together]
        try:
            answer = StepRepository(connection, self._family).store(
                [step for one in together for step in one.steps]
            )
        except BaseException as refused:
            with self._guard:
                for one in together:
                    one.is_alone = one.is_alone or not isinstance(refused, DATABASE_AWAY)
                self._waiting += together
            if len(together) == 1 or isinstance(refused, DATABASE_AWAY):
                raise
            self._write(connection, own)
            return
        for one in together:
            one.answer = {step.key: answer[step.key] for step in one.steps if step.key in answer}


_writers: Final[WeakKeyDictionary[DatabaseCalls, dict[JobFamily, StepWriter]]] = WeakKeyDictionary()
_making: Final = threading.Lock()


def writer_of(calls: DatabaseCalls, family: JobFamily) -> StepWriter:
    """The one writer of a worker, which is known by what asks for its jobs."""
    with _making:
        writers = _writers.setdefault(calls, {})
        if family not in writers:
            writers[family] = StepWriter(family)
        return writers[family]
