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


def test_an_attempt_stays_held_while_a_later_one_is_at_work_beside_it() -> None:
    """Its job was taken from it, so it has no lease to renew, but the guards have to see it to its end."""
    holdings = HeldJobs(DeadMan(enabled=False), 30.0)
    first, second = attempt(1), attempt(2)
    assert list(holdings.exchange([first], [])) == []
    assert list(holdings.exchange([second], [])) == [first]
    assert (holdings.all(), holdings.leased(), holdings.count()) == ([first, second], [second], 2)
    assert holdings.due(100.0, 1.0) == [second]
    assert holdings.holds(first.job)
    assert holdings.holds(second.job)
    told: list[HeldJob] = []
    holdings.tell_all(told.append)
    assert told == [first, second]
    holdings.exchange([], [first])
    assert (holdings.all(), holdings.count()) == ([second], 1)
    assert not holdings.holds(first.job)
