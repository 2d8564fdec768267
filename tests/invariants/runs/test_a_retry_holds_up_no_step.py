"""The steps of a pipeline: the next one waits for the ends of first attempts, and a seal follows the last."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.connections.kept import own_connection
from support.rows.jobs import CLEAR
from support.rows.runs import dispatcher, settle, start

from queue_workflows.engine.runs.retry import retry_run
from queue_workflows.repositories import NodeJobRepository, RunRepository
from queue_workflows.repositories.claims.end import Ending, error_entry
from queue_workflows.repositories.sql.claimed_job import ClaimedNodeJob
from queue_workflows.states import JobStatus


def hook(name: str, step: int, *after: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "module": "m", "step": step, "depends_on": list(after), "when": "all_done", **more}


PIPELINE = {
    "on_failure": "continue",
    "nodes": [
        hook("a", 0),
        hook("b", 0),
        hook("listen", 0, background=True),
        hook("c", 1, "a", "b"),
        {"id": "seal", "type": "seal", "step": 10, "depends_on": ["c"], "when": "all_done"},
        hook("tidy", 20, "seal", "listen"),
    ],
}


class Pipeline:
    """A run of `PIPELINE`, a dispatcher, and hands that end jobs as they are told."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.jobs = NodeJobRepository(connection)
        self.dispatcher = dispatcher(connection)
        self.run_id = start(connection, PIPELINE)
        self.held: dict[str, ClaimedNodeJob] = {}
        settle(self.dispatcher)

    def claim(self) -> set[str]:
        """What is claimable now, by node."""
        claimed = self.jobs.claim("cpu", worker_id="w", lease_s=60, limit=100)
        self.held.update((job.node_id, job) for job in claimed)
        return {job.node_id for job in claimed}

    def complete(self, node_id: str) -> None:
        self.jobs.end(Ending(self.held.pop(node_id).fence, JobStatus.COMPLETED))
        settle(self.dispatcher)

    def fail_for_now(self, node_id: str) -> None:
        """As a hook does that is to be tried again."""
        error = error_entry("exit", "status 1")
        fence = self.held.pop(node_id).fence
        self.jobs.end(Ending(fence, JobStatus.SCHEDULED, error=error, counts=True, delay_s=0.0))
        settle(self.dispatcher)

    def sealed(self) -> bool:
        return self.run("seal_requested_at") is not None

    def run(self, column: str) -> Any:
        return getattr(RunRepository(self.connection).fetch(self.run_id), column)


@pytest.fixture
def pipeline(qwf_dsn: str) -> Iterator[Pipeline]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR)
        yield Pipeline(connection)


def test_the_next_step_opens_when_each_has_been_tried_once(pipeline: Pipeline) -> None:
    """A hook that is to be tried again holds up nobody, and the run is over with its last attempt."""
    assert pipeline.claim() == {"a", "b", "listen"}
    pipeline.fail_for_now("a")
    assert pipeline.claim() == set()
    pipeline.complete("b")
    assert pipeline.claim() == {"c"}
    pipeline.jobs.promote()
    assert pipeline.claim() == {"a"}
    pipeline.fail_for_now("a")
    assert not pipeline.sealed()
    pipeline.complete("c")
    assert pipeline.sealed()
    assert pipeline.claim() == set()
    pipeline.complete("listen")
    assert pipeline.claim() == {"tidy"}
    pipeline.complete("tidy")
    assert pipeline.run("status") == "running"
    pipeline.jobs.promote()
    assert pipeline.claim() == {"a"}
    pipeline.complete("a")
    assert pipeline.run("status") == "completed"


def test_a_first_attempt_is_told_with_the_row(pipeline: Pipeline) -> None:
    """One event, in the statement that puts the job off; a hold and a release are no attempts."""
    pipeline.claim()
    held = pipeline.held["a"]
    pipeline.jobs.end(Ending(held.fence, JobStatus.SCHEDULED, delay_s=0.0, hold_reason="limit_full"))
    pipeline.jobs.end(Ending(pipeline.held["b"].fence, JobStatus.QUEUED))
    events = "SELECT kind, attempt FROM workflow_dispatch_events"
    assert pipeline.connection.execute(events).fetchall() == []
    pipeline.jobs.promote()
    pipeline.claim()
    held = pipeline.held["a"]
    pipeline.jobs.end(
        Ending(held.fence, JobStatus.SCHEDULED, error='{"kind": "exit"}', counts=True, delay_s=0.0)
    )
    assert pipeline.connection.execute(events).fetchall() == [("attempted", 2)]


def test_a_job_that_is_in_no_step_tells_nobody(pipeline: Pipeline) -> None:
    """What is tried again elsewhere is no news for a dispatcher."""
    pipeline.connection.execute("UPDATE workflow_node_jobs SET step = NULL")
    pipeline.claim()
    fence = pipeline.held["a"].fence
    pipeline.jobs.end(Ending(fence, JobStatus.SCHEDULED, error='{"kind": "exit"}', counts=True, delay_s=0.0))
    assert pipeline.connection.execute("SELECT count(*) FROM workflow_dispatch_events").fetchone() == (0,)


def test_an_attempt_before_an_operators_retry_opens_nothing(pipeline: Pipeline) -> None:
    """The event of an older generation is dropped, as all of them are."""
    pipeline.claim()
    pipeline.complete("b")
    fence = pipeline.held["a"].fence
    pipeline.jobs.end(Ending(fence, JobStatus.SCHEDULED, error='{"kind": "exit"}', counts=True, delay_s=0.0))
    pipeline.connection.execute("UPDATE workflow_node_jobs SET generation = 2 WHERE node_id = 'a'")
    settle(pipeline.dispatcher)
    assert pipeline.claim() == set()


def test_a_run_that_is_gone_through_again_is_not_sealed(pipeline: Pipeline) -> None:
    """Else what ends at the seal would be ended as it begins."""
    for node_id in sorted(pipeline.claim()):
        pipeline.complete(node_id)
    pipeline.claim()
    pipeline.jobs.end(
        Ending(pipeline.held["c"].fence, JobStatus.FAILED, error='{"kind": "exit"}', counts=True)
    )
    settle(pipeline.dispatcher)
    assert pipeline.sealed()
    assert pipeline.claim() == {"tidy"}
    pipeline.complete("tidy")
    assert pipeline.run("status") == "failed"
    retry_run(pipeline.run_id, actor="ann", conn=pipeline.connection)
    assert not pipeline.sealed()
    settle(pipeline.dispatcher)
    assert pipeline.claim() == {"c"}
    pipeline.complete("c")
    assert pipeline.sealed()
