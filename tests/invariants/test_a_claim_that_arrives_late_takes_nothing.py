"""A claim that reaches the server when its worker has given up on it: nobody would run what it takes."""

from __future__ import annotations

import pytest
from support.floor import CLAIMS, Floor
from support.statement_proxy import Moment, StatementProxy
from support.workers import until

from queue_workflows.repositories import HeartbeatRepository, WorkerControlRepository


@pytest.mark.parametrize("moment", [Moment.UNSENT, Moment.UNCOMMITTED], ids=lambda moment: moment.value)
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
