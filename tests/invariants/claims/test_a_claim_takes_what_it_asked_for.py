"""A claim takes no more jobs than it asked for, however the planner runs it."""

from __future__ import annotations

import pytest
from support.rows.jobs import jobs_of

# What is left to the planner is a nested loop that runs its inner side again for each row: a LIMIT that is
# run again after the first row was updated takes another one.
UNLIKELY = ("hashagg", "sort", "hashjoin", "mergejoin", "material", "memoize", "bitmapscan")


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("family", ["node", "ingest"])
def test_however_it_is_planned(qwf_dsn: str, family: str, limit: int, mode: str) -> None:
    """As many rows are running as the answer names, in the order of the queue."""
    with jobs_of(family, qwf_dsn) as jobs:
        first = jobs.enqueue(20)[:limit]
        jobs.connection.execute(f"ANALYZE {jobs.table}")
        jobs.connection.execute(f"SET plan_cache_mode = {mode}")
        for node in UNLIKELY:
            jobs.connection.execute(f"SET enable_{node} = off")
        assert [job.id for job in jobs.claim(limit=limit)] == first
        assert [row["id"] for row in jobs.rows() if row["status"] == "running"] == first
