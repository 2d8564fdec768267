"""A worker that was stopped, stuck or slow past its lease never writes over its successor.

With the kernel's timer it is dead before its lease lapses. Without it the fence alone holds: whatever the
worker tries when it wakes up, the row stays as its successor has it.
"""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from typing import Any

import pytest
from support.processes.workers import until
from support.servers.statement_proxy import Moment, StatementProxy
from support.stages.floor import CLAIMS, ENDS, Floor

OVER = ("completed", 2, 1, 0)
WITHOUT_TIMER = {"QWF_LEASE_S": "2", "QWF_RENEW_S": "0.3", "QWF_DEADMAN": "off"}


@pytest.mark.timed
@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGSTOP", "GIL"])
def test_the_kernel_ends_it_before_its_lease(floor: Floor, how: str) -> None:
    """When the successor's body begins, the stopped or stuck process is dead."""
    job = floor.enqueue(gated=True, stuck=how == "GIL")
    floor.ledger.open_gate(job, 2)
    with floor.ledger.stuck(), floor.worker(QWF_LEASE_S="3") as victim:
        floor.until_begun(job, 1)
        if how == "SIGSTOP":
            os.kill(victim.pid, signal.SIGSTOP)
        with floor.worker():
            floor.until_begun(job, 2)
            assert victim.poll() == -signal.SIGKILL
            floor.until_completed(job)
    assert floor.standing(job) == OVER
    assert floor.ledger.attempts(job) == [1, 2]


@pytest.mark.parametrize(
    ("how", "successor"),
    [
        ("SIGSTOP", "runs"),
        pytest.param("GIL", "is done", marks=pytest.mark.slow),
        pytest.param("SIGSTOP", "is done", marks=pytest.mark.slow),
        pytest.param("GIL", "runs", marks=pytest.mark.slow),
    ],
)
def test_without_the_timer_the_fence_holds(
    floor: Floor, proxy: StatementProxy, how: str, successor: str
) -> None:
    """Two leases late it wakes up with a result: whether its successor runs or is done, nothing changes."""
    job = floor.enqueue(gated=True, stuck=how == "GIL")
    with ExitStack() as stack:
        still_stuck = stack.enter_context(ExitStack())
        still_stuck.enter_context(floor.ledger.stuck())
        victim = stack.enter_context(floor.worker(dsn=proxy.dsn, **WITHOUT_TIMER))
        floor.until_begun(job, 1)
        began = floor.connection.execute("SELECT clock_timestamp()").fetchone()
        if how == "SIGSTOP":
            os.kill(victim.pid, signal.SIGSTOP)
            floor.ledger.open_gate(job, 1)
        worker = stack.enter_context(floor.worker())
        assert floor.until_begun(job, 2) == worker.pid
        if successor == "is done":
            floor.ledger.open_gate(job, 2)
            floor.until_completed(job)
        two_leases_late = "SELECT clock_timestamp() > %s::timestamptz + interval '6 s'"
        until(lambda: floor.connection.execute(two_leases_late, began).fetchone() == (True,))
        before = floor.row(job)
        trap = proxy.trap(*ENDS, moment=Moment.UNREAD)
        claims = proxy.passed(*CLAIMS)
        still_stuck.close()
        os.kill(victim.pid, signal.SIGCONT)
        # It tries to end the job, or has learnt of its loss first: then it gives up or claims the next.
        until(lambda: trap.has_sprung or victim.poll() is not None or proxy.passed(*CLAIMS) > claims)
        assert floor.row(job) == before
        floor.ledger.open_gate(job, 2)
        floor.until_completed(job)
        assert floor.jobs.row(job)["result"] == {"attempt": 2, "pid": worker.pid}
    assert floor.standing(job) == OVER
    assert floor.ledger.attempts(job) == [1, 2]


def without_blame(row: dict[str, Any]) -> dict[str, Any]:
    """A row but for what a lapse has blamed it for: a worker that turns out to be alive takes that back."""
    return {name: value for name, value in row.items() if name not in ("crash_count", "suspect", "errors")}


@pytest.mark.parametrize("successor", ["is done", pytest.param("runs", marks=pytest.mark.slow)])
def test_an_end_that_arrives_late(floor: Floor, proxy: StatementProxy, successor: str) -> None:
    """Held up on its way until the job is another's, it changes nothing, and its sender works on."""
    job = floor.enqueue(gated=True)
    floor.ledger.open_gate(job, 1)
    trap = proxy.trap(*ENDS, moment=Moment.UNSENT)
    # A lease that it does not renew meanwhile, so that only the test ends it.
    with floor.worker(dsn=proxy.dsn, QWF_LEASE_S="300", QWF_RENEW_S="150") as late:
        trap.sprung()
        floor.jobs.lapse(job)
        with floor.worker() as worker:
            assert floor.until_begun(job, 2) == worker.pid
            if successor == "is done":
                floor.ledger.open_gate(job, 2)
                floor.until_completed(job)
            before = without_blame(floor.row(job))
            claims = proxy.passed(*CLAIMS)
            trap.deliver()
            # What the worker does next, once it has the answer.
            until(lambda: proxy.passed(*CLAIMS) > claims)
            assert without_blame(floor.row(job)) == before
            floor.ledger.open_gate(job, 2)
            floor.until_completed(job)
            assert floor.jobs.row(job)["result"] == {"attempt": 2, "pid": worker.pid}
        following = floor.enqueue()
        floor.until_completed(following)
        assert floor.jobs.row(following)["result"]["pid"] == late.pid
    status, attempt, _, failures = floor.standing(job)
    assert (status, attempt, failures) == ("completed", 2, 0)
