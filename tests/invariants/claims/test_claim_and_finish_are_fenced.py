"""A job has one holder at a time, and only the holder of its current attempt may end it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from support.rows.schemas import blocked, until
from support.stages.wakes import Ear

from queue_workflows.errors import ExitCode, LeaseLost
from queue_workflows.repositories import ClaimedIngestJob, IngestJobRepository, NewIngestJob

Pair = tuple[psycopg.Connection, psycopg.Connection]


@pytest.fixture
def pair(qwf_dsn: str) -> Iterator[Pair]:
    """Two workers' connections, on a table without jobs."""
    with psycopg.connect(qwf_dsn) as one, psycopg.connect(qwf_dsn) as two:
        one.execute("TRUNCATE ingest_jobs")
        one.commit()
        yield one, two
        one.rollback()
        two.rollback()


def enqueue(connection: psycopg.Connection, *priorities: int) -> list[int]:
    """Jobs of these priorities, committed; their ids."""
    made = IngestJobRepository(connection).enqueue_many(
        NewIngestJob(task_name="task", queue="fetch", args={"n": n}, priority=priority)
        for n, priority in enumerate(priorities)
    )
    connection.commit()
    return [each.id for each in made]


def claim(connection: psycopg.Connection, worker: str = "w1", limit: int = 1) -> list[ClaimedIngestJob]:
    """Claim on the queue of these tests."""
    return IngestJobRepository(connection).claim("fetch", worker_id=worker, lease_s=5, limit=limit)


def row(connection: psycopg.Connection, job_id: int) -> dict[str, Any]:
    """A job as it is in the table."""
    cursor = connection.execute("SELECT to_jsonb(ingest_jobs) FROM ingest_jobs WHERE id = %s", (job_id,))
    (found,) = cursor.fetchone() or (None,)
    assert found is not None
    return found


def test_claimed_in_order(pair: Pair) -> None:
    """The highest priority first, then who came first; the answer is in that order too."""
    one, _ = pair
    ids = enqueue(one, 5, 9, 0, 9, 5)
    jobs = claim(one, limit=4)
    assert [job.id for job in jobs] == [ids[1], ids[3], ids[0], ids[4]]
    assert [job.args["n"] for job in jobs] == [1, 3, 0, 4]
    assert [job.id for job in claim(one, limit=4)] == [ids[2]]
    assert claim(one) == []


def test_claim_takes_the_fence(pair: Pair) -> None:
    """A claim counts the attempt, names the worker and leases by the database's clock."""
    one, _ = pair
    (job_id,) = enqueue(one, 5)
    ((before,),) = one.execute("SELECT clock_timestamp()")
    (job,) = claim(one)
    ((after,),) = one.execute("SELECT clock_timestamp()")
    assert (job.attempt, job.claimed_by, job.failures) == (1, "w1", 0)
    assert before <= job.lease_expires_at - timedelta(seconds=5) <= after
    stored = row(one, job_id)
    assert (stored["status"], stored["attempt"], stored["claimed_by"]) == ("running", 1, "w1")


def test_claims_see_only_their_queue_and_what_is_queued(pair: Pair) -> None:
    """Other queues' jobs, scheduled ones and finished ones are not claimable."""
    one, _ = pair
    repository = IngestJobRepository(one)
    repository.enqueue("other", queue="load")
    repository.enqueue("later", queue="fetch", delay=3600)
    done = repository.enqueue("done", queue="fetch")
    (job,) = claim(one)
    repository.complete(job)
    assert job.id == done.id
    assert claim(one, limit=10) == []


def test_two_workers_never_hold_one_job(pair: Pair) -> None:
    """While one worker's claim is not committed another takes the next job and waits for nothing."""
    one, two = pair
    first, second = enqueue(one, 5, 5)
    assert [job.id for job in claim(one, "w1")] == [first]
    two.execute("SET LOCAL lock_timeout = '1ms'")
    assert [job.id for job in claim(two, "w2")] == [second]
    assert claim(two, "w2") == []
    one.rollback()
    assert [job.id for job in claim(two, "w2")] == [first]


def test_complete(pair: Pair) -> None:
    """The holder ends its job with a result; who ran it stays to be read."""
    one, _ = pair
    (job_id,) = enqueue(one, 5)
    (job,) = claim(one)
    IngestJobRepository(one).complete(job, {"pages": [1, None, "x"]})
    stored = row(one, job_id)
    assert stored["finished_at"] is not None
    kept = ("status", "result", "claimed_by", "attempt", "lease_expires_at")
    assert [stored[name] for name in kept] == ["completed", {"pages": [1, None, "x"]}, "w1", 1, None]


