"""A claim that a server forgot in a crash is made again by its worker, which begins nothing anew.

A claim need not be on disk when its job begins. The server that was started again then hands the job out a
second time, with the number that the first attempt has: to another worker it must look like a lapsed lease,
and the worker that has the job must not take it for a new one.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from support.processes.workers import running_worker, until
from support.servers.cluster import Cluster
from support.stages.floor import Floor
from support.stages.ledger import Ledger

from queue_workflows.db import bootstrap
from queue_workflows.repositories import HeartbeatRepository

# Nothing is written to the log of the server in the background for so long.
LAZILY = {"wal_writer_delay": "10s"}
IS_ON_DISK = "SELECT pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()"
# As a crash of the server leaves it that undoes the claim.
FORGET = """
UPDATE ingest_jobs SET
    status = 'queued', attempt = attempt - 1, claimed_by = NULL, lease_expires_at = NULL, started_at = NULL
WHERE id = %s
"""
ENV = {"QWF_POLL_S": "0.1"}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A migrated server that forgets as much as it may."""
    with Cluster.primary(LAZILY) as cluster:
        bootstrap(cluster.dsn())
        yield cluster


@contextmanager
def forgotten(
    cluster: Cluster, directory: Path, at_once: str
) -> Iterator[tuple[Floor, int, subprocess.Popen[str]]]:
    """A job at its gate whose claim the server, which is back, has forgotten."""
    before: psycopg.Connection = cluster.connect()
    floor = Floor(cluster.dsn(), before, Ledger(directory))
    with running_worker(floor.dsn, "--concurrency", at_once, **ENV) as worker:
        until(lambda: len(HeartbeatRepository(before).list(state="idle")) == 1)
        before.execute("CHECKPOINT")
        job = floor.enqueue(gated=True)
        floor.until_begun(job, 1)
        assert before.execute(IS_ON_DISK).fetchone() == (False,)
        cluster.stop("immediate")
        cluster.start(LAZILY)
        with cluster.connect() as after:
            yield Floor(floor.dsn, after, floor.ledger), job, worker


def is_running_again(floor: Floor, job: int) -> bool:
    return floor.jobs.seen(job, "status", "attempt") == ("running", 1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("at_once", ["1", "3"])
def test_its_worker_has_it_again(cluster: Cluster, tmp_path: Path, at_once: str) -> None:
    """The attempt that runs is the only one, its result is accepted, and its worker goes on."""
    with forgotten(cluster, tmp_path, at_once) as (floor, job, worker):
        until(
            lambda: floor.jobs.seen(job, "status", "attempt") == ("running", 1) or worker.poll() is not None
        )
        floor.ledger.open_gate(job, 1)
        until(lambda: floor.are_in("completed", job) or worker.poll() is not None)
        assert worker.poll() is None
        assert floor.ledger.attempts(job) == [1]
        assert floor.standing(job) == ("completed", 1, 0, 0)


def test_a_claim_that_is_made_by_the_thread_that_claims(floor: Floor) -> None:
    """A worker that is handed the very attempt that runs in it begins it no second time."""
    with running_worker(floor.dsn, "--concurrency", "3", **ENV) as worker:
        job = floor.enqueue(gated=True)
        floor.until_begun(job, 1)
        # It wakes the worker, which claims long before it looks after what it holds.
        floor.connection.execute(FORGET, [job])
        until(lambda: is_running_again(floor, job) or worker.poll() is not None)
        other = floor.enqueue()
        until(lambda: floor.are_in("completed", other) or worker.poll() is not None)
        floor.ledger.open_gate(job, 1)
        until(lambda: floor.are_in("completed", job) or worker.poll() is not None)
        assert worker.poll() is None
        assert floor.ledger.attempts(job) == [1]
        assert floor.standing(job) == ("completed", 1, 0, 0)
