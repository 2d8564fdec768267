"""Claimed jobs and their contexts, for tests that run them without a database."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from queue_workflows.engine.execution.context import JobContext
from queue_workflows.repositories.sql.claimed_job import ClaimedIngestJob, ClaimedJob, ClaimedNodeJob

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
_SHARED: dict[str, Any] = {
    "id": 7,
    "priority": 5,
    "position": 1,
    "run_at": MOMENT,
    "generation": 1,
    "attempt": 2,
    "failures": 0,
    "max_attempts": 3,
    "backoff_s": None,
    "crash_count": 0,
    "suspect": False,
    "max_crashes": None,
    "at_most_once": False,
    "claimed_by": "host:fetch:1",
    "lease_expires_at": MOMENT,
    "timeout_s": None,
    "stall_timeout_s": None,
    "host_lock": None,
    "limit_key": None,
    "cancel_requested_at": None,
    "traceparent": None,
    "created_at": MOMENT,
    "started_at": MOMENT,
}


def ingest_job(**changes: Any) -> ClaimedIngestJob:
    own = {
        "queue": "fetch",
        "task_name": "task",
        "reason": "because",
        "args": {"a": 1},
        "dedupe_key": None,
        "schedule_name": None,
        "tick_at": None,
    }
    return ClaimedIngestJob(**_SHARED | own | changes)


def node_job(**changes: Any) -> ClaimedNodeJob:
    own = {
        "queue": "cpu",
        "run_id": uuid.UUID(int=1),
        "node_id": "plan",
        "map_index": -1,
        "kind": "task",
        "node_module": "plan",
        "plugin": None,
        "inputs": {"brief": "a film"},
        "host_priority": 0,
        "required_model": None,
        "step": None,
        "background": False,
        "survives_outage": False,
    }
    return ClaimedNodeJob(**_SHARED | own | changes)


def context(job: ClaimedJob, *, make_durable: Callable[[], bool] = lambda: True, **given: Any) -> JobContext:
    family = "ingest job" if isinstance(job, ClaimedIngestJob) else "node job"
    return JobContext(job, family=family, make_durable=lambda _: make_durable(), **given)
