"""What a worker puts around its jobs, where several threads perform at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from random import Random
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from support.rows.claimed_jobs import node_job

from queue_workflows import set_invoke_context
from queue_workflows.models import WorkflowRun
from queue_workflows.repositories import RunRepository
from queue_workflows.repositories.sql.checks import PayloadLimits
from queue_workflows.roles.worker.common.run_job import JobRunner
from queue_workflows.settings import Settings


class Interrupted(JobRunner):
    """Another thread performs a job of another run whenever this one has read its own."""

    others: WorkflowRun | None = None
    _seen: WorkflowRun | None = None

    @property
    def _last_run(self) -> WorkflowRun | None:  # type: ignore[override]
        return self._seen

    @_last_run.setter
    def _last_run(self, run: WorkflowRun | None) -> None:
        self._seen = self.others or run


@pytest.fixture
def invoking() -> Iterator[None]:
    """A host app that wants to know the run of each of its nodes."""
    set_invoke_context(lambda job, run: nullcontext())
    yield
    set_invoke_context(None)


def test_each_job_has_the_context_of_its_own_run(qwf_conn: psycopg.Connection, invoking: None) -> None:
    """Whatever another thread of the worker is at."""
    runs = RunRepository(qwf_conn)
    mine, others = (runs.insert(name, spec={}, spec_hash="h") for name in ("mine", "others"))
    performer: Any = Interrupted(
        Settings(),
        connected=lambda: qwf_conn,
        loop=SimpleNamespace(),  # type: ignore[arg-type]
        limits=PayloadLimits(),
        redactor=SimpleNamespace(),  # type: ignore[arg-type]
        rng=Random(0),
    )
    performer.others = runs.fetch(others.id)
    assert performer._run_of(node_job(run_id=mine.id)).workflow_name == "mine"
