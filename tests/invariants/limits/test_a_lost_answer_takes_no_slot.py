"""A job whose question for slots is asked twice, as the first answer was lost, does not wait for itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import Context
from typing import Any

import psycopg
import pytest
from support.rows.claim_sessions import cap
from support.rows.limited_jobs import LimitedJobs, limited_jobs

from queue_workflows.engine.limits.wait_loop import DatabaseCalls
from queue_workflows.engine.limits.windows import Windows
from queue_workflows.repositories.limits.slots import SlotRepository
from queue_workflows.roles.worker.common.side_connection import SideConnection

KEY = "host:example.org"


@pytest.fixture
def jobs(qwf_dsn: str) -> Iterator[LimitedJobs]:
    """Jobs that ask as those of a worker do."""
    with limited_jobs(qwf_dsn) as made:
        aside = SideConnection(
            lambda: psycopg.connect(qwf_dsn, autocommit=True), lambda job: True, sleep=lambda seconds: None
        )
        made.windows = Windows(DatabaseCalls(aside.ask), made.kept, made.windows.locks, lease_s=600)
        yield made
        made.windows.calls.close()
        aside.close()


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The answers that got lost: of each window the first."""
    take, answers = SlotRepository.take, []

    def take_and_lose(slots: SlotRepository, *args: Any, **more: Any) -> Any:
        taken = take(slots, *args, **more)
        if len(answers) % 2 == 0:
            answers.append(taken)
            raise psycopg.OperationalError("the connection is lost")
        answers.append(None)
        return taken

    monkeypatch.setattr(SlotRepository, "take", take_and_lose)
    return answers


def test_the_only_slot(jobs: LimitedJobs, lost: list[Any]) -> None:
    """It was taken by the first question, and goes with the end of the window."""
    cap(jobs.connection, KEY, 1)
    ctx = jobs.ctx()
    with ctx.limit(KEY, "other", max=1, max_wait_s=0):
        assert len(lost[0].slots) == 2
        assert jobs.taken() == [(KEY, ctx.job.id), ("other", ctx.job.id)]
    assert jobs.taken() == []


def test_what_the_job_holds_beside_it(jobs: LimitedJobs, lost: list[Any]) -> None:
    """Another window of the same job and key keeps its own slot, and so does another job."""
    cap(jobs.connection, KEY, 3)
    ctx, other = jobs.ctx(), jobs.ctx()
    windows = [each.limit(KEY, max_wait_s=0) for each in (other, ctx, ctx)]
    for window in windows:
        Context().run(window.__enter__)
    assert len(lost) == 6
    assert jobs.taken() == [(KEY, ctx.job.id), (KEY, ctx.job.id), (KEY, other.job.id)]
    for window in windows:
        window.__exit__(None, None, None)
    assert jobs.taken() == []
