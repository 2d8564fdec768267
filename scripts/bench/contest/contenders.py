"""What takes part: the engine's worker and those of the peers, started, filled and watched in one way."""

from __future__ import annotations

import os
import select
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from subprocess import DEVNULL, Popen
from typing import Any, Final

import psycopg

from bench import peers
from bench.harness.measuring import Bench
from bench.harness.servers import said
from bench.harness.workers import working
from bench.worker.rates import FILL
from bench.worker.wakes import LISTENERS, until

OURS: Final = "ours"
# A copied row has a key of its own; a table that makes its keys by itself is told to take it.
COPY: Final = """
INSERT INTO {table} OVERRIDING SYSTEM VALUE
SELECT made.* FROM bench_one_{number} AS one, generate_series(1, %s::bigint) AS n,
    LATERAL jsonb_populate_record(NULL::{table}, to_jsonb(one) || jsonb_build_object({key})) AS made
"""
BACKENDS: Final = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
# A worker with as many connections as before for so long has started.
_SETTLED_S: Final = 1.0
_PATIENCE_S: Final = 60.0
# A peer's worker says when a burst begins: what is so far from the one before is one.
_APART_S: Final = 0.7


class Contender(ABC):
    """A queue with a database of its own."""

    def __init__(self, dsn: str, connection: psycopg.Connection[Any], words: str) -> None:
        self.dsn = dsn
        self.connection = connection
        self.words = words

    @property
    @abstractmethod
    def tables(self) -> Sequence[str]:
        """Where its jobs are."""

    @abstractmethod
    def fill(self, jobs: int) -> None:
        """Put so many no-ops on its queue, in one transaction."""

    @abstractmethod
    def done(self, jobs: int) -> int:
        """How many of so many have ended for good."""

    @abstractmethod
    def one(self) -> AbstractContextManager[Popen[str]]:
        """A worker for as long as the block lasts; it need not have started yet."""

    @abstractmethod
    def began_s(self, workers: Sequence[Popen[str]]) -> float:
        """When the first job of the burst began, by `time.monotonic`, at the end of which this is asked."""

    def empty(self) -> None:
        """Leave no job. A worker that was stopped within a transaction is let go on for a moment first."""
        self.connection.execute("SET lock_timeout = '1s'")
        self.connection.execute(f"TRUNCATE {', '.join(self.tables)} CASCADE".encode())
        self.connection.execute("RESET lock_timeout")

    def settle(self) -> None:
        """After a mass of rows do at once what autovacuum would."""
        self.connection.execute(f"VACUUM (ANALYZE) {', '.join(self.tables)}".encode())
        self.connection.execute("CHECKPOINT")

    @contextmanager
    def working(self, processes: int) -> Iterator[list[Popen[str]]]:
        """So many workers, which have started one after another."""
        with ExitStack() as stack:
            workers = []
            for _ in range(processes):
                before = said(self.connection, BACKENDS)
                workers.append(stack.enter_context(self.one()))
                self._until_started(before)
            yield workers

    def _until_started(self, before: int) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        last, since = before, time.monotonic()
        while last <= before or time.monotonic() - since < _SETTLED_S:
            if time.monotonic() > deadline:
                raise SystemExit(f"a worker of {self.words} did not start")
            time.sleep(0.05)
            if (now := said(self.connection, BACKENDS)) != last:
                last, since = now, time.monotonic()


class Engine(Contender):
    """Ours: the shipped worker with its default settings."""

    def __init__(self, dsn: str, connection: psycopg.Connection[Any], *options: str) -> None:
        super().__init__(dsn, connection, "queue_workflows")
        self._options = options

    @property
    def tables(self) -> Sequence[str]:
        return ("ingest_jobs",)

    def fill(self, jobs: int) -> None:
        self.connection.execute(FILL, {"queue": "fetch", "count": jobs})

    def done(self, jobs: int) -> int:
        return int(said(self.connection, "SELECT count(*) FROM ingest_jobs WHERE status = 'completed'"))

    def one(self) -> AbstractContextManager[Popen[str]]:
        return working(self.dsn, *self._options, heard=DEVNULL)

    def began_s(self, workers: Sequence[Popen[str]]) -> float:
        """By the first claim, which is before the first body."""
        ago = "SELECT EXTRACT(epoch FROM clock_timestamp() - min(started_at))::float8 FROM ingest_jobs"
        return time.monotonic() - float(said(self.connection, ago))

    def _until_started(self, before: int) -> None:
        """It says by a lock that it waits."""
        waiting = said(self.connection, LISTENERS)
        until(lambda: said(self.connection, LISTENERS) > waiting)


