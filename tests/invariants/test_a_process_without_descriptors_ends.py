"""A job that leaves its process no descriptors costs itself a crash: no worker lives on of no use."""

from __future__ import annotations

import pytest
from support.floor import Floor
from support.quick_supervisor import real_workers
from support.workers import patiently

APP = {"QWF_APP": "support.spoiling_tasks", "QWF_MAX_CRASHES": "1"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_uses_up_descriptors_is_counted(floor: Floor) -> None:
    """The process says why it ends, the job is charged with it, and the others run in the next one."""
    spoils = floor.repository.enqueue("uses up descriptors", queue="fetch", max_attempts=1).id
    good = [floor.repository.enqueue("async good", queue="fetch").id for _ in range(3)]
    with real_workers(floor.dsn, "fetch --concurrency 1", env=APP) as supervisor:
        patiently(lambda: floor.are_in("completed", *good))
        patiently(lambda: floor.are_in("failed", spoils) or floor.are_in("completed", spoils))
        # Which a worker that has no descriptor left would not do.
        good += [floor.repository.enqueue("async good", queue="fetch").id for _ in range(3)]
        patiently(lambda: floor.are_in("completed", *good))
        assert supervisor.stop() == 0
    assert {floor.jobs.seen(job_id, "crash_count", "failures") for job_id in good} == {(0, 0)}
    said = "\n".join(supervisor.said)
    assert "Traceback" not in said
    assert "has no database" not in said
    assert "descriptor" in said
    # Its own crash, and nobody else's: it is seen as soon as the job has ended.
    assert floor.jobs.seen(spoils, "status", "crash_count", "failures") == ("failed", 1, 0)
