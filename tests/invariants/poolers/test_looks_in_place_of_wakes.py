"""Where no wake can come, what follows on something else begins at a look, long before the poll."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.workers import running_orchestrator, running_worker, until
from support.rows.jobs import CLEAR_WITH_WORKERS
from support.servers.transaction_pooler import TransactionPooler

from queue_workflows import enqueue_ingest_job, start_run

# A poll that no test outlasts.
NO_POLL: Final = {"QWF_POLL_S": "600"}
SOLO, SEVERAL = ("--concurrency", "1"), ("--concurrency", "4")
# Longer than any pause of the first seconds after a job.
LONG_S: Final = 0.15
# By which a claim, a look for runs and a look for what others know are told from all else on the wire.
CLAIM, RUNS, KNOWN = b"AS mark (priority, position)", b"AND hold_reason IS NULL AND (", b"AS met (name)"
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
        """How long the pauses are, once nothing has come for some seconds; upkeep cuts some of them short."""
        return until(lambda: max(median(self.pauses(kind, 5)) - LONG_S, 0.0)) + LONG_S

    def quick(self, kind: bytes) -> float:
        """The longer ones of the pauses now: a second claim right after the first may prove it."""
        return sorted(self.pauses(kind, 20))[14]


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
    with own_connection(qwf_dsn) as connection:
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


@pytest.mark.parametrize("options", [SOLO, SEVERAL], ids=["one", "several"])
def test_the_next_job_waits_for_no_poll(
    pooled: str, eyes: psycopg.Connection[Any], options: tuple[str, ...]
) -> None:
    """One that is enqueued right after another has ended, three times over."""
    with running_worker(pooled, *options, **NO_POLL):
        for _ in range(3):
            ends(eyes, enqueue(eyes))


@pytest.mark.slow
@pytest.mark.parametrize("options", [SOLO, SEVERAL], ids=["one", "several"])
def test_a_job_that_ends_makes_the_looks_quick(
    pooled: str, wire: Wire, eyes: psycopg.Connection[Any], options: tuple[str, ...], tmp_path: Path
) -> None:
    """However slow they were before: there may soon be more. Where there is room, one that begins does."""
    with running_worker(pooled, *options, **NO_POLL):
        ends(eyes, enqueue(eyes))
        before = wire.slow(CLAIM)
        job = enqueue(eyes, "deaf", until=str(tmp_path / "go"))
        until(lambda: status(eyes, job) == "running")
        if options is SOLO:
            (tmp_path / "go").touch()
            ends(eyes, job)
        assert wire.quick(CLAIM) < before / 2


@pytest.mark.slow
def test_a_run_that_moves_makes_the_looks_quick(
    pooled: str, wire: Wire, eyes: psycopg.Connection[Any]
) -> None:
    """An orchestrator looks for the next run as a worker does for the next job."""
    with running_orchestrator(pooled, **NO_POLL):
        before = wire.slow(RUNS)
        run = start_run(ONE_NODE, conn=eyes).id
        until(lambda: eyes.execute("SELECT 1 FROM workflow_node_jobs WHERE run_id = %s", (run,)).fetchone())
        assert wire.quick(RUNS) < before / 2


@pytest.mark.slow
def test_a_task_that_it_lacks_makes_no_look_quick(
    pooled: str, wire: Wire, eyes: psycopg.Connection[Any]
) -> None:
    """A worker asks now and then whether another one knows it by now, which is no news to its looks."""
    with running_worker(pooled, *SOLO, **NO_POLL):
        enqueue(eyes, "nobody knows this")
        until(lambda: len(wire.at(KNOWN)) == 1)
        before = wire.slow(CLAIM)
        until(lambda: len(wire.at(KNOWN)) == 2)
        # A look or two belong to the question itself.
        wire.pauses(CLAIM, 2)
        assert min(wire.pauses(CLAIM, 3)) > before / 2
