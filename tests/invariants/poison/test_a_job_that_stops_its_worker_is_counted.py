"""A stop costs no job anything if somebody wanted it; one that a job sends its own worker is its crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.processes.quick_supervisor import real_workers
from support.processes.workers import patiently, running_worker
from support.stages.floor import Floor

APP = {"QWF_APP": "support.tasks.ending_tasks", "QWF_GRACE_S": "0.5"}
COUNTS = ("status", "attempt", "crash_count", "failures", "suspect")
SAID = "it killed its worker 2 times, each time running alone: killed by SIGTERM"


def enqueue(floor: Floor, task: str, queue: str = "fetch", **args: Any) -> int:
    return floor.repository.enqueue(task, queue=queue, args=args).id


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_of_one_job_and_of_four(floor: Floor) -> None:
    """Itself or through a child: it outlasts the grace, is counted each time and fails; others are done."""
    bad = [
        enqueue(floor, "stops its worker", by_a_child=by_a_child, queue=queue)
        for queue in ("fetch", "load")
        for by_a_child in (False, True)
    ]
    good = [enqueue(floor, "good", queue=queue) for queue in ("fetch", "load") for _ in range(4)]
    env = {**APP, "QWF_MAX_CRASHES": "2"}
    with real_workers(floor.dsn, "fetch --concurrency 1", "load --concurrency 4", env=env) as supervisor:
        patiently(lambda: floor.are_in("completed", *good))
        patiently(lambda: floor.are_in("failed", *bad))
        assert supervisor.stop() == 0
    for job_id in bad:
        status, _, *counts = floor.jobs.seen(job_id, *COUNTS)
        assert (status, *counts) == ("failed", 2, 0, True)
        assert floor.jobs.row(job_id)["errors"][-1]["message"] == SAID
    assert {floor.jobs.seen(job_id, "crash_count", "failures") for job_id in good} == {(0, 0)}


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_stop_that_the_supervisor_asked_for(floor: Floor, tmp_path: Path, concurrency: int) -> None:
    """What sleeps through it is given back at its place, and nothing is counted or suspected."""
    begun = [tmp_path / f"{number}" for number in range(concurrency)]
    jobs = [enqueue(floor, "sleeps on", begun=str(path), until=str(tmp_path / "never")) for path in begun]
    with real_workers(floor.dsn, f"fetch --concurrency {concurrency}", env=APP) as supervisor:
        patiently(lambda: all(path.exists() for path in begun))
        assert supervisor.stop() == 0
    assert {floor.jobs.seen(job, *COUNTS) for job in jobs} == {("queued", 1, 0, 0, False)}
    assert {len(floor.jobs.row(job)["errors"]) for job in jobs} == {0}


@pytest.mark.parametrize("concurrency", [1, 4])
def test_what_nobody_foresaw_is_counted(floor: Floor, concurrency: int) -> None:
    """Whatever comes across an attempt outside of its function is a failure, and its worker goes on."""
    bad = enqueue(floor, "cannot be shown")
    good = [enqueue(floor, "good") for _ in range(4)]
    with running_worker(
        floor.dsn, "--concurrency", str(concurrency), "--drain", "--log-level=critical", **APP
    ) as worker:
        patiently(lambda: worker.poll() is not None)
        assert worker.returncode == 0
        assert worker.stderr is not None
        assert "Traceback" not in worker.stderr.read()
    assert floor.are_in("completed", *good)
    assert floor.jobs.seen(bad, "attempt", "crash_count", "failures") == (1, 0, 1)
    assert floor.jobs.row(bad)["errors"][0]["type"].endswith("_Unshowable")
