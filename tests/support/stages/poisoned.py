"""Good jobs with poison among them, supervised workers of eight, and how long the good ones took."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from support.processes.supervised import Supervised, idle
from support.processes.workers import until
from support.tasks.poison_tasks import HOW

from queue_workflows.repositories import IngestJobRepository, NewIngestJob

WORKERS = 2
_GOOD = "task_name = 'doze'"
_LEFT = "SELECT count(*) FROM ingest_jobs WHERE status NOT IN ('completed', 'failed') AND "
_TOOK = f"""
SELECT extract(epoch FROM max(finished_at) - min(created_at))::float8 FROM ingest_jobs WHERE {_GOOD}
"""
_HOW = """
SELECT status, crash_count, count(*) FROM ingest_jobs WHERE task_name = %s
GROUP BY 1, 2 ORDER BY 1, 2
"""


def mixed(good: int, poison: int, *, seed: int, good_s: float) -> list[NewIngestJob]:
    """Both kinds in one order; each kind of poison."""
    jobs = [NewIngestJob(task_name="doze", queue="fetch", args={"s": good_s}) for _ in range(good)]
    chance = random.Random(seed)
    for number in range(poison):
        at = chance.randrange(len(jobs) + 1)
        jobs.insert(at, poison_job(number))
    return jobs


def poison_job(number: int, **more: int) -> NewIngestJob:
    """One that ends its process, each its own way."""
    return NewIngestJob(task_name="poison", queue="fetch", args={"how": HOW[number % len(HOW)]}, **more)


_NAMED = """
SELECT args ->> 'how', COALESCE(errors -> -1 ->> 'message', '') FROM ingest_jobs WHERE task_name = 'poison'
"""
SIGNALS = {"kill": "SIGKILL", "segv": "SIGSEGV", "abort": "SIGABRT", "exit": "ended with 3"}


@dataclass(frozen=True)
class Stage:
    """A supervisor of two workers of eight, which wait for work."""

    connection: psycopg.Connection
    supervisor: Supervised

    @property
    def jobs(self) -> IngestJobRepository:
        return IngestJobRepository(self.connection)

    def good_done(self, within_s: float) -> float:
        """Wait for the good ones; how long after they were enqueued the last of them was done, in seconds."""
        until(lambda: not self._left(_GOOD), within_s=within_s)
        ((took,),) = self.connection.execute(_TOOK).fetchall()
        return float(took)

    def all_done(self, within_s: float) -> None:
        until(lambda: not self._left("true"), within_s=within_s)

    def ends(self, task: str) -> list[tuple[str, int, int]]:
        """How many of a task ended how, with how many crashes counted."""
        return self.connection.execute(_HOW, [task]).fetchall()

    def unnamed(self) -> int:
        """How many of the poison do not say last that they killed their worker, and in which way."""
        last_words = self.connection.execute(_NAMED).fetchall()
        return sum("it killed its worker" not in said or SIGNALS[how] not in said for how, said in last_words)

    def left_of(self, task: str) -> int:
        """How many of a task are not over."""
        return self._left(f"task_name = '{task}'")

    def _left(self, which: str) -> int:
        ((left,),) = self.connection.execute(_LEFT + which).fetchall()
        return int(left)


@contextmanager
def stage(dsn: str, *, log: Path | None = None, concurrency: int = 8) -> Iterator[Stage]:
    """The shipped command with the tasks of `poison_tasks`, over an empty table."""
    command = [sys.executable, "-m", "queue_workflows", "--app", "support.tasks.poison_tasks", "supervisor"]
    worker = f"fetch:{WORKERS} --concurrency {concurrency}"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("TRUNCATE ingest_jobs")
        with Supervised([*command, "--worker", worker], dsn) as supervisor:
            idle(connection, WORKERS)
            supervisor.until("a spare stands by")
            try:
                yield Stage(connection, supervisor)
                assert supervisor.stop() == 0
            finally:
                if log is not None:
                    log.write_text("\n".join(supervisor.said))
