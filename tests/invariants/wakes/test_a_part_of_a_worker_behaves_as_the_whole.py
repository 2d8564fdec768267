"""A process of one job that stands in for a worker of several treats its job as that worker would."""

from __future__ import annotations

from pathlib import Path

from support.processes.workers import patiently, running_worker
from support.stages.floor import Floor

from queue_workflows.roles.identity import PART


def test_a_job_that_overruns_is_asked_first(floor: Floor, tmp_path: Path) -> None:
    """It ends by itself when it is cancelled, so its process goes on with all that it has imported."""
    begun = tmp_path / "begun"
    overruns = floor.repository.enqueue(
        "async patient", queue="fetch", args={"begun": str(begun)}, timeout_s=0.5, max_attempts=1
    ).id
    after = floor.repository.enqueue("noop", queue="fetch").id
    told = {"QWF_APP": "support.tasks.concurrent_tasks", PART: "1"}
    with running_worker(floor.dsn, "--concurrency", "8", "--drain", **told) as worker:
        patiently(lambda: worker.poll() is not None)
        assert worker.returncode == 0
    assert floor.standing(overruns) == ("failed", 1, 0, 1)
    assert floor.standing(after) == ("completed", 1, 0, 0)
