"""Statements of before revision 0033 beside its schema take back what lapsed, whatever has begun."""

from __future__ import annotations

import psycopg
import pytest
from support.rows.jobs import Jobs
from support.rows.schemas import query
from support.servers.postgres_versions import each_version

SAID = "it was to wait again, but it had begun, and it begins at most once"
# What the code before does with a lapsed job in the end, said shortly: it knows no `begun_generation`.
RECLAIM = """
UPDATE {table} SET status = '{to}', claimed_by = NULL, lease_expires_at = NULL, crash_count = crash_count + 1,
    suspect = true, errors = errors || '[{{"kind": "worker_lost"}}]'::jsonb
WHERE status = 'running' AND lease_expires_at < statement_timestamp()
RETURNING id
"""


@each_version
@pytest.mark.parametrize("family", ["ingest", "node"])
@pytest.mark.parametrize("to", ["queued", "scheduled"])
def test_one_that_has_begun_stops_no_batch(migrated: str, family: str, to: str) -> None:
    """It ends as failed in the same write, with its event; its neighbours wait for the next worker."""
    with psycopg.connect(migrated, autocommit=True) as connection:
        jobs = Jobs(family, connection)
        once, again, earlier = jobs.enqueue(3)
        jobs.claim(limit=3)
        begun = f"""
            UPDATE {jobs.table} SET begun_generation = %s, at_most_once = true, max_attempts = 1,
                errors = (SELECT jsonb_agg(n) FROM generate_series(1, 10) AS n)
            WHERE id = %s
        """
        for generation, job_id in ((1, once), (0, earlier)):
            connection.execute(begun, [generation, job_id])
        jobs.lapse(once, again, earlier)
        assert len(query(migrated, RECLAIM.format(table=jobs.table, to=to))) == 3
        assert jobs.seen(once, "status", "claimed_by", "hold_reason") == ("failed", "w1", None)
        *before, lost, said = jobs.row(once)["errors"]
        assert (before, lost["kind"]) == ([3, 4, 5, 6, 7, 8, 9, 10], "worker_lost")
        assert (said["kind"], said["message"], said["attempt"]) == ("at_most_once", SAID, 1)
        assert jobs.seen(once, "finished_at") != (None,)
        assert jobs.events(once) == jobs.ended((1, 1, "failed"))
        for each in (again, earlier):
            assert jobs.seen(each, "status", "claimed_by") == (to, None)
            assert jobs.events(each) == []
        # Over it is over: only a new generation opens it again.
        assert jobs.repository.retry_many([once], actor="test") == {once: 2}
        assert jobs.seen(once, "status", "generation") == ("queued", 2)
