"""Rows that were there before the tables refused their like: what becomes of them, up and down."""

from __future__ import annotations

import psycopg
import pytest
from support.rows.schemas import query
from support.servers.postgres_versions import newest_version

from queue_workflows.db import downgrade, migrations
from queue_workflows.db.migrations.chain.chains import engine_chain

ENGINE = engine_chain()
SCHEDULE = (
    "INSERT INTO schedules (name, cron, task_name, queue, limit_key) VALUES ('{}', '* * * * *', 't', 'q', {})"
)
JOB = "INSERT INTO ingest_jobs (task_name, queue, limit_key, host_lock) VALUES ('t', 'fetch', {}, {})"
JOBS = "SELECT id, status, limit_key, host_lock, errors FROM ingest_jobs ORDER BY id"
RATE = "INSERT INTO rate_limits (rate_key, tokens_per_s, burst, tokens) VALUES ('{}', {}, 1, 1)"


@newest_version
def test_settings_are_mended_and_jobs_are_left_to_workers(empty: str) -> None:
    """Schedules are paused, caps and buckets of no key go, with a word in the log; jobs stay as they are."""
    migrations.upgrade(empty, chains=[ENGINE], revision="0031")
    for name, key in (("good", "'k'"), ("bad", "'a*'")):
        query(empty, SCHEDULE.format(name, key))
        query(empty, JOB.format(key, "NULL"))
    query(empty, JOB.format("NULL", "''"))
    query(empty, "INSERT INTO concurrency_limits (key_pattern, max_slots) VALUES ('a*b', 1), ('a*', 1)")
    query(empty, RATE.format("a*", 5))
    query(empty, RATE.format("b", "'NaN'"))
    jobs = query(empty, JOBS)

    migrations.upgrade(empty, chains=[ENGINE], revision="0032")
    assert query(empty, "SELECT name, enabled FROM schedules ORDER BY 1") == [("bad", False), ("good", True)]
    assert ("a*b",) not in query(empty, "SELECT key_pattern FROM concurrency_limits")
    assert query(empty, "SELECT rate_key FROM rate_limits") == [("a*",)]
    told = "SELECT actor, action, subject_id FROM audit_log ORDER BY 2"
    assert query(empty, told) == [("qwf", "limits.clear", "a*b"), ("qwf", "schedule.pause", "bad")]
    assert (
        query(empty, "SELECT id, status, limit_key, host_lock, errors FROM ingest_jobs ORDER BY id") == jobs
    )
    # What was there can be claimed and ended, as neither is an INSERT; its like cannot come any more.
    query(empty, "UPDATE ingest_jobs SET priority = 1")
    for refused in (JOB.format("'a*'", "NULL"), JOB.format("NULL", "''"), SCHEDULE.format("more", "'a*'")):
        with pytest.raises(psycopg.errors.CheckViolation):
            query(empty, refused)
    with pytest.raises(psycopg.errors.CheckViolation):
        query(empty, "UPDATE schedules SET enabled = true")

    downgrade(empty, chain="engine", revision="0031")
    query(empty, JOB.format("'a*'", "NULL"))
    query(empty, "UPDATE schedules SET enabled = true")
