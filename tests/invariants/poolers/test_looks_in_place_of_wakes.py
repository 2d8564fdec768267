"""Where no wake can come, what follows on something else begins at a look, long before the poll."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import psycopg
import pytest
from support.processes.workers import running_worker, until
from support.rows.jobs import CLEAR_WITH_WORKERS
from support.servers.transaction_pooler import TransactionPooler

from queue_workflows import enqueue_ingest_job

# A poll that no test outlasts.
NO_POLL: Final = {"QWF_POLL_S": "600"}
SOLO, SEVERAL = ("--concurrency", "1"), ("--concurrency", "4")
# Longer than any pause of the first seconds after a job.
LONG_S: Final = 0.15
# By which a claim, a look for runs and a look for what others know are told from all else on the wire.
CLAIM, RUNS, KNOWN = b"AS mark (priority, position)", b"FROM workflow_outbox", b"AS met (name)"
ONE_NODE: Final = {"name": "one", "nodes": [{"id": "a", "module": "echo", "inputs": {"n": 1}}], "outputs": {}}


class Wire:
    """What is asked through the proxy, and when."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, bytes]] = []

    def hear(self, data: bytes) -> None:
        self.asked += [(time.monotonic(), kind) for kind in (CLAIM, RUNS, KNOWN) if kind in data]

    def at(self, kind: bytes) -> list[float]:
        return [moment for moment, asked in self.asked if asked == kind]

    def pauses(self, kind: bytes, count: int) -> list[float]:
        """Those between the next of a kind."""
        had = len(self.at(kind))
        until(lambda: len(self.at(kind)) > had + count)
        return [after - before for before, after in pairwise(self.at(kind)[had : had + count + 1])]

    def slow(self, kind: bytes) -> float:
        """How long the pauses are at least, once nothing has come for some seconds."""
        return until(lambda: max(min(self.pauses(kind, 3)) - LONG_S, 0.0)) + LONG_S

    def quick(self, kind: bytes) -> float:
        """The pauses now, which a busy machine lengthens and some other reason to look shortens."""
        return sorted(self.pauses(kind, 20))[8]


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def pooled(qwf_dsn: str, wire: Wire) -> Iterator[str]:
    """A DSN past transaction pooling."""
    with TransactionPooler(qwf_dsn, backends=3, on_asked=wire.hear) as pooler:
        yield pooler.dsn()


@pytest.fixture
def eyes(qwf_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """The tables, empty and seen at once."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        yield connection


def enqueue(eyes: psycopg.Connection[Any], task: str = "note", **args: str) -> int:
    return enqueue_ingest_job(task, queue="fetch", args=args, conn=eyes).id


def ends(eyes: psycopg.Connection[Any], job: int) -> None:
    """Wait until a job has ended."""
    until(lambda: status(eyes, job) == "completed")


def status(eyes: psycopg.Connection[Any], job: int) -> str:
    ((found,),) = eyes.execute("SELECT status FROM ingest_jobs WHERE id = %s", (job,)).fetchall()
    return str(found)


def looks(eyes: psycopg.Connection[Any]) -> list[bool]:
    """Whether each worker that is idle says that it looks."""
    rows = eyes.execute("SELECT load ? 'looks' FROM worker_heartbeats WHERE state = 'idle'").fetchall()
    return [one for (one,) in rows]


def test_a_worker_says_whether_it_looks(qwf_dsn: str, pooled: str, eyes: psycopg.Connection[Any]) -> None:
    """So that those that share its looks can count it: one that hears wakes asks nothing of them."""
    with running_worker(pooled):
        until(lambda: looks(eyes) == [True])
    eyes.execute("DELETE FROM worker_heartbeats")
    with running_worker(qwf_dsn):
        until(lambda: looks(eyes) == [False])
