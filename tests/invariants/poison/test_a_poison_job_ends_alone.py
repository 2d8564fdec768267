"""A job that kills its workers ends as failed and says so; who stood beside it is not blamed."""

from __future__ import annotations

import sys

import pytest
from support.processes.supervised import Supervised
from support.rows.jobs import ending, jobs_of
from support.stages.floor import Floor

COUNTS = ("status", "attempt", "crash_count", "failures", "suspect")
MAX_CRASHES = 2
VERDICT = "it killed its worker 2 times, each time running alone"


@pytest.mark.slow
def test_among_neighbours(floor: Floor) -> None:
    """Two supervised workers: the poison costs two of their lives, its neighbours run once each."""
    poison = floor.repository.enqueue("suicide", queue="fetch", priority=9).id
    neighbours = [floor.enqueue() for _ in range(6)]
    command = [sys.executable, "-m", "queue_workflows", "--app", "support.tasks.worker_tasks", "supervisor"]
    env = {"QWF_MAX_CRASHES": str(MAX_CRASHES)}
    with Supervised([*command, "--worker", "fetch:2 --concurrency 1"], floor.dsn, env=env) as supervisor:
        floor.until_completed(*neighbours)
        floor.until_in("failed", poison)
        assert supervisor.stop() == 0
    assert floor.jobs.seen(poison, *COUNTS) == ("failed", MAX_CRASHES, MAX_CRASHES, 0, True)
    assert floor.jobs.row(poison)["errors"][-1]["message"] == f"{VERDICT}: killed by SIGKILL"
    for neighbour in neighbours:
        assert floor.jobs.seen(neighbour, *COUNTS) == ("completed", 1, 0, 0, False)
        assert floor.ledger.attempts(neighbour) == [1]


@pytest.mark.parametrize("family", ["node", "ingest"])
def test_in_a_worker_that_holds_several(family: str, qwf_dsn: str) -> None:
    """Whoever was beside it is claimed alone from then on and ends well; the poison is found out."""
    with jobs_of(family, qwf_dsn) as jobs:
        poison, *innocent = jobs.enqueue(3)
        workers = 0
        while claimed := jobs.claim(f"w{workers}", limit=3) or jobs.claim(f"w{workers}", alone=True):
            if poison in {job.id for job in claimed}:
                jobs.lapse(*(job.id for job in claimed))
                jobs.repository.reclaim(max_crashes=MAX_CRASHES, lease_s=30.0)
                workers += 1
            else:
                jobs.repository.end_many([ending(job) for job in claimed])
        assert workers == 1 + MAX_CRASHES
        assert jobs.seen(poison, *COUNTS) == ("failed", 1 + MAX_CRASHES, MAX_CRASHES, 0, True)
        assert jobs.row(poison)["errors"][-1]["message"] == VERDICT
        for job in innocent:
            assert jobs.seen(job, *COUNTS) == ("completed", 2, 0, 0, True)
