"""An orchestrator below the supervisor: a stand-in for it, started, killed and stopped beside workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest
from click import UsageError
from support.connections.kept import own_connection
from support.processes.programs import gone
from support.processes.supervised import over_stand_ins, supervisor_of
from support.processes.workers import until
from support.rows.jobs import CLEAR_WITH_WORKERS
from support.rows.runs import start

from queue_workflows import wait_for
from queue_workflows.cli.main import cli
from queue_workflows.repositories import ScheduleRepository

ORCHESTRATES = r"orchestrates (\d+)"
# No slow machine takes longer to stop.
PATIENT = {"QWF_GRACE_S": "100"}
ASKED = "orchestrator/1: asked to stop"
READY = r"ready (\S+) (\d+)"


@pytest.fixture
def connection(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """The test's own eyes, on empty tables."""
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        yield connection


@pytest.mark.slow
def test_it_stops_when_no_worker_is_left(qwf_dsn, connection):
    """What the workers finish last is still acted on; nothing is left of any of them."""
    with over_stand_ins(qwf_dsn, "orchestrator", "fetch:2", env=PATIENT) as supervisor:
        pid = int(supervisor.until(ORCHESTRATES)[1])
        workers = [int(supervisor.until(READY)[2]) for _ in range(2)]
        assert supervisor.stop() == 0
        said = [line for line in supervisor.said if line.startswith(("stopping", "orchestrator stopping"))]
        assert [line.split()[0] for line in said] == ["stopping", "stopping", "orchestrator"]
        assert all(gone(each) for each in (pid, *workers))


@pytest.mark.slow
def test_a_second_signal_does_not_wait_for_the_workers(qwf_dsn, connection):
    """Everybody is told at once, and killed two seconds later."""
    with over_stand_ins(qwf_dsn, "orchestrator", "fetch --act deaf", env=PATIENT) as supervisor:
        supervisor.until(ORCHESTRATES)
        supervisor.until(READY)
        supervisor.signal(signal.SIGTERM)
        supervisor.until("heard")
        assert not any(ASKED in line for line in supervisor.said)
        supervisor.signal(signal.SIGTERM)
        supervisor.until(ASKED)
        assert supervisor.status() == 143


@pytest.mark.slow
def test_a_worker_that_does_not_stop_keeps_it_from_nothing(qwf_dsn, connection):
    """It is asked in time to end by itself before all that is left is killed."""
    with over_stand_ins(qwf_dsn, "orchestrator", "fetch --act deaf", env={"QWF_GRACE_S": "0"}) as supervisor:
        supervisor.until(ORCHESTRATES)
        supervisor.until(READY)
        supervisor.signal(signal.SIGTERM)
        supervisor.until(ASKED)
        supervisor.until("fetch/1: killing pid .* did not stop in time")
        assert supervisor.status() == 0


def test_a_killed_one_is_replaced(qwf_dsn, connection):
    """At once, and the log says of what it died."""
    with over_stand_ins(qwf_dsn, "orchestrator") as supervisor:
        first = int(supervisor.until(ORCHESTRATES)[1])
        os.kill(first, signal.SIGKILL)
        supervisor.until("orchestrator/1: pid .* killed by SIGKILL .* again at once")
        second = int(supervisor.until(ORCHESTRATES)[1])
        assert second != first
        assert supervisor.stop() == 0
        assert gone(second)


@pytest.mark.slow
def test_one_that_hangs_is_replaced(qwf_dsn, connection):
    """It says nothing any more by its lifeline, and the next one goes on."""
    with over_stand_ins(qwf_dsn, "orchestrator", env={"QWF_STALE_HEARTBEAT_S": "3"}) as supervisor:
        first = int(supervisor.until(ORCHESTRATES)[1])
        with suppress(ProcessLookupError):
            os.kill(first, signal.SIGSTOP)
        supervisor.until(f"orchestrator/1: killing pid {first}: no sign of life for")
        assert int(supervisor.until(ORCHESTRATES)[1]) != first
        assert supervisor.stop() == 0


