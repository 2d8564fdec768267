"""The kernel's timer ends a worker with no warning; the worker's last line is written ahead and has one.

It says what will happen, when, why and to which jobs, once for an outage, and so do those who see the end.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess

import pytest
from support.processes.programs import UNSHARE, pid_namespace
from support.processes.supervised import supervisor_of
from support.processes.workers import running_worker, until
from support.servers.outages import CUTS, restore
from support.servers.statement_proxy import StatementProxy
from support.stages.floor import Floor

from queue_workflows.host.processes.pid1 import TIMER_IN_WORDS
from queue_workflows.repositories import HeartbeatRepository

WORDS = "this process is killed by its own timer at "
TOLD = re.compile(
    r"leases could not be renewed for \d+\.\d s: this process is killed by its own timer at 20\S+,"
    r" in \d+\.\d s, unless the database answers; (.*)"
)
KILLED = -signal.SIGKILL
# Long enough that no worker is ended by it before the outage, while another one starts.
LEASE = {"QWF_LEASE_S": "5", "QWF_RENEW_S": "0.5"}


def last_line(worker: subprocess.Popen[str]) -> str:
    """What a worker that was killed has said last."""
    assert worker.wait(150) == KILLED
    assert worker.stderr is not None
    lines = [line for line in worker.stderr.read().splitlines() if "the guardian has no database" not in line]
    assert sum(WORDS in line for line in lines) == 1, lines
    return lines[-1]


@pytest.mark.timed
@pytest.mark.parametrize("cut", ["stopped", pytest.param("swallowed", marks=pytest.mark.slow)])
def test_its_last_line_says_what_happens_and_to_which_jobs(
    floor: Floor, proxy: StatementProxy, cut: str
) -> None:
    """One worker of one job and one of two, in one outage; both are dead, and each said so once."""
    first = floor.enqueue(gated=True)
    with floor.worker("--max-jobs", "1", dsn=proxy.dsn, **LEASE) as single:
        floor.until_begun(first, 1)
        jobs = [floor.enqueue(gated=True) for _ in range(2)]
        with floor.worker("--concurrency", "2", dsn=proxy.dsn, **LEASE) as several:
            for job in jobs:
                floor.until_begun(job, 1)
            CUTS[cut](proxy)
            said = TOLD.search(last_line(single))
            assert said
            assert said[1] == f"ingest job {first} run again when their leases are over"
            said = TOLD.search(last_line(several))
            assert said
            assert sorted(map(int, re.findall(r"ingest job (\d+)", said[1]))) == jobs


@pytest.mark.timed
@pytest.mark.slow
def test_a_claim_without_an_answer_is_told_too(floor: Floor, proxy: StatementProxy) -> None:
    """Nobody knows what it has claimed."""
    with floor.worker(dsn=proxy.dsn, QWF_POLL_S="0.1", **LEASE) as victim:
        until(lambda: HeartbeatRepository(floor.connection).list(state="idle"))
        proxy.swallow()
        said = last_line(victim)
    assert re.search(rf"a claim had no answer for \d+\.\d s: {WORDS}.*what it may have claimed runs", said)


@pytest.mark.slow
@pytest.mark.timed
def test_an_outage_that_ends_in_time_is_not_told(floor: Floor, proxy: StatementProxy) -> None:
    """Nor does it cost anything: nothing is said of a timer that is moved before its last quarter."""
    job = floor.enqueue(gated=True)
    with floor.worker(dsn=proxy.dsn, QWF_LEASE_S="60", QWF_RENEW_S="1") as worker:
        floor.until_begun(job, 1)
        CUTS["stopped"](proxy)
        assert worker.stderr is not None
        until(lambda: "has no database" in worker.stderr.readline())
        restore(proxy)
        until(lambda: "the database answers again" in worker.stderr.readline())
        floor.ledger.open_gate(job, 1)
        floor.until_completed(job)
        worker.terminate()
        assert worker.wait(150) == 0
        assert WORDS not in worker.stderr.read()


@pytest.mark.timed
@pytest.mark.slow
def test_its_supervisor_names_the_cause(floor: Floor, proxy: StatementProxy) -> None:
    """Rather than a signal that anybody may have sent; another kill is told as ever."""
    job = floor.enqueue(gated=True)
    with supervisor_of(proxy.dsn, "--worker", "fetch", "--no-spare", env=LEASE) as supervisor:
        pid = floor.until_begun(job, 1)
        CUTS["stopped"](proxy)
        supervisor.until(f"pid {pid} killed {TIMER_IN_WORDS} after")
        restore(proxy)
        pid = floor.until_begun(job, 2)
        os.kill(pid, signal.SIGKILL)
        supervisor.until(f"pid {pid} killed by SIGKILL after")


@pytest.mark.timed
@pytest.mark.slow
@pid_namespace
def test_pid_1_names_the_cause(floor: Floor, proxy: StatementProxy) -> None:
    """The launcher of a container's worker passes the status on, and says what it means."""
    job = floor.enqueue(gated=True)
    with running_worker(proxy.dsn, "--concurrency", "1", prefix=UNSHARE, **LEASE) as worker:
        floor.until_begun(job, 1)
        proxy.swallow()
        assert worker.wait(150) == 128 + signal.SIGKILL
        assert worker.stderr is not None
        assert f"was killed {TIMER_IN_WORDS}" in worker.stderr.read().splitlines()[-1]
