"""The table "When the database is away" of `docs/how-to/run-workers.md`, role by role, in one outage.

A second, more than a lease, and ten leases. What the table says of a supervisor, of a claim without an answer
and of jobs that survive is proved in the invariants.
"""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from contextlib import ExitStack

import psycopg
import pytest
from support.processes.workers import running_orchestrator, running_scheduler, running_worker, until
from support.rows.runs import dispatcher, settle, start
from support.rows.schemas import start_qwf
from support.servers.outages import restore, stop, until_over
from support.servers.statement_proxy import StatementProxy
from support.stages.floor import Floor

from queue_workflows import wait_for
from queue_workflows.repositories import HeartbeatRepository, IngestJobRepository

# Six processes start while the first of them has to keep its job.
LEASE_S = 5.0
SETTINGS = {"QWF_LEASE_S": "5", "QWF_LEASE_S_BY_QUEUE": "gpu=5", "QWF_RENEW_S": "0.5"}
KILLED = -signal.SIGKILL
pytestmark = [pytest.mark.slow, pytest.mark.timed, pytest.mark.timeout(600)]


class Waiting(threading.Thread):
    """A caller of `wait_for`."""

    def __init__(self, dsn: str, job: int) -> None:
        super().__init__(daemon=True)
        self.dsn, self.job, self.result = dsn, job, None
        self.start()

    def run(self) -> None:
        self.result = wait_for(self.job, db_url=self.dsn)


def test_each_role_in_a_second_a_lease_and_ten(floor: Floor, proxy: StatementProxy) -> None:
    """Who holds a job that needs its lease is gone after that; all others go on when the database is back."""
    run = start(
        floor.connection,
        {
            "nodes": [
                {
                    "id": "draw",
                    "module": "enduring",
                    "queue": "gpu",
                    "inputs": {"ledger": str(floor.ledger.directory)},
                }
            ]
        },
    )
    settle(dispatcher(floor.connection))
    with ExitStack() as stack:

        def worker(*options: str) -> subprocess.Popen[str]:
            return stack.enter_context(running_worker(proxy.dsn, *options, **SETTINGS))

        job = floor.enqueue(gated=True)
        single = worker("--concurrency", "1")
        floor.until_begun(job, 1)
        pair = [floor.enqueue(gated=True) for _ in range(2)]
        several = worker("--concurrency", "2")
        for each in pair:
            floor.until_begun(each, 1)
        gpu = worker("--queue", "gpu")
        (drawn,) = until(lambda: [one for one in floor.ledger.begun() if one.pid == gpu.pid])
        idle = worker("--queue", "load")
        until(lambda: HeartbeatRepository(floor.connection).list(queue="load", state="idle"))
        orchestrator = stack.enter_context(running_orchestrator(proxy.dsn))
        scheduler = stack.enter_context(running_scheduler(proxy.dsn))
        until(lambda: len(floor.connection.execute(ROLES).fetchall()) == 2)
        waiting = Waiting(proxy.dsn, job)
        watch = start_qwf("--db", proxy.dsn, "run", "watch", str(run))
        stack.callback(watch.kill)
        # The first look of either, which finds out whether there is a database at all, is done.
        assert watch.stdout is not None
        assert watch.stdout.readline()
        until(lambda: floor.connection.execute(LOOKED).fetchone())
        holders, others = [single, several, gpu], [idle, orchestrator, scheduler, watch]

        stop(proxy)
        with pytest.raises(psycopg.OperationalError), psycopg.connect(proxy.dsn) as producer:
            IngestJobRepository(producer).enqueue("note", queue="load")
        time.sleep(1.0)
        (latest,) = floor.connection.execute(LATEST).fetchone() or (None,)
        restore(proxy)
        until(lambda: floor.connection.execute(RENEWED, [latest]).fetchone() == (4,))
        assert [each.poll() for each in holders + others] == [None] * 7

        stop(proxy)
        assert [each.wait(150) for each in holders] == [KILLED] * 3
        until_over(floor.connection, job, for_s=9 * LEASE_S)
        assert [each.poll() for each in others] == [None] * 4
        assert waiting.is_alive()
        restore(proxy)

        following = floor.repository.enqueue("note", queue="load").id
        floor.until_completed(following)
        assert floor.jobs.row(following)["result"]["pid"] == idle.pid
        for each in (job, *pair):
            floor.ledger.open_gate(each, 2)
        floor.ledger.open_gate(drawn.job_id, 2)
        worker("--concurrency", "3")
        worker("--queue", "gpu")
        floor.until_completed(job, *pair)
        assert [floor.standing(each) for each in (job, *pair)] == [("completed", 2, 0, 0)] * 3
        waiting.join(150)
        assert waiting.result is not None
        assert watch.wait(150) == 0
        until(lambda: floor.connection.execute(SEEN).fetchone() == (2,))


ROLES = """
SELECT DISTINCT split_part(application_name, '@', 1) FROM pg_stat_activity
WHERE datname = current_database() AND application_name ~ '^qwf:(orchestrator|scheduler)'
"""
LOOKED = """
SELECT true FROM pg_stat_activity WHERE datname = current_database()
    AND application_name ~ '^qwf:waiter' AND state = 'idle' AND query ~ 'ingest_jobs'
"""
_LEASES = """(
    SELECT lease_expires_at AS until FROM ingest_jobs WHERE status = 'running'
    UNION ALL SELECT lease_expires_at FROM workflow_node_jobs WHERE status = 'running'
) AS lease"""
LATEST = f"SELECT max(until) FROM {_LEASES}"
# All that are later than any was at the end of the first outage.
RENEWED = f"SELECT count(*) FROM {_LEASES} WHERE until > %s"
SEEN = ROLES.replace("SELECT DISTINCT", "SELECT count(DISTINCT").replace("1) FROM", "1)) FROM")
