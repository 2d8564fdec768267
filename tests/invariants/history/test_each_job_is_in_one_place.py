"""Whatever moves, is switched or is killed: each job is in the table or the history, and in one of them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from support.rows.history import by_months, cleared, over, places, settle
from support.rows.runs import settings
from support.stages import dying_mover
from support.suite.warm_starts import run

from queue_workflows.engine.upkeep.history import HistoryMoving
from queue_workflows.repositories import IngestJobRepository

# One look, so that nothing moves between two counts.
HOW_OFTEN = "SELECT id, count(*) FROM ingest_jobs_and_history GROUP BY id HAVING count(*) > 1"
COUNT = "SELECT count(*) FROM ingest_jobs_and_history"
EARLIER = """
UPDATE ingest_jobs SET finished_at = finished_at - interval '3 days'
WHERE finished_at > now() - interval '1 hour' AND status = 'completed'
"""


@pytest.fixture
def connection(qwf_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """Empty tables, and a connection whose every statement is seen at once."""
    with cleared(qwf_dsn) as connection:
        yield connection


@pytest.mark.parametrize("back", [False, True], ids=["to the history", "back"])
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_a_mover_that_is_killed_leaves_each_job_once(
    connection: psycopg.Connection[Any], qwf_dsn: str, back: bool, is_after: bool
) -> None:
    """At any statement, in either direction; the next mover does the rest."""
    ids = over(connection, 4_500)
    by_months(connection)
    if back:
        settle(connection)
        by_months(connection, False)
    for number in range(5):
        mover = [
            sys.executable,
            dying_mover.__file__,
            qwf_dsn,
            str(number),
            "after" if is_after else "before",
        ]
        assert run(mover, os.environ).returncode == -signal.SIGKILL
        table, history = places(connection)
        assert sorted(table + history) == ids
    settle(connection)
    assert places(connection) == ((ids, []) if back else ([], ids))


def test_two_movers_share_the_work(connection: psycopg.Connection[Any], qwf_dsn: str) -> None:
    """Neither fails, nor makes a month that the other has made, and no job is moved twice."""
    ids = over(connection, 6_000, days=40)
    by_months(connection)

    def move(other: psycopg.Connection[Any]) -> None:
        settle(other, retention_days=1000)

    assert at_once(qwf_dsn, [move, move, move]) == []
    assert places(connection) == ([], ids)


@pytest.mark.slow
def test_switched_to_and_fro_under_load(  # noqa: C901 - what each of six does
    connection: psycopg.Connection[Any], qwf_dsn: str
) -> None:
    """While jobs are enqueued, worked on, moved and retried, nothing is lost, and nothing is there twice."""
    rounds = 15
    done = threading.Event()
    made: list[int] = []
    retried: set[int] = set()
    torn: list[Any] = []

    def work(mine: psycopg.Connection[Any]) -> None:
        jobs = IngestJobRepository(mine)
        for _ in range(rounds):
            made.extend(jobs.enqueue("task", queue="fetch").id for _ in range(20))
            for job in jobs.claim("fetch", worker_id="w", lease_s=600, limit=40):
                jobs.complete(job, {"id": job.id})
            mine.execute(EARLIER)
        done.set()

    def move(mine: psycopg.Connection[Any]) -> None:
        moving = HistoryMoving(settings())
        while not done.is_set():
            moving.move(mine)

    def switch(mine: psycopg.Connection[Any]) -> None:
        wanted = True
        while not done.is_set():
            by_months(mine, wanted)
            wanted = not wanted

    def retry(mine: psycopg.Connection[Any]) -> None:
        jobs = IngestJobRepository(mine)
        while not done.is_set():
            for job_id in made[:: max(len(made) // 5, 1)]:
                retried.update(jobs.retry_many([job_id], actor="ann"))

    def look(mine: psycopg.Connection[Any]) -> None:
        before = 0
        while not done.is_set():
            torn.extend(mine.execute(HOW_OFTEN).fetchall())
            ((count,),) = mine.execute(COUNT).fetchall()
            if count < before:
                torn.append(("lost", before, count))
            before = count

    assert at_once(qwf_dsn, [work, move, move, switch, retry, look]) == []
    assert torn == []
    table, history = places(connection)
    assert sorted(table + history) == sorted(made)
    assert retried
    for wanted in (True, False):
        by_months(connection, wanted)
        settle(connection)
    assert places(connection) == (sorted(made), [])


def at_once(dsn: str, acts: list[Callable[[psycopg.Connection[Any]], None]]) -> list[BaseException]:
    """Do these at one time, each on a connection of its own; what went wrong."""
    failed: list[BaseException] = []

    def run(act: Callable[[psycopg.Connection[Any]], None]) -> None:
        try:
            with psycopg.connect(dsn, autocommit=True) as connection:
                act(connection)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    return failed
