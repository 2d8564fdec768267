"""A pooler that is paused, killed or too small loses nothing: each job that was acknowledged ends, once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.processes.workers import patiently, running_worker
from support.servers.pgbouncer import PgBouncer, example
from support.stages.ledger import Ledger

from queue_workflows import enqueue_ingest_job
from queue_workflows.errors import QwfError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WORKERS, PRODUCERS = 2, 3
# So that what a restart cut in the middle of a claim runs again within the test.
SETTINGS = {"QWF_LEASE_S": "6", "QWF_APP": "support.tasks.worker_tasks"}
ENDED = "SELECT count(*) FROM ingest_jobs WHERE status = 'completed'"
ROWS = "SELECT dedupe_key, id, status, failures, jsonb_array_length(errors) FROM ingest_jobs"
BACKENDS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


class Producer(threading.Thread):
    """A host app that enqueues on a connection of its own, which it opens anew when it has lost it."""

    def __init__(self, dsn: str, number: int, ledger: Ledger) -> None:
        super().__init__(daemon=True)
        self.dsn, self.number = dsn, number
        self.args = {"ledger": str(ledger.directory), "gated": False, "stuck": False}
        self.acknowledged: list[str] = []
        self.ends = threading.Event()

    def run(self) -> None:
        while not self.ends.is_set():
            try:
                with psycopg.connect(self.dsn, prepare_threshold=None) as connection:
                    self.enqueue(connection)
            except (QwfError, psycopg.Error):
                self.ends.wait(0.1)

    def enqueue(self, connection: psycopg.Connection[Any]) -> None:
        while not self.ends.is_set():
            key = f"{self.number}-{time.monotonic_ns()}"
            enqueue_ingest_job("recorded", queue="fetch", args=self.args, dedupe_key=key, conn=connection)
            connection.commit()
            self.acknowledged.append(key)
            self.ends.wait(0.02)


class Load:
    """Workers and producers behind the proxy, and what has become of the jobs."""

    def __init__(self, pooler: PgBouncer, eyes: psycopg.Connection[Any], ledger: Ledger) -> None:
        self.eyes, self.ledger = eyes, ledger
        self.producers = [Producer(pooler.dsn(), number, ledger) for number in range(PRODUCERS)]

    def ended(self) -> int:
        (number,) = self.eyes.execute(ENDED).fetchone() or (0,)
        return int(number)

    def goes_on(self, jobs: int = 50) -> None:
        """So many more jobs end, and each producer gets one more acknowledged."""
        had, before = self.ended(), [len(producer.acknowledged) for producer in self.producers]
        patiently(lambda: self.ended() >= had + jobs)
        for producer, number in zip(self.producers, before, strict=True):
            patiently(lambda producer=producer, number=number: len(producer.acknowledged) > number)

    def stop(self) -> None:
        for producer in self.producers:
            producer.ends.set()
        for producer in self.producers:
            producer.join(120)

    def check(self) -> dict[str, Any]:
        """Once all has ended: what was acknowledged is there and is done; the rows, by their keys."""
        self.stop()
        kept = {key for producer in self.producers for key in producer.acknowledged}
        (enqueued,) = self.eyes.execute("SELECT count(*) FROM ingest_jobs").fetchone() or (0,)
        patiently(lambda: self.ended() == enqueued)
        rows = {key: row for key, *row in self.eyes.execute(ROWS).fetchall()}
        assert kept <= rows.keys()
        assert {failures for _, _, failures, _ in rows.values()} == {0}
        return rows


@contextmanager
def load(pooler: PgBouncer, dsn: str, place: Path) -> Iterator[Load]:
    with ExitStack() as stack:
        eyes = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        eyes.execute("DELETE FROM ingest_jobs")
        under = Load(pooler, eyes, Ledger(place))
        for _ in range(WORKERS):
            stack.enter_context(running_worker(pooler.dsn(), "--concurrency", "4", **SETTINGS))
        for producer in under.producers:
            producer.start()
        stack.callback(under.stop)
        under.goes_on()
        yield under


def clients(pooler: PgBouncer) -> set[int]:
    """The connections to the database, by their ports: a new one may get the place of another that ended."""
    return {
        int(client["port"]) for client in pooler.console("SHOW CLIENTS") if client["database"] != "pgbouncer"
    }


def test_a_pause_is_waited_for(qwf_dsn: str, tmp_path: Path) -> None:
    """PAUSE and RESUME, with a pool far smaller than the clients: each job is run once, nobody reconnects."""
    settings = {**example("transaction"), "default_pool_size": "2", "reserve_pool_size": "0"}
    with PgBouncer(qwf_dsn, **settings) as pooler, load(pooler, qwf_dsn, tmp_path) as under:
        pools = [pool for pool in pooler.console("SHOW POOLS") if pool["database"] != "pgbouncer"]
        assert sum(int(pool["cl_active"]) + int(pool["cl_waiting"]) for pool in pools) > 2
        assert under.eyes.execute(BACKENDS).fetchone() == (2,)
        before = clients(pooler)
        under.goes_on()
        # Without what tries to LISTEN, or looks after a job, and is gone by itself.
        before &= clients(pooler)
        assert len(before) >= WORKERS + PRODUCERS
        for _ in range(2):
            pooler.console("PAUSE")
            had = under.ended()
            until = time.monotonic() + 2
            while time.monotonic() < until:
                assert under.ended() == had
                time.sleep(0.1)
            pooler.console("RESUME")
            under.goes_on()
        assert before - clients(pooler) == set()
        rows = under.check()
    assert {errors for *_, errors in rows.values()} == {0}
    assert [len(under.ledger.attempts(job)) for job, *_ in rows.values()] == [1] * len(rows)


@pytest.mark.parametrize("pooling", ["transaction", "session"])
def test_a_restart_is_lived_through(pooling: str, qwf_dsn: str, tmp_path: Path) -> None:
    """Killed and back, and with all clients cut off by its console: what was acknowledged ends."""
    with PgBouncer(qwf_dsn, **example(pooling)) as pooler, load(pooler, qwf_dsn, tmp_path) as under:
        pooler.restart()
        under.goes_on()
        database = psycopg.conninfo.conninfo_to_dict(pooler.dsn())["dbname"]
        pooler.console(f"KILL {database}")
        pooler.console(f"RESUME {database}")
        under.goes_on()
        rows = under.check()
    # What a cut kept from being written until its lease lapsed runs again, and its row says so.
    silent = [job for job, *_, errors in rows.values() if len(under.ledger.attempts(job)) > 1 + errors]
    assert silent == []
