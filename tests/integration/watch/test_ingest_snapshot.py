"""`ingest_snapshot`: each ingest queue in numbers, the same as `qwf queue stats` has."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy.orm import Session
from support.connections.kept import own_connection
from support.rows.jobs import CLEAR_WITH_WORKERS, Jobs, ending
from support.rows.schemas import sa_engine

from queue_workflows import QueueSnapshot, configure, ingest_snapshot
from queue_workflows.config import reset_config
from queue_workflows.repositories import HeartbeatRepository


@pytest.fixture
def conn(qwf_dsn: str) -> Iterator[psycopg.Connection]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        configure(ingest_queues={"fetch", "quiet"}, db_url=qwf_dsn)
        yield connection
        reset_config()


def filled(conn: psycopg.Connection) -> dict[str, QueueSnapshot]:
    """Jobs in every status, workers, and what is none of it; as it should be seen."""
    jobs = Jobs("ingest", conn)
    jobs.enqueue(9)
    held = jobs.claim(limit=6)
    jobs.repository.end_many(
        [
            ending(job, status)
            for job, status in zip(held, ("completed", "completed", "skipped"), strict=False)
        ]
    )
    jobs.repository.end(ending(held[3], "failed", error={"kind": "x", "message": "y"}, counts=True))
    jobs.repository.hold(held[4], "unknown_task", "draw", delay_s=600)
    jobs.enqueue(2, queue="load")
    jobs.repository.cancel_many(jobs.enqueue(1, queue="load"), actor="ann")
    Jobs("node", conn).enqueue(3)
    for worker, queue in (("a", "fetch"), ("b", "fetch"), ("c", "gpu")):
        HeartbeatRepository(conn).beat(worker, host_label="h", queue=queue, pid=7, state="idle")
    return {
        "fetch": QueueSnapshot(
            "fetch", queued=3, scheduled=1, running=1, completed=2, skipped=1, failed=1, workers=2
        ),
        "load": QueueSnapshot("load", queued=2, cancelled=1),
        "quiet": QueueSnapshot("quiet"),
    }


def test_each_queue_in_numbers(conn, qwf_dsn):
    """Those of the host app though nothing is there, and no queue of node jobs; on any connection."""
    wanted = filled(conn)
    assert ingest_snapshot() == wanted
    assert ingest_snapshot(conn=conn) == wanted
    with Session(sa_engine(qwf_dsn)) as session:
        assert ingest_snapshot(conn=session) == wanted


def test_counts_go_up_to_a_bound(conn):
    """And say which did."""
    filled(conn)
    seen = ingest_snapshot(most=2)["fetch"]
    assert (seen.queued, seen.completed + seen.skipped + seen.failed) == (2, 1)
    assert seen.at_least == {"queued", "completed", "skipped", "failed", "cancelled"}


def test_what_is_long_over_is_not_counted(conn):
    """Only the window."""
    filled(conn)
    conn.execute("UPDATE ingest_jobs SET finished_at = now() - interval '2 h' WHERE finished_at IS NOT NULL")
    assert ingest_snapshot(window_s=3600)["fetch"].completed == 0
    assert ingest_snapshot(window_s=9000)["fetch"].completed == 2
