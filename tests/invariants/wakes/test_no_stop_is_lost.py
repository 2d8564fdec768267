"""A worker that is told to stop while it begins ends: whoever told it so does not say it twice."""

from __future__ import annotations

import pytest
from support.processes.workers import running_worker
from support.stages.floor import Floor

from queue_workflows.repositories import IngestJobRepository


@pytest.mark.parametrize("concurrency", ["1", "8"])
def test_a_stop_that_is_caught_and_kept_ends_the_worker(floor: Floor, concurrency: str) -> None:
    """Others may catch the exception of the signal, and keep it, before the worker hears signals itself.

    A worker that takes it for one that is on its way yet begins to work, and goes on until it is told again.
    """
    jobs = IngestJobRepository(floor.connection)
    job = jobs.enqueue("note", queue="fetch")
    app = "support.tasks.stop_keeping_tasks"
    with running_worker(floor.dsn, "--drain", "--concurrency", concurrency, QWF_APP=app) as worker:
        assert worker.stderr is not None
        said = worker.stderr.read()
    assert (worker.returncode, said) == (143, "qwf: terminated\n")
    assert jobs.fetch(job.id).status == "queued"
