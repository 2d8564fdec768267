"""Under a real Patroni in synchronous mode no acknowledged job is lost, whatever becomes of the primary."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import psycopg
import pytest
from support.processes.workers import patiently, running_worker
from support.servers.patroni import Member, PatroniCluster

from queue_workflows import db, enqueue_ingest_job
from queue_workflows.db.connections.engine import Database
from queue_workflows.errors import QwfError
from queue_workflows.testing import configured_database

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
KEYS = "SELECT dedupe_key, status FROM ingest_jobs"
# A backend whose commit is on disk here, and has yet to be on a standby's.
WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname = current_database()"
# The promise is ten seconds once another is promoted; a machine with twenty others to serve has as many more.
WORKS_WITHIN_S = 60.0


@pytest.fixture
def patroni() -> Iterator[PatroniCluster]:
    with PatroniCluster() as cluster:
        db.bootstrap(cluster.dsn)
        yield cluster


class Producer(threading.Thread):
    """Enqueues jobs, each in a transaction of its own, and keeps the keys of those that were acknowledged."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.acknowledged: list[str] = []
        self.ends = threading.Event()
        self.failed = 0

    def run(self) -> None:
        number = 0
        while not self.ends.is_set():
            number += 1
            key = f"{self.name}-{number}"
            try:
                enqueue_ingest_job("good", queue="fetch", dedupe_key=key)
            except (QwfError, psycopg.Error):
                self.failed += 1
                self.ends.wait(0.1)
            else:
                self.acknowledged.append(key)


@contextmanager
def producing(name: str, count: int = 3) -> Iterator[list[Producer]]:
    producers = [Producer(f"{name}-{number}") for number in range(count)]
    for producer in producers:
        producer.start()
    try:
        yield producers
    finally:
        for producer in producers:
            producer.ends.set()
        for producer in producers:
            producer.join(300)


def acknowledged(producers: list[Producer]) -> int:
    return sum(len(producer.acknowledged) for producer in producers)


def statuses(dsn: str) -> dict[str, str]:
    """Of each job, by its key; nothing while no server takes writes."""
    with (
        suppress(QwfError, psycopg.Error),
        Database.open(dsn, role="test") as database,
        closing(database.connect()) as connection,
    ):
        return dict(connection.execute(KEYS).fetchall())
    return {}


def lose_with_standbys_behind(patroni: PatroniCluster, primary: Member, producers: list[Producer]) -> None:
    """Kill the primary once its commits wait for a standby that hears nothing, or do not wait for it."""
    receivers = [each for member in patroni.members if member is not primary for each in member.receivers()]
    assert len(receivers) == 2
    for receiver in receivers:
        receiver.suspend()
    had = acknowledged(producers)
    with psycopg.connect(f"{patroni.dsn} target_session_attrs=read-write", autocommit=True) as eyes:
        patiently(lambda: acknowledged(producers) > had + 100 or eyes.execute(WAITS).fetchone() != (0,))
    primary.kill()
    for receiver in receivers:
        # So that what has come as far as this machine is not read: it might have been on its way only.
        receiver.terminate()
        receiver.resume()


@pytest.mark.parametrize("loss", ["switchover", "loss of the primary's machine"])
def test_no_acknowledged_job_is_lost(patroni: PatroniCluster, loss: str) -> None:
    """Producers and a worker find the new primary by themselves; what was acknowledged is there, and is done.

    The machine is lost while its standbys are behind: in another mode they would lack what was acknowledged.
    """
    env = {"QWF_APP": "support.tasks.ending_tasks"}
    with configured_database(patroni.dsn), running_worker(patroni.dsn, "--concurrency", "4", **env) as worker:
        with producing(loss.replace(" ", "-")) as producers:
            patiently(lambda: acknowledged(producers) > 100)
            before = patroni.primary()
            if loss == "switchover":
                patroni.switch_over()
            else:
                lose_with_standbys_behind(patroni, before, producers)
            after = patroni.primary()
            promoted_at, had = time.monotonic(), acknowledged(producers)
            assert after is not before
            patiently(lambda: acknowledged(producers) > had + 100)
            assert time.monotonic() - promoted_at < WORKS_WITHIN_S
        kept = {key for producer in producers for key in producer.acknowledged}
        patiently(lambda: kept <= statuses(patroni.dsn).keys())
        patiently(lambda: set(statuses(patroni.dsn).values()) == {"completed"})
        worker.terminate()
        assert worker.wait(300) == 0
    if loss != "switchover":
        patroni.come_back(before)