class Peer(Contender):
    """A peer with its best settings."""

    def __init__(self, name: str, version: str, dsn: str, connection: psycopg.Connection[Any]) -> None:
        super().__init__(dsn, connection, f"{name} {version}: {peers.settings(name)}")
        self.name = name
        self._facts = peers.facts(name)
        peers.prepare(name, dsn)
        if not self._facts["fill"]:
            peers.keep_a_row(name, dsn)

    @property
    def done_query(self) -> str:
        """How many have ended for good, where they are not deleted."""
        return str(self._facts["done"])

    @property
    def tables(self) -> Sequence[str]:
        return (*self._facts["tables"], *self._facts["also"])

    def fill(self, jobs: int) -> None:
        if fill := self._facts["fill"]:
            self.connection.execute(fill.encode(), [jobs])
            return
        with self.connection.transaction():
            for number, table in enumerate(self._facts["tables"]):
                copy = COPY.format(table=table, number=number, key=self._facts["key"])
                self.connection.execute(copy.encode(), [jobs])

    def done(self, jobs: int) -> int:
        if left := self._facts["left"]:
            return jobs - int(said(self.connection, left))
        return int(said(self.connection, self._facts["done"]))

    def one(self) -> AbstractContextManager[Popen[str]]:
        return peers.working(self.name, self.dsn)

    def began_s(self, workers: Sequence[Popen[str]]) -> float:
        """By the first body: a peer may poll, and that is no part of how fast it is then."""
        firsts = [lines[0] for worker in workers if (lines := _heard(worker))]
        return min(map(int, firsts)) / 1e9


def field(bench: Bench, stack: ExitStack, *options: str, without: Sequence[str] = ()) -> dict[str, Contender]:
    """All that take part, each with a database of its own; ours, with such options, is the first."""
    taking_part: dict[str, Contender] = {
        OURS: Engine(*stack.enter_context(bench.database()), *options),
    }
    for name, version in bench.peers.items():
        if name not in without:
            taking_part[name] = Peer(name, version, *stack.enter_context(bench.database()))
    return taking_part


def burst_s(one: Contender, workers: Sequence[Popen[str]], jobs: int, longest_s: float) -> tuple[float, int]:
    """Seconds from the first job to the last end, and how many ended: all, or what did so in that time.

    The workers are stopped while their queue is filled, so that all begin at one moment on all of it.
    """
    _stop_and_empty(one, workers)
    stopped = time.monotonic()
    try:
        one.fill(jobs)
        one.settle()
        time.sleep(max(0.0, stopped + _APART_S - time.monotonic()))
        for worker in workers:
            _heard(worker)
    finally:
        _signal(workers, signal.SIGCONT)
    return _watched(one, workers, jobs, longest_s)


def _watched(one: Contender, workers: Sequence[Popen[str]], jobs: int, longest_s: float) -> tuple[float, int]:
    went_on, began, done = time.monotonic(), 0.0, 0
    while True:
        done, now = one.done(jobs), time.monotonic()
        if done and not began:
            began = one.began_s(workers)
        if done >= jobs or now - (began or went_on) > longest_s:
            return now - (began or went_on), done
        if any(worker.poll() is not None for worker in workers):
            raise SystemExit(f"a worker of {one.words} ended by itself")
        # Seldom enough to cost nothing, and soon enough after what is likely to be the end.
        took = now - (began or went_on)
        time.sleep(max(0.005, min(0.5, took * (jobs - done) / max(done, 1) / 3)))


def _stop_and_empty(one: Contender, workers: Sequence[Popen[str]]) -> None:
    """One that is stopped within a transaction holds locks, so it is let go on for a moment."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        _signal(workers, signal.SIGSTOP)
        try:
            one.empty()
        except psycopg.errors.LockNotAvailable:
            if time.monotonic() > deadline:
                raise
        else:
            return
        _signal(workers, signal.SIGCONT)
        time.sleep(0.05)


def _signal(workers: Sequence[Popen[str]], number: int) -> None:
    for worker in workers:
        os.kill(worker.pid, number)


def _heard(worker: Popen[str]) -> list[str]:
    """The lines that it has said since it was asked last."""
    said_so_far = b""
    if worker.stdout is None:
        return []
    while select.select([worker.stdout], [], [], 0)[0] and (some := os.read(worker.stdout.fileno(), 65_536)):
        said_so_far += some
    return said_so_far.decode().splitlines()
