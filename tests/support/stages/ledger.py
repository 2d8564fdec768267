"""What job bodies write down outside the database, and the gates that they wait at."""

from __future__ import annotations

import ctypes
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple


class Begun(NamedTuple):
    """One body that began."""

    job_id: int
    attempt: int
    pid: int


class Ledger:
    """A directory that the test and its workers share."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._path = directory / "ledger"

    def record(self, job_id: int, attempt: int) -> None:
        """One line, whole: appended by one write."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(descriptor, f"{job_id} {attempt} {os.getpid()}\n".encode())
        finally:
            os.close(descriptor)

    def begun(self, job_id: int | None = None) -> list[Begun]:
        """Who began, in order."""
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        all_of_them = [Begun(*map(int, line.split())) for line in lines]
        return [each for each in all_of_them if job_id is None or each.job_id == job_id]

    def attempts(self, job_id: int) -> list[int]:
        """The attempts of a job that began."""
        return [each.attempt for each in self.begun(job_id)]

    def open_gate(self, job_id: int, attempt: int) -> None:
        """Let this attempt's body end."""
        self._gate(job_id, attempt).touch()

    def wait_at_the_gate(self, job_id: int, attempt: int) -> None:
        """Hear nothing else until it opens."""
        while not self._gate(job_id, attempt).exists():
            time.sleep(0.01)

    @contextmanager
    def stuck(self) -> Iterator[None]:
        """While this is open, whoever gets stuck stays so."""
        with self._lock_file() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield

    def get_stuck(self) -> None:
        """Wait in C code that keeps the GIL, so that no other thread of the process runs either."""
        with self._lock_file() as wanted:
            ctypes.PyDLL(None).flock(wanted, fcntl.LOCK_EX)

    @contextmanager
    def _lock_file(self) -> Iterator[int]:
        descriptor = os.open(self.directory / "stuck", os.O_RDWR | os.O_CREAT)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _gate(self, job_id: int, attempt: int) -> Path:
        return self.directory / f"open-{job_id}-{attempt}"
