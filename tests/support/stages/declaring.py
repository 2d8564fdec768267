"""Limits as host apps declare them, put into force in the test's own process, and what they come to."""

from __future__ import annotations

from typing import Any

import psycopg

from queue_workflows.engine.registry.declared import LimitDeclaring
from queue_workflows.engine.registry.tasks import TaskRegistry
from queue_workflows.repositories import RateRepository
from queue_workflows.repositories.limits.overview import LimitLineRepository
from queue_workflows.repositories.limits.rates import Rule
from queue_workflows.repositories.limits.slots import SlotRepository, Want
from queue_workflows.repositories.sql.claimed_job import Fence
from queue_workflows.settings.declared_limits import declared_limits
from queue_workflows.states import JobFamily

EMPTY_LIMITS = """
TRUNCATE concurrency_limits, rate_limits, limit_slots, app_declarations, limit_declarations,
    task_declarations, adapted_limits, audit_log, ingest_jobs
"""


def declare(conn: psycopg.Connection, owner: str = "shop", **limits: Any) -> None:
    """The first process of a version of a host app has started."""
    LimitDeclaring(owner, declared_limits(limits), TaskRegistry()).keep(conn)


def cap(conn: psycopg.Connection, key: str) -> int | None:
    """How many slots of a key workers may take at once, which is what is shown."""
    wants = [Want(key, JobFamily.INGEST, Fence(number, 1, "w")) for number in range(1, 21)]
    slots = SlotRepository(conn)
    conn.execute("DELETE FROM limit_slots WHERE limit_key = %s", [key])
    taken = slots.take(wants, lease_s=60)
    slots.free(list(taken.slots.values()))
    shown = LimitLineRepository(conn).of(key).max_slots
    assert shown == (None if taken.unlimited else len(taken.slots))
    return shown


def rule(conn: psycopg.Connection, key: str, own: Rule | None = None) -> tuple[float, float] | None:
    """The rate that a take of the key goes by; `own` is what the job's code says."""
    taken = RateRepository(conn).take(key, 1, rule=own)
    return None if taken is None else (taken.rule.per_s, taken.rule.burst)
