"""What a worker takes back of a job's errors never takes along one that came meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from support.connections.kept import own_connection
from support.rows.jobs import CLEAR, Jobs
from support.rows.schemas import blocked, holding, until

from queue_workflows.repositories.claims.withdraw_doubts import withdraw_doubts

FULL = """
UPDATE ingest_jobs SET suspect = true, errors = (
    SELECT jsonb_agg(
        jsonb_build_object('kind', 'suspect', 'attempt', attempt, 'worker_id', claimed_by, 'n', n)
    ) FROM generate_series(1, 10) AS n
)
"""
# As ends write it: the last of them and one more.
NEWER = """UPDATE ingest_jobs SET errors = (errors - 0) || '[{"kind": "newer"}]'"""


@pytest.fixture
def jobs(qwf_dsn: str) -> Iterator[Jobs]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR)
        yield Jobs("ingest", connection)


def test_one_that_was_written_while_it_waited(qwf_dsn: str, jobs: Jobs) -> None:
    """As many entries as before are not the entries that were there before; asked again, it takes back."""
    (job,) = jobs.enqueue()
    held = jobs.one()
    jobs.connection.execute(FULL)
    with holding(qwf_dsn, NEWER) as newer:
        thread = threading.Thread(target=withdraw_doubts, args=[jobs.connection, [held]], daemon=True)
        thread.start()
        until(lambda: blocked(qwf_dsn, newer.info.backend_pid), "it waits for the row")
        newer.commit()
        thread.join(150)
    assert not thread.is_alive()
    assert [entry["kind"] for entry in jobs.row(job)["errors"]] == ["suspect"] * 9 + ["newer"]
    assert withdraw_doubts(jobs.connection, [held]) == 1
    assert [entry.get("withdrawn") for entry in jobs.row(job)["errors"]] == [True] * 9 + [None]
    assert jobs.seen(job, "suspect") == (False,)
