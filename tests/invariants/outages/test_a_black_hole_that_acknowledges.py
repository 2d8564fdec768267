"""A network that takes every byte, acknowledges it and passes none on: the worst way to be cut off.

No call fails and no time-out of TCP fires. The kernel's timer ends a worker that holds a job or has asked for
one; without the timer the worker waits, harmless, and is refused when it gets through again.
"""

from __future__ import annotations

import signal

import pytest
from support.processes.workers import running_orchestrator, until
from support.rows.runs import start
from support.servers.statement_proxy import Moment, StatementProxy
from support.stages.floor import ENDS, WATCHES, Floor

from queue_workflows.repositories import HeartbeatRepository, NodeJobRepository, WorkerControlRepository
from queue_workflows.repositories.runs import outbox


@pytest.mark.timed
def test_in_mid_job_it_is_dead_before_its_successor_begins(floor: Floor, proxy: StatementProxy) -> None:
    """It cannot renew, so the kernel ends it; the job runs once more, elsewhere, and is written once."""
    job = floor.enqueue(gated=True)
    floor.ledger.open_gate(job, 2)
    with floor.worker(dsn=proxy.dsn, QWF_LEASE_S="3") as victim:
        floor.until_begun(job, 1)
        proxy.swallow()
        with floor.worker() as worker:
            assert floor.until_begun(job, 2) == worker.pid
            assert victim.poll() == -signal.SIGKILL
            floor.until_completed(job)
    assert floor.standing(job) == ("completed", 2, 1, 0)
    assert floor.ledger.attempts(job) == [1, 2]


@pytest.mark.timed
@pytest.mark.slow
def test_waiting_for_work_it_does_not_wait_for_ever(floor: Floor, proxy: StatementProxy) -> None:
    """A claim that gets no answer ends the worker too, so that whoever watches it starts another."""
    with floor.worker(dsn=proxy.dsn, QWF_LEASE_S="5", QWF_POLL_S="0.1") as victim:
        until(lambda: HeartbeatRepository(floor.connection).list(state="idle"))
        proxy.swallow()
        job = floor.enqueue()
        assert victim.wait(150) == -signal.SIGKILL
    with floor.worker():
        floor.until_completed(job)
    assert floor.standing(job) == ("completed", 1, 0, 0)


@pytest.mark.slow
def test_an_end_that_was_swallowed_is_refused_later(floor: Floor, proxy: StatementProxy) -> None:
    """Without the timer: it says its end again when it gets through, is refused, and works on."""
    job = floor.enqueue(gated=True)
    floor.ledger.open_gate(job, 2)
    # No renewal is on its way when the hole opens, so that only the test ends the lease.
    with floor.worker(dsn=proxy.dsn, QWF_LEASE_S="300", QWF_RENEW_S="150", QWF_DEADMAN="off") as cut_off:
        floor.until_begun(job, 1)
        proxy.swallow()
        floor.ledger.open_gate(job, 1)
        until(lambda: proxy.passed(*ENDS))
        floor.jobs.lapse(job)
        with floor.worker() as worker:
            floor.until_completed(job)
            assert floor.jobs.row(job)["result"] == {"attempt": 2, "pid": worker.pid}
        before = floor.row(job)
        proxy.recover()
        following = floor.enqueue()
        floor.until_completed(following)
        assert floor.jobs.row(following)["result"] == {"attempt": 1, "pid": cut_off.pid}
        assert floor.row(job) == before
    assert floor.standing(job) == ("completed", 2, 1, 0)
    assert floor.ledger.attempts(job) == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize(("wish", "state"), [("pause", "paused"), ("off", "parked")])
def test_a_worker_that_is_parked_hears_the_operator_again(
    floor: Floor, proxy: StatementProxy, wish: str, state: str
) -> None:
    """No timer runs for it, so its question would be without an answer for ever: it lets go and asks anew."""
    control = WorkerControlRepository(floor.connection)
    with floor.worker(dsn=proxy.dsn, QWF_STALE_HEARTBEAT_S="5") as worker:
        control.set("*", "fetch", wish, actor="test")
        until(lambda: HeartbeatRepository(floor.connection).list(state=state))
        proxy.trap(*WATCHES, moment=Moment.UNSENT).sprung()
        control.clear("*", "fetch", actor="test")
        job = floor.enqueue()
        floor.until_completed(job)
        assert floor.jobs.row(job)["result"] == {"attempt": 1, "pid": worker.pid}


@pytest.mark.slow
def test_an_orchestrator_that_gets_no_answer_connects_anew(floor: Floor, proxy: StatementProxy) -> None:
    """In the middle of a batch: what it had begun is taken back with its session, and begun again."""
    stuck = proxy.trap(outbox.LOCK, moment=Moment.UNREAD)
    settings = {"QWF_STALE_HEARTBEAT_S": "1", "QWF_IDLE_IN_TRANSACTION_SESSION_TIMEOUT_S": "2"}
    with running_orchestrator(proxy.dsn, **settings) as orchestrator:
        run = start(floor.connection, {"nodes": [{"id": "a", "module": "m"}]})
        stuck.sprung()
        until(lambda: NodeJobRepository(floor.connection).list(run_id=run))
        assert orchestrator.poll() is None