@pytest.mark.parametrize("result", [None, "text", 3, False, [], {}])
def test_complete_with_any_json(pair: Pair, result: Any) -> None:
    """Whatever JSON a task returned comes back as it was."""
    one, _ = pair
    (job_id,) = enqueue(one, 5)
    (job,) = claim(one)
    IngestJobRepository(one).complete(job, result)
    stored = IngestJobRepository(one).fetch(job_id)
    assert stored is not None
    assert stored.result == result
    assert type(stored.result) is type(result)


def test_release(qwf_dsn: str, pair: Pair) -> None:
    """A released job is claimable at its old place at once, nothing is counted, and sleepers are woken."""
    one, two = pair
    first, second = enqueue(one, 5, 5)
    (job,) = claim(one)
    one.commit()
    with Ear(qwf_dsn) as ear:
        IngestJobRepository(one).release(job)
        one.commit()
        assert ear.heard() == ["fetch"]
    stored = row(one, first)
    assert [stored[name] for name in ("status", "failures", "attempt", "claimed_by", "position")] == [
        "queued",
        0,
        1,
        None,
        job.position,
    ]
    assert [(each.id, each.attempt) for each in claim(two, "w2", 2)] == [(first, 2), (second, 1)]


ENDS: dict[str, Callable[[psycopg.Connection, ClaimedIngestJob], None]] = {
    "complete": lambda connection, job: IngestJobRepository(connection).complete(job, "late"),
    "release": lambda connection, job: IngestJobRepository(connection).release(job),
}
either_end = pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())


@either_end
def test_zombie_cannot_write_over_its_successor(pair: Pair, end: Callable[..., None]) -> None:
    """A worker whose job went to another finds its lease lost and changes nothing, then and later."""
    one, two = pair
    (job_id,) = enqueue(one, 5)
    (zombie,) = claim(one)
    IngestJobRepository(one).release(zombie)
    one.commit()
    (successor,) = claim(two, "w2")
    two.commit()
    before = row(one, job_id)
    with pytest.raises(LeaseLost) as lost:
        end(one, zombie)
    assert (lost.value.job_id, lost.value.attempt, lost.value.exit_code) == (job_id, 1, ExitCode.LEASE_LOST)
    assert row(one, job_id) == before
    IngestJobRepository(two).complete(successor, "mine")
    two.commit()
    with pytest.raises(LeaseLost):
        end(one, zombie)
    assert row(one, job_id)["result"] == "mine"


@either_end
@pytest.mark.parametrize(
    "forged", [{"attempt": 2}, {"attempt": 0}, {"claimed_by": "w2"}], ids=["next", "none", "other worker"]
)
def test_every_part_of_the_fence_counts(pair: Pair, end: Callable[..., None], forged: dict[str, Any]) -> None:
    """The right id with another attempt or another worker is not the holder."""
    one, _ = pair
    (job_id,) = enqueue(one, 5)
    (job,) = claim(one)
    before = row(one, job_id)
    with pytest.raises(LeaseLost):
        end(one, replace(job, **forged))
    assert row(one, job_id) == before


@either_end
def test_an_end_is_once(pair: Pair, end: Callable[..., None]) -> None:
    """After the holder's own end nothing more is accepted from that attempt."""
    one, _ = pair
    (job_id,) = enqueue(one, 5)
    (job,) = claim(one)
    IngestJobRepository(one).complete(job, "first")
    with pytest.raises(LeaseLost):
        end(one, job)
    assert row(one, job_id)["result"] == "first"


def test_end_that_waits_for_the_reclaim_sees_it(qwf_dsn: str, pair: Pair) -> None:
    """An end that had to wait for whoever takes the job away is judged by what the row is afterwards."""
    one, two = pair
    (job_id,) = enqueue(one, 5)
    (job,) = claim(one)
    one.commit()
    IngestJobRepository(two).release(job)
    with ThreadPoolExecutor(1) as threads:
        late: Future[None] = threads.submit(IngestJobRepository(one).complete, job, "late")
        until(lambda: one.info.backend_pid in blocked(qwf_dsn, two.info.backend_pid), "the wait for the row")
        two.commit()
        with pytest.raises(LeaseLost):
            late.result(150)
    assert row(two, job_id)["status"] == "queued"
