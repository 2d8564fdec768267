"""A hook that runs again because its session was lost goes on being judged by the workers that died of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg.types.json import Jsonb
from support.connections.kept import own_connection
from support.rows.jobs import CLEAR
from support.rows.run_trees import hook
from support.rows.runs import dispatcher, settle, start

from queue_workflows.engine.runs.retry import retry_run
from queue_workflows.repositories.claims.end import Ending
from queue_workflows.repositories.jobs.hooks import HookJobRepository
from queue_workflows.repositories.sql.claimed_job import ClaimedNodeJob
from queue_workflows.states import JobStatus

SHARED = {"kind": "worker_lost", "counted": False, "shared_in": 1}
OTHER = {"kind": "exit", "counted": True}


class Browser:
    """A run in which one hook works with another in the background, and hands that do their jobs."""

    def __init__(self, connection: psycopg.Connection[Any], **of_member: Any) -> None:
        self.connection = connection
        self.dispatcher = dispatcher(connection)
        self.jobs = HookJobRepository.at("here")(connection)
        member = hook("shot", 1, "browser") | {"sessions": ["browser"], **of_member}
        nodes = [hook("browser", 0) | {"background": True}, member]
        on_hooks = [{**node, "queue": "hooks"} for node in nodes]
        self.run_id: UUID = start(connection, {"on_failure": "continue", "nodes": on_hooks})

    def browse(self) -> ClaimedNodeJob:
        """Begin the hook in the background, so that what works with it may begin."""
        settle(self.dispatcher)
        self.jobs.promote()
        (job,) = self.jobs.claim_background(worker_id="w", lease_s=60, limit=1)
        self.jobs.tell_ready(job.fence)
        settle(self.dispatcher)
        return job

    def shoot(self, status: JobStatus) -> None:
        """Run what works with it, which was claimed beside a worker's other jobs, or on trial."""
        (job,) = self.jobs.claim("hooks", worker_id="w", lease_s=60, alone=True)
        error = None if status is JobStatus.COMPLETED else '{"kind": "exit"}'
        self.jobs.end(Ending(job.fence, status, error=error, counts=error is not None))
        settle(self.dispatcher)

    def member(self) -> tuple[Any, ...]:
        sql = (
            "SELECT status, generation, failures, crash_count, suspect, errors FROM workflow_node_jobs"
            " WHERE run_id = %s AND node_id = 'shot'"
        )
        row = self.connection.execute(sql, [self.run_id]).fetchone()
        assert row is not None
        return row


@pytest.fixture(params=[{}, {"limit_key": "site"}], ids=["without a limit", "with a limit's key"])
def browser(qwf_dsn: str, request: pytest.FixtureRequest) -> Iterator[Browser]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR)
        yield Browser(connection, **request.param)


def test_deaths_count_on_where_a_session_begins_anew_and_not_after_a_retry(browser: Browser) -> None:
    """Those that it shared are of the generation that begins; what an operator asks for begins with none."""
    lost = browser.browse()
    blame = (
        "UPDATE workflow_node_jobs SET crash_count = 1, suspect = true, failures = 1, errors = %s"
        " WHERE node_id = 'shot'"
    )
    browser.connection.execute(blame, [Jsonb([OTHER, SHARED])])
    browser.shoot(JobStatus.COMPLETED)
    assert browser.member() == ("completed", 1, 1, 1, True, [OTHER, SHARED])
    browser.jobs.end(
        Ending(lost.fence, JobStatus.SCHEDULED, error='{"kind": "exit"}', counts=True, delay_s=0.0)
    )
    again = browser.browse()
    moved = [OTHER, SHARED | {"shared_in": 2}]
    assert browser.member() == ("queued", 2, 0, 1, True, moved)
    browser.jobs.end(Ending(again.fence, JobStatus.COMPLETED))
    browser.shoot(JobStatus.FAILED)
    assert browser.member()[:5] == ("failed", 2, 1, 1, True)
    retry_run(browser.run_id, conn=browser.connection)
    browser.browse()
    status, generation, *blamed, errors = browser.member()
    assert (status, generation, blamed, errors[:2]) == ("queued", 3, [0, 0, False], moved)
