"""Background hooks take no places, and so none is free when one of them has ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from support.rows.claimed_jobs import node_job

from queue_workflows.roles.worker.concurrent.background_hooks import HookWorker
from queue_workflows.roles.worker.concurrent.worker import ConcurrentWorker


def test_what_ended_in_the_background_frees_no_place() -> None:
    """Until its end is written it is counted nowhere."""
    crew: Any = HookWorker.__new__(HookWorker)
    ended = [SimpleNamespace(job=node_job(background=background)) for background in (True, False, True)]
    crew._exchange = SimpleNamespace(unwritten=ended, ending=0)
    assert (crew._over(), ConcurrentWorker._over(crew)) == (1, 3)