@pytest.mark.slow
def test_the_shipped_one_is_watched_and_replaced(qwf_dsn, connection):
    """It is heard of while it idles and works, and stopped in the middle it is not waited for."""
    chain = {"nodes": [{"id": "a", "module": "echo", "inputs": {"n": 1}}]}
    short = {"QWF_STALE_HEARTBEAT_S": "5"}
    command = ["--orchestrator", "--worker", "cpu", "--no-spare"]
    with supervisor_of(qwf_dsn, *command, env=short) as supervisor:
        first = int(supervisor.until(r"orchestrator/1: started, pid (\d+)")[1])
        wait_for(start(connection, chain), 100, db_url=qwf_dsn)
        with suppress(ProcessLookupError):
            os.kill(first, signal.SIGSTOP)
        run = start(connection, chain)
        supervisor.until(f"orchestrator/1: killing pid {first}: no sign of life for")
        wait_for(run, 100, db_url=qwf_dsn)


@pytest.mark.slow
def test_nobody_misses_its_heartbeat(qwf_dsn, connection):
    """A worker beside it that never beats is killed for it; the orchestrator goes on."""
    short = {"QWF_FIRST_HEARTBEAT_S": "8"}
    with over_stand_ins(qwf_dsn, "orchestrator", "fetch --act mute", env=short) as supervisor:
        pid = int(supervisor.until(ORCHESTRATES)[1])
        for _ in range(2):
            supervisor.until("fetch/1: killing pid .* no first heartbeat")
        assert not gone(pid)
        assert not any(f"orchestrator/1: killing pid {pid}" in line for line in supervisor.said)


def test_a_supervisor_that_is_killed_leaves_no_orchestrator(qwf_dsn, connection):
    """It dies with its parent, as workers do."""
    with over_stand_ins(qwf_dsn, "orchestrator") as supervisor:
        pid = int(supervisor.until(ORCHESTRATES)[1])
        os.kill(supervisor.pid, signal.SIGKILL)
        until(lambda: gone(pid))


@pytest.mark.slow
def test_the_shipped_one_advances_runs_and_is_replaced(qwf_dsn, connection):
    """Below a supervisor with a worker: killed between two runs, and nothing is left of it in the end."""
    chain = {
        "nodes": [
            {"id": "a", "module": "echo", "inputs": {"n": 1}},
            {"id": "b", "module": "echo", "inputs": {"n": {"$from": "a.n"}}},
        ]
    }
    with supervisor_of(qwf_dsn, "--orchestrator", "--worker", "cpu", "--no-spare") as supervisor:
        first = int(supervisor.until(r"orchestrator/1: started, pid (\d+)")[1])
        wait_for(start(connection, chain), 100, db_url=qwf_dsn)
        os.kill(first, signal.SIGKILL)
        second = int(supervisor.until(r"orchestrator/1: started, pid (\d+)")[1])
        wait_for(start(connection, chain), 100, db_url=qwf_dsn)
        os.kill(supervisor.pid, signal.SIGKILL)
        until(lambda: gone(second))


def test_a_supervisor_has_to_have_something_to_do():
    """Workers, an orchestrator, or both."""
    with pytest.raises(UsageError, match="nothing to run"):
        cli.main(["supervisor"], standalone_mode=False)


@pytest.mark.slow
def test_a_scheduler_is_replaced_as_well(qwf_dsn, connection):
    """Alone below a supervisor: killed, it comes back, and no tick is missing."""
    connection.execute("TRUNCATE schedules")
    ScheduleRepository(connection).upsert(
        "each", cron="* * * * * *", task_name="say", queue="fetch", catch_up="all", catch_up_cap=10_000
    )
    ticks = "SELECT count(*), extract(epoch FROM max(tick_at) - min(tick_at))::int FROM ingest_jobs"
    with supervisor_of(qwf_dsn, "--scheduler") as supervisor:
        first = int(supervisor.until(r"scheduler/1: started, pid (\d+)")[1])
        until(lambda: connection.execute(ticks).fetchone()[0] >= 2)
        os.kill(first, signal.SIGKILL)
        second = int(supervisor.until(r"scheduler/1: started, pid (\d+)")[1])
        before = connection.execute(ticks).fetchone()[0]
        until(lambda: connection.execute(ticks).fetchone()[0] >= before + 2)
        assert supervisor.stop() == 0
        assert all(gone(each) for each in (first, second))
    count, span_s = connection.execute(ticks).fetchone()
    assert count == span_s + 1
