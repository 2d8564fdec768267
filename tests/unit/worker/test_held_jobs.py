"""What a worker has in its hands."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from queue_workflows.engine.execution.guards import Budget, HeldJob
from queue_workflows.host.processes.lease_timer import DeadMan
from queue_workflows.roles.worker.guardian.held_jobs import HeldJobs


def attempt(number: int) -> HeldJob:
    """An attempt of one job, by a lease that began at its number."""
    job: Any = SimpleNamespace(id=7, attempt=number)
    return HeldJob(job, SimpleNamespace(), Budget(10.0, 3.0), 0.0, 30.0 + number)  # type: ignore[arg-type]


def test_a_job_that_is_claimed_again_as_it_is_given_back_stays_guarded() -> None:
    """The end of one attempt takes away that attempt, not the next one."""
    holdings = HeldJobs(DeadMan(enabled=False), 30.0)
    first, second = attempt(1), attempt(2)
    holdings.take(first)
    holdings.exchange([second], [first])
    assert holdings.all() == [second]
    holdings.drop(first)
    assert holdings.all() == [second]
    holdings.drop(second)
    assert holdings.count() == 0
