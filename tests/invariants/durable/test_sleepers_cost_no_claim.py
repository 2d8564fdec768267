"""A hundred thousand that are asleep: a claim reads what it reads without them, and what is due wakes."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from support.connections.kept import own_connection
from support.rows.plans import explain, rows_read

from queue_workflows.engine.upkeep.tick import sweep
from queue_workflows.repositories import IngestJobRepository
from queue_workflows.repositories.claims.claim import CLAIM, claim_params
from queue_workflows.repositories.claims.sweep import PROMOTED_AT_ONCE
from queue_workflows.settings import Settings

SLEEPERS = 100_000
DUE = 1_200
ASLEEP = """
INSERT INTO ingest_jobs (task_name, queue, status, hold_reason, hold_key, attempt, run_at)
SELECT 'sleeps', 'fetch', 'scheduled', 'asleep', 'sleep', 1, now() + interval '1 day'
FROM generate_series(1, %s)
"""
QUEUED = "INSERT INTO ingest_jobs (task_name, queue) SELECT 'works', 'fetch' FROM generate_series(1, 100)"


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    """A queue with a hundred jobs."""
    with own_connection(qwf_dsn) as connection:
        connection.execute("TRUNCATE ingest_jobs, durable_steps, durable_events")
        connection.execute(QUEUED)
        yield connection


def read_by_a_claim(conn: psycopg.Connection) -> int:
    """How many rows a claim of ten looks at."""
    params = claim_params("fetch", worker_id="w", lease_s=60, limit=10, alone=False, positions=[0] * 10)
    plan = explain(conn, "force_generic_plan", CLAIM["ingest"], params | {"relaxed": True})
    return rows_read(plan, "ingest_jobs")


def test_a_claim_reads_what_it_takes(conn: psycopg.Connection):
    """Each once as it is found and once as it is taken: sleepers are in no index that a claim walks."""
    conn.execute(ASLEEP, [SLEEPERS])
    conn.execute("VACUUM ANALYZE ingest_jobs")
    assert read_by_a_claim(conn) == 2 * 10


def test_those_that_are_due_are_woken_by_one_tick_after_the_other(conn: psycopg.Connection):
    """A tick that has woken as many as it may is followed by the next at once, until all are awake."""
    conn.execute(ASLEEP, [SLEEPERS // 10])
    conn.execute(
        "UPDATE ingest_jobs SET run_at = now() WHERE id IN ("
        "SELECT id FROM ingest_jobs WHERE hold_reason = 'asleep' ORDER BY id LIMIT %s)",
        [DUE],
    )
    ticks = [sweep(conn, Settings(), recovered_s=None)]
    while ticks[-1].next_in_s == 0:
        ticks.append(sweep(conn, Settings(), recovered_s=None))
    assert sum(tick.promoted for tick in ticks) == DUE
    assert len(ticks) == DUE // PROMOTED_AT_ONCE + 1
    claimed = IngestJobRepository(conn).claim("fetch", worker_id="w", lease_s=60, limit=2 * DUE)
    assert sum(job.task_name == "sleeps" for job in claimed) == DUE
