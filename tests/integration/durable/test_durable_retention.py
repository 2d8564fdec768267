"""What is stored of durable functions goes with their jobs; an event goes by its age."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from queue_workflows.engine.registry.tasks import ingest_task
from queue_workflows.engine.upkeep.retention import Pruning
from queue_workflows.repositories.durable.events import EventRepository, emit_event
from queue_workflows.settings import Settings
from queue_workflows.testing import drain


@ingest_task("kept_for_a_while", queue="fetch", durable=True)
def kept_for_a_while(reason: str | None, *, ctx: Any) -> int:
    """One step."""
    return ctx.step("one", lambda: 1)


def test_events_are_vacuumed_as_tables_that_are_never_large(qwf_configured: str):
    """However many were there before, as the oldest one is looked for all the time."""
    with psycopg.connect(qwf_configured) as conn:
        query = "SELECT reloptions FROM pg_class WHERE oid = 'durable_events'::regclass"
        ((options,),) = conn.execute(query).fetchall()
    assert {"autovacuum_vacuum_scale_factor=0", "autovacuum_vacuum_threshold=1000"} <= set(options or ())


@pytest.mark.parametrize("dedupe_key", [None, "a key that stays"])
def test_steps_and_events_are_pruned(qwf_configured: str, dedupe_key: str | None):
    """With the job, or when it loses what it was about; what is young stays."""
    with psycopg.connect(qwf_configured, autocommit=True) as conn:
        conn.execute("TRUNCATE ingest_jobs, durable_steps, durable_events, retention_marks")
        kept_for_a_while.enqueue(conn=conn, dedupe_key=dedupe_key)
        young = kept_for_a_while.enqueue(conn=conn)
        emit_event("old", conn=conn)
        drain(conn=conn)
        conn.execute(
            "UPDATE ingest_jobs SET finished_at = now() - interval '33 days' WHERE id < %s", [young.id]
        )
        conn.execute("UPDATE durable_events SET emitted_at = now() - interval '33 days'")
        emit_event("young", conn=conn)
        Pruning(Settings()).prune(conn)
        assert conn.execute("SELECT job_id FROM durable_steps").fetchall() == [(young.id,)]
        assert [event.name for event in EventRepository(conn).kept()] == ["young"]


def test_steps_without_a_job_go(qwf_configured: str):
    """Code that knew no steps deletes jobs alone; of a job that is there nothing goes."""
    with psycopg.connect(qwf_configured, autocommit=True) as conn:
        conn.execute("TRUNCATE ingest_jobs, durable_steps, durable_events, retention_marks")
        jobs = [kept_for_a_while.enqueue(conn=conn) for _ in range(5)]
        drain(conn=conn)
        conn.execute("DELETE FROM ingest_jobs WHERE id = ANY (%s)", [[jobs[0].id, jobs[3].id]])
        Pruning(Settings()).prune(conn)
        steps = conn.execute("SELECT job_id FROM durable_steps ORDER BY job_id").fetchall()
        assert steps == [(jobs[n].id,) for n in (1, 2, 4)]
