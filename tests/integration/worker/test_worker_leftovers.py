"""What its jobs leave running keeps no worker from its end."""

from __future__ import annotations

import signal

import pytest
from support.processes.workers import running_worker, until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cold_starts")]

LEAVES = ["leaves a thread", "leaves a thread of its loop"]


# In a worker of many a job's threads are daemons like its own, so there is nothing to wait for.
@pytest.mark.parametrize("task", LEAVES)
def test_a_worker_that_is_through_ends(qwf_dsn, jobs, task):
    """With the status that it has anyway, though a thread of its job's never ends."""
    job = jobs.enqueue(task, queue="fetch").id
    with running_worker(qwf_dsn, "--once", "--concurrency", "1") as worker:
        assert worker.wait(150) == 0
        assert "left behind" in worker.stderr.read()
    assert jobs.fetch(job).status == "completed"


@pytest.mark.parametrize("task", LEAVES)
def test_a_worker_that_is_told_to_stop_ends(qwf_dsn, jobs, task):
    """After one signal: a service manager need not wait for its own patience."""
    job = jobs.enqueue(task, queue="fetch").id
    with running_worker(qwf_dsn) as worker:
        until(lambda: jobs.fetch(job).status == "completed")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(150) == 0
