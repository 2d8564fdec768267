"""A job that says `survives_outage` is not killed for a lease that cannot be renewed, and is fenced as ever.

While the database is away it runs on and nobody hears of it. When it is back, the lease is renewed if it
still is its own; if another took the job meanwhile, nothing is written. What hangs, what holds a slot, and
what shares a process with a job that needs its lease, is killed as any other.
"""

from __future__ import annotations

import signal
import subprocess
from contextlib import ExitStack

import pytest
from support.processes.workers import running_worker, until
from support.rows.runs import dispatcher, settle, start
from support.servers.outages import CUTS, restore, until_over
from support.servers.statement_proxy import StatementProxy
from support.stages.floor import Floor

from queue_workflows.errors import ExitCode
from queue_workflows.repositories import LimitRepository

KILLED = -signal.SIGKILL
# No worker is ended by it before the outage, while another one starts.
LEASE_S = 4.0
LEASE = {"QWF_LEASE_S": f"{LEASE_S:g}", "QWF_RENEW_S": "0.5"}
pytestmark = pytest.mark.timed


@pytest.mark.parametrize("cut", ["stopped", pytest.param("swallowed", marks=pytest.mark.slow)])
def test_it_outlives_its_lease_and_ends_as_if_nothing_had_been(
    floor: Floor, proxy: StatementProxy, cut: str
) -> None:
    """One that runs through the outage and one that ends within it, in one worker."""
    long, short = (floor.enqueue(task="enduring", gated=True) for _ in range(2))
    with floor.worker("--concurrency", "3", dsn=proxy.dsn, **LEASE) as worker:
        for job in (long, short):
            floor.until_begun(job, 1)
        CUTS[cut](proxy)
        floor.ledger.open_gate(short, 1)
        until_over(floor.connection, long, for_s=2 * LEASE_S)
        assert worker.poll() is None
        restore(proxy)
        floor.until_completed(short)
        floor.ledger.open_gate(long, 1)
        floor.until_completed(long)
        for job in (long, short):
            assert floor.standing(job) == ("completed", 1, 0, 0)
            assert floor.jobs.row(job)["result"] == {"attempt": 1, "pid": worker.pid}
        following = floor.enqueue()
        floor.until_completed(following)
        assert floor.jobs.row(following)["result"]["pid"] == worker.pid


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["before", "after"])
def test_what_another_took_meanwhile_is_not_written(floor: Floor, proxy: StatementProxy, ends: str) -> None:
    """Whether the first attempt ends before the database is back or is at it still."""
    job = floor.enqueue(task="enduring", gated=True)
    with floor.worker(dsn=proxy.dsn, **LEASE) as first:
        floor.until_begun(job, 1)
        CUTS["swallowed"](proxy)
        with floor.worker() as second:
            assert floor.until_begun(job, 2) == second.pid
            if ends == "before":
                floor.ledger.open_gate(job, 1)
            assert first.poll() is None
            floor.ledger.open_gate(job, 2)
            floor.until_completed(job)
            second.terminate()
            second.wait(150)
            before = floor.row(job)
            restore(proxy)
            if ends == "before":
                following = floor.enqueue()
                floor.until_completed(following)
                assert floor.jobs.row(following)["result"]["pid"] == first.pid
            else:
                assert first.wait(150) == ExitCode.LEASE_LOST
            assert floor.row(job) == before
    assert before["result"] == {"attempt": 2, "pid": second.pid}
    assert floor.ledger.attempts(job) == [1, 2]


@pytest.mark.slow
def test_a_node_says_so_in_its_document(floor: Floor, proxy: StatementProxy) -> None:
    """Of one run, the node that says so goes on, and the one that does not is killed."""
    node = {"module": "enduring", "inputs": {"ledger": str(floor.ledger.directory)}}
    nodes = [{"id": "a", **node, "survives_outage": True}, {"id": "b", **node}]
    start(floor.connection, {"nodes": nodes})
    dispatched = dispatcher(floor.connection)
    settle(dispatched)
    with running_worker(proxy.dsn, "--queue", "cpu", **LEASE) as lasting:
        until(floor.ledger.begun)
        with running_worker(proxy.dsn, "--queue", "cpu", **LEASE) as other:
            (job, _, pid), (_, _, other_pid) = until(
                lambda: len(floor.ledger.begun()) > 1 and floor.ledger.begun()
            )
            assert (pid, other_pid) == (lasting.pid, other.pid)
            CUTS["stopped"](proxy)
            assert other.wait(150) == KILLED
            until_over(floor.connection, job, for_s=LEASE_S, table="workflow_node_jobs")
            assert lasting.poll() is None
        restore(proxy)
        floor.ledger.open_gate(job, 1)
        seen = "SELECT status, attempt, context_delta FROM workflow_node_jobs WHERE node_id = 'a'"
        until(lambda: floor.connection.execute(seen).fetchone() == ("completed", 1, {"attempt": 1}))


@pytest.mark.slow
def test_what_hangs_holds_a_slot_or_has_company_is_killed(floor: Floor, proxy: StatementProxy) -> None:
    """Workers in one outage, each ended by the kernel; one whose time is up by its guard or by the kernel."""
    LimitRepository(floor.connection).set("disk", 5, actor="test")
    with ExitStack() as stack:

        def worker(*options: str) -> subprocess.Popen[str]:
            return stack.enter_context(floor.worker(*options, dsn=proxy.dsn, **LEASE))

        hog = floor.enqueue(task="enduring_hog", gated=True)
        hung = worker()
        floor.until_begun(hog, 1)
        slotted = floor.enqueue(task="enduring", gated=True, limit_key="disk")
        holder = worker()
        floor.until_begun(slotted, 1)
        company = [floor.enqueue(task=task, gated=True) for task in ("enduring", "recorded")]
        together = worker("--concurrency", "2")
        for job in company:
            floor.until_begun(job, 1)
        # The last of them, so that its time is not up before the others are dead.
        late = floor.enqueue(task="enduring", gated=True, timeout_s=30)
        overrun = worker()
        floor.until_begun(late, 1)
        CUTS["stopped"](proxy)
        assert [each.wait(150) for each in (holder, together)] == [KILLED, KILLED]
        until_over(floor.connection, hog, for_s=LEASE_S)
        assert (hung.poll(), overrun.poll()) == (None, None)
        floor.ledger.open_gate(hog, 1)
        assert hung.wait(150) == KILLED
        assert overrun.wait(150) in (ExitCode.WALL_CLOCK, KILLED)
