"""A rack of workers with long jobs loses its network and gets it back, which no other host feels."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from support.fleet.namespaces import Rack
from support.processes.supervised import supervisor_of
from support.processes.workers import patiently, running_worker
from support.rows.jobs import Jobs
from support.servers.cluster import Cluster
from support.stages.ledger import Ledger

from queue_workflows.cli.main import run
from queue_workflows.db.migrations import bootstrap
from queue_workflows.repositories import IngestJobRepository

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

# Hosts of the rack, and workers on each: all of twenty where the whole fleet is shown.
HOSTS, EACH = (5, 4) if os.environ.get("QWF_TEST_FLEET") == "long" else (2, 2)
LONG = HOSTS * EACH
# A beat each second and a half: workers of a host are not told apart by how late a busy machine has them.
CALM = {"QWF_LEASE_S": "9", "QWF_RENEW_S": "0.5", "QWF_STALE_HEARTBEAT_S": "9"}
EVERY_S = 0.1
HEARD = "SELECT count(*) FROM worker_heartbeats WHERE host_label LIKE 'rack%'"
MARK = "SELECT statement_timestamp()"
OFFERED = "SELECT count(*) FROM ingest_jobs WHERE queue = 'fetch' AND created_at BETWEEN %s AND %s"
DONE = "SELECT count(*) FROM ingest_jobs WHERE queue = 'fetch' AND finished_at BETWEEN %s AND %s"
ENDED = "SELECT count(*) FROM ingest_jobs WHERE queue = 'fetch' AND status = 'completed'"
ELSEWHERE = "SELECT count(*) FROM worker_heartbeats WHERE queue = 'load' AND host_label = 'here'"
ON_A_RACK = """
SELECT count(*) FROM ingest_jobs WHERE id = ANY (%s) AND claimed_by LIKE 'rack%%' AND status = 'completed'
"""
BLAMED = """
SELECT count(*) FROM ingest_jobs
WHERE status <> 'completed' OR failures > 0 OR crash_count > 0 OR suspect
"""


class Offers(threading.Thread):
    """Enqueues short jobs at a steady pace, on a connection of its own."""

    def __init__(self, dsn: str) -> None:
        super().__init__(daemon=True)
        self._dsn = dsn
        self._ends = threading.Event()

    def run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._ends.wait(EVERY_S):
                IngestJobRepository(connection).enqueue("note", queue="fetch")

    def stop(self) -> None:
        self._ends.set()
        self.join(60)


@pytest.fixture
def server() -> Iterator[Cluster]:
    """A Postgres that a rack can reach."""
    with Cluster.primary({"listen_addresses": "*"}) as server:
        with (server.data / "pg_hba.conf").open("a") as file:
            file.write("host all all 10.213.0.0/16 scram-sha-256\n")
        with server.connect() as admin:
            admin.execute("SELECT pg_reload_conf()")
        bootstrap(server.dsn())
        yield server


@pytest.fixture
def rack(server: Cluster) -> Iterator[Rack]:
    with Rack(server.port) as rack:
        yield rack


def throughput(eyes: psycopg.Connection, since: object, until: object) -> float:
    """Of the short jobs that were offered in this time, the share of those done in it."""
    (offered,) = eyes.execute(OFFERED, [since, until]).fetchone() or (0,)
    (done,) = eyes.execute(DONE, [since, until]).fetchone() or (0,)
    return float(done / offered)


def now(eyes: psycopg.Connection) -> object:
    return (eyes.execute(MARK).fetchone() or (None,))[0]


def test_it_is_cut_and_heals(
    rack: Rack,
    server: Cluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its jobs begin anew elsewhere and end once, it works again, and each job's history says why."""
    dsn, ledger = server.dsn(), Ledger(tmp_path)
    args = {"ledger": str(tmp_path), "gated": True, "stuck": False}
    with ExitStack() as stack:
        eyes = stack.enter_context(psycopg.connect(dsn, autocommit=True))
        jobs = Jobs("ingest", eyes)
        workers = [word for _ in range(EACH) for word in ("--worker", "load --concurrency 1")]
        supervisors = [
            stack.enter_context(
                supervisor_of(
                    server.dsn(host=rack.address, port=str(rack.port)),
                    *(*workers, "--no-spare", "--no-janitor"),
                    prefix=rack.prefix,
                    env=CALM | {"QWF_HOST_LABEL": f"rack{number}"},
                )
            )
            for number in range(HOSTS)
        ]
        long = [jobs.repository.enqueue("recorded", queue="load", args=args).id for _ in range(LONG)]
        for job in long:
            patiently(lambda job=job: ledger.attempts(job) == [1])
        patiently(lambda: eyes.execute(HEARD).fetchone() == (LONG,))
        had = {job: jobs.repository.fetch(job).claimed_by for job in long}

        stack.enter_context(running_worker(dsn, "--concurrency", "2", **CALM))
        offers = Offers(dsn)
        offers.start()
        stack.callback(offers.stop)
        patiently(lambda: (eyes.execute(ENDED).fetchone() or (0,))[0] > 20)
        # A host with room for all, begun by now so that nothing starts in the time that counts.
        options = ("--queue", "load", "--concurrency", str(LONG))
        elsewhere = stack.enter_context(running_worker(dsn, *options, **CALM))
        patiently(lambda: eyes.execute(ELSEWHERE).fetchone() == (1,))

        cut_at = now(eyes)
        rack.cut()
        for job in long:
            patiently(lambda job=job: ledger.attempts(job) == [1, 2])
        assert throughput(eyes, cut_at, now(eyes)) >= 0.9
        for job in long:
            ledger.open_gate(job, 2)
            patiently(lambda job=job: jobs.repository.fetch(job).status == "completed")
        elsewhere.terminate()
        assert elsewhere.wait(150) == 0

        rack.heal()
        again = [jobs.repository.enqueue("note", queue="load").id for _ in range(LONG)]
        patiently(lambda: eyes.execute(ON_A_RACK, [again]).fetchone() == (LONG,))
        offers.stop()
        patiently(lambda: eyes.execute(BLAMED).fetchone() == (0,))

        assert [ledger.attempts(job) for job in long] == [[1, 2]] * LONG
        monkeypatch.setenv("QWF_DB_URL", dsn)
        for job in long:
            assert run(["explain", str(job)]) == 0
            told = capsys.readouterr().out
            assert f"attempt 1 on {had[job]}" in told
            assert "its host fell silent, with all of its workers" in told
            assert "attempt 2 claimed" in told
            assert "0 of 3 failures, 0 crashes" in told
        for supervisor in supervisors:
            assert supervisor.stop() == 0
