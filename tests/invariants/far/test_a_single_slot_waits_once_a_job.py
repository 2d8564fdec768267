"""A worker of one waits for its server once a job: the end of one and the next claim are one question."""

from __future__ import annotations

import psycopg
import pytest
from support.fleet.far_server import Distance
from support.processes.workers import running_worker
from support.rows.jobs import CLEAR_WITH_WORKERS, Jobs

from queue_workflows.repositories import NewIngestJob

JOBS = 200
APP = {"QWF_APP": "support.tasks.concurrent_tasks"}


# What it asks beside its jobs it asks by the clock.
@pytest.mark.timed
@pytest.mark.parametrize("family", ["ingest", "node"])
def test_it_does_so_on_the_wire(qwf_dsn: str, family: str) -> None:
    """Counted between worker and server; its start and its other questions are the tenth allowed."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        jobs, options = Jobs(family, connection), ["--queue", "cpu"]
        if family == "node":
            jobs.enqueue(JOBS, node_module="echo")
        else:
            options = ["--concurrency", "1"]
            jobs.repository.enqueue_many(NewIngestJob(task_name="noop", queue="fetch") for _ in range(JOBS))
        with (
            Distance(qwf_dsn) as link,
            running_worker(link.dsn, *options, "--max-jobs", str(JOBS), **APP) as worker,
        ):
            assert worker.wait(150) == 0
            assert JOBS <= link.most_round_trips <= 1.1 * JOBS
        assert {row["status"] for row in jobs.rows()} == {"completed"}
