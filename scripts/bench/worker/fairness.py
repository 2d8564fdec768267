"""Whether keys with few jobs wait behind one with a million."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bench.harness.figures import Figure
from bench.harness.measuring import Bench
from bench.harness.servers import said
from bench.harness.workers import working
from bench.worker.draining import CREW
from bench.worker.wakes import until
from queue_workflows import enqueue_many
from queue_workflows.repositories import NewIngestJob
from queue_workflows.repositories.limits.lanes import FRONT

SMALL: Final = 9
EACH: Final = 10
# What had ended when the small keys' jobs came does not count, nor does what the worker had in hand.
WAITED: Final = """
SELECT count(*) FROM ingest_jobs
WHERE limit_key = 'large'
    AND started_at > (SELECT min(created_at) FROM ingest_jobs WHERE limit_key <> 'large')
    AND started_at < (SELECT max(started_at) FROM ingest_jobs WHERE limit_key <> 'large')
"""
LEFT: Final = "SELECT EXISTS (SELECT FROM ingest_jobs WHERE limit_key <> 'large' AND finished_at IS NULL)"
BEGUN: Final = "SELECT EXISTS (SELECT FROM ingest_jobs WHERE finished_at IS NOT NULL)"
# What a worker may have claimed beyond its free threads.
PREFETCH: Final = 400
_AT_ONCE: Final = 50_000


def fairness(bench: Bench) -> Sequence[Figure]:
    """A key with a long backlog that is being worked off, and then nine with ten jobs each."""
    many = bench.much(1_000_000, 5_000)
    with bench.database() as (dsn, connection):
        for done in range(0, many, _AT_ONCE):
            enqueue_many(_jobs("large", min(_AT_ONCE, many - done)), conn=connection)
            bench.say(f"{min(done + _AT_ONCE, many):,} of {many:,} jobs of one key")
        with working(dsn, *CREW):
            until(lambda: said(connection, BEGUN))
            small = [job for number in range(SMALL) for job in _jobs(f"small-{number}", EACH)]
            enqueue_many(small, conn=connection)
            until(lambda: not said(connection, LEFT))
        waited = int(said(connection, WAITED))
    bound = (SMALL + 1) * FRONT + PREFETCH
    return [
        Figure(
            *(
                "fairness",
                f"of one key's {many:,} before the last of {SMALL} keys' {EACH}",
                waited,
            ),
            *("jobs", f"keys x {FRONT}, and the prefetch", bound, waited / bound, 1.0, True),
        )
    ]


def _jobs(key: str, count: int) -> list[NewIngestJob]:
    return [NewIngestJob(task_name="noop", queue="fetch", limit_key=key) for _ in range(count)]
