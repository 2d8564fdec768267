"""Who a worker is: nobody else, whatever its host and process are called."""

from __future__ import annotations

import pytest

from queue_workflows.roles.identity import Identity


def test_two_workers_of_one_host_queue_and_pid_are_two():
    """A restarted container has the same name and the same pid, and is to inherit nothing."""
    one, other = (Identity.take("web1", "fetch", {}) for _ in range(2))
    assert (one.host_label, one.queue, one.pid) == (other.host_label, other.queue, other.pid)
    assert one.worker_id != other.worker_id


def test_one_that_executes_itself_anew_stays_who_it_is():
    """And what it hands on is read once, so that what it starts is somebody else."""
    before, environ = Identity.take("web1", "fetch", {}), {}
    before.hand_on(7, environ)
    after = Identity.take("web1", "fetch", environ)
    assert (after.worker_id, after.jobs_done) == (before.worker_id, 7)
    assert environ == {}


@pytest.mark.parametrize("given", ["", "a b", "x:y", "é!"])
def test_a_name_that_is_none_is_not_taken(given):
    """What stands in the environment by accident names nobody."""
    taken = Identity.take("web1", "fetch", {"_QWF_INCARNATION": given, "_QWF_JOBS_DONE": "many"})
    assert (taken.incarnation != given, len(taken.incarnation), taken.jobs_done) == (True, 12, 0)
