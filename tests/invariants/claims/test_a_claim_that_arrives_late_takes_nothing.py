"""A claim that reaches the server when its worker has given up on it: nobody would run what it takes."""

from __future__ import annotations

import time

import psycopg
import pytest
from support.processes.workers import until
from support.servers.statement_proxy import Moment, StatementProxy
from support.stages.floor import CLAIMS, Floor

from queue_workflows.repositories import HeartbeatRepository, WorkerControlRepository
from queue_workflows.roles.supervisor.database_thread import DatabaseThread, DeadWorker

MOMENTS = pytest.mark.parametrize(
    "moment", [Moment.UNSENT, Moment.UNCOMMITTED], ids=lambda moment: moment.value
)


@MOMENTS
def test_it_takes_nothing(floor: Floor, proxy: StatementProxy, moment: Moment) -> None:
    """The worker has the session ended that it lost, before it works on; so the job is nobody's crash."""
    control = WorkerControlRepository(floor.connection)
    job = floor.enqueue() if moment is Moment.UNCOMMITTED else None
    trap = proxy.trap(*CLAIMS, moment=moment)
    with floor.worker(dsn=proxy.dsn) as worker:
        trap.sprung()
        control.set("*", "fetch", "pause", actor="test")
        trap.cut_off()
        # It pauses only when it has recovered.
        until(lambda: HeartbeatRepository(floor.connection).list(state="paused"))
        job = job or floor.enqueue()
        trap.deliver()
        control.clear("*", "fetch", actor="test")
        floor.until_completed(job)
        assert floor.jobs.row(job)["result"]["pid"] == worker.pid
    assert floor.standing(job) == ("completed", 1, 0, 0)


@pytest.mark.slow
@MOMENTS
def test_nor_when_its_worker_is_dead(floor: Floor, proxy: StatementProxy, moment: Moment) -> None:
    """Its supervisor ends the session before it takes back what the worker held; nobody's crash either."""
    job = floor.enqueue() if moment is Moment.UNCOMMITTED else None
    trap = proxy.trap(*CLAIMS, moment=moment)
    with floor.worker(dsn=proxy.dsn, _QWF_INCARNATION="dead") as worker:
        trap.sprung()
        worker.kill()
        worker.wait()
    bury(floor.dsn, "here:fetch:dead")
    job = job or floor.enqueue()
    trap.deliver()
    with floor.worker():
        floor.until_completed(job)
    assert floor.standing(job) == ("completed", 1, 0, 0)


def bury(dsn: str, worker_id: str) -> None:
    """What a supervisor does for a worker that was killed."""
    database_thread = DatabaseThread(
        lambda: psycopg.connect(dsn, autocommit=True), host_label="here", max_crashes=3, tell=lambda: None
    )
    database_thread.start()
    database_thread.bury(DeadWorker(worker_id, time.monotonic(), 30.0, crashed=True))
    database_thread.close(within_s=150)
    assert not database_thread.is_alive()
