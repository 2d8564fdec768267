"""However many jobs without a key stand in a queue, those of a key that came before them get their turns."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from support.rows.claim_sessions import CLEAR_LIMITS, Hand, cap, hand, where
from support.rows.jobs import Jobs, jobs_of

from queue_workflows.engine.limits.lane_upkeep import LaneWalk, admit
from queue_workflows.repositories.limits.lane_turns import NEAR
from queue_workflows.repositories.limits.lanes import FRONT
from queue_workflows.repositories.sql.families import BY_NAME
from queue_workflows.repositories.sql.low_water_marks import Marks

KEY = "host:example.org"
BATCH = 8


@pytest.fixture
def jobs(qwf_dsn: str) -> Iterator[Jobs]:
    """An empty table of ingest jobs, and no limits."""
    with jobs_of("ingest", qwf_dsn) as jobs:
        jobs.connection.execute(CLEAR_LIMITS)
        yield jobs


def until_done(worker: Hand, wanted: set[int], batch: int = BATCH) -> Counter[str | None]:
    """Work until these are done; how many of each key were, with them."""
    done: Counter[str | None] = Counter()
    worker.claim(batch)
    while wanted and worker.held:
        done.update(job.limit_key for job in worker.held)
        wanted = wanted - {job.id for job in worker.held}
        worker.end_and_claim(batch)
    assert not wanted
    return done


@pytest.mark.parametrize(
    ("most", "batch", "poll_s"), [(None, BATCH, 0.0), (None, 1, 3600.0), (1, 1, 3600.0), (4, BATCH, 3600.0)]
)
def test_a_keys_jobs_pass_a_backlog_that_came_later(
    jobs: Jobs, qwf_dsn: str, most: int | None, batch: int, poll_s: float
) -> None:
    """Each has its turn within a batch, or two jobs; also where nothing is looked at twice."""
    if most is not None:
        cap(jobs.connection, KEY, most)
    keyed = set(jobs.enqueue(60, limit_key=KEY))
    jobs.enqueue(1200)
    with hand(qwf_dsn, "w1") as worker:
        worker.marks = Marks(poll_s)
        done = until_done(worker, keyed, batch)
    assert done[None] <= 60 * max(batch, 2)


def test_a_steady_stream_is_no_exception(jobs: Jobs, qwf_dsn: str) -> None:
    """As many come as are done, behind a backlog."""
    cap(jobs.connection, KEY, 2)
    left = set(jobs.enqueue(60, limit_key=KEY))
    jobs.enqueue(500)
    rounds = 0
    with hand(qwf_dsn, "w1") as worker:
        worker.claim(BATCH)
        while left:
            left -= {job.id for job in worker.held}
            jobs.enqueue(BATCH)
            worker.end_and_claim(BATCH)
            rounds += 1
    assert rounds <= 60


@pytest.mark.parametrize("keys", [1, 40])
def test_a_backlog_is_not_starved_by_lanes(jobs: Jobs, qwf_dsn: str, keys: int) -> None:
    """One to one, however many keys there are and however long their lanes are."""
    for number in range(keys):
        jobs.enqueue(1200 // keys, limit_key=f"k{number}")
    free = set(jobs.enqueue(200))
    with hand(qwf_dsn, "w1") as worker:
        done = until_done(worker, free, 20)
    assert done.total() - done[None] <= len(free) + keys * FRONT + NEAR


@pytest.mark.slow
def test_several_workers_are_no_more_than_one(jobs: Jobs, qwf_dsn: str) -> None:
    """Who lets out sees what others have moved up, and takes no place twice."""
    for number in range(10):
        jobs.enqueue(150, limit_key=f"k{number}")
    jobs.enqueue(600)
    done: Counter[str | None] = Counter()
    with ExitStack() as stack:
        workers = [stack.enter_context(hand(qwf_dsn, f"w{number}")) for number in range(4)]
        for worker in workers:
            worker.marks = Marks(3600.0)
            worker.claim(BATCH)
        while done[None] < 500:
            for worker in workers:
                done.update(job.limit_key for job in worker.held)
                worker.end_and_claim(BATCH)
    keyed = done.total() - done[None]
    assert 200 <= keyed <= 500 + 10 * FRONT + NEAR


@pytest.mark.slow
def test_keys_take_turns_beside_a_backlog(jobs: Jobs, qwf_dsn: str) -> None:
    """None of many has much more than another while all of them wait."""
    keys = [f"host:{number}" for number in range(50)]
    cap(jobs.connection, "host:*", 4)
    for key in keys:
        jobs.enqueue(100, limit_key=key)
    jobs.enqueue(5000)
    done: Counter[str | None] = Counter()
    with hand(qwf_dsn, "w1") as worker:
        worker.claim(50)
        while done.total() < 3000:
            done.update(job.limit_key for job in worker.held)
            worker.end_and_claim(50)
    assert done[None] >= 1000
    assert done.total() - done[None] >= 1000
    assert min(done[key] for key in keys) >= max(done[key] for key in keys) / 2


def test_nobody_passes_who_came_before(jobs: Jobs, qwf_dsn: str) -> None:
    """Those of a key that are younger than a backlog are behind that, and move up when it is done."""
    cap(jobs.connection, KEY, 2)
    jobs.enqueue(FRONT + 4, limit_key=KEY)
    older = set(jobs.enqueue(300))
    younger = set(jobs.enqueue(20, limit_key=KEY))
    jobs.enqueue(1000)
    order: list[int] = []
    with hand(qwf_dsn, "w1") as worker:
        worker.claim(BATCH)
        while younger - set(order):
            order += [job.id for job in worker.held]
            LaneWalk().step(jobs.connection, BY_NAME)
            worker.end_and_claim(BATCH)
    first = min(order.index(job) for job in younger)
    assert older <= set(order[: first + BATCH])
    assert len(order) <= FRONT + 4 + 300 + 20 * BATCH + 2 * BATCH


def test_priorities_keep_their_meaning(jobs: Jobs, qwf_dsn: str) -> None:
    """A job out of a lane passes those of its own priority alone."""
    cap(jobs.connection, KEY, 1)
    keyed = set(jobs.enqueue(limit_key=KEY, priorities=(4,) * 40))
    urgent = set(jobs.enqueue(priorities=(6,) * 300))
    jobs.enqueue(priorities=(4,) * 500)
    order: list[int] = []
    with hand(qwf_dsn, "w1") as worker:
        worker.claim(BATCH)
        while keyed - set(order):
            order += [job.id for job in worker.held]
            worker.end_and_claim(BATCH)
    assert urgent == set(order[:300])
    assert len(order) <= 300 + 40 * BATCH + BATCH


def test_whoever_lets_out(jobs: Jobs, qwf_dsn: str) -> None:
    """An operator and the walk know of no marks, and look from the head on; so do other queues' workers."""
    cap(jobs.connection, KEY, 0)
    keyed = jobs.enqueue(3, limit_key=KEY, queue="load")
    jobs.enqueue(2, limit_key=KEY)
    jobs.enqueue(1000, queue="load")
    with hand(qwf_dsn, "w1", queue="load") as load, hand(qwf_dsn, "w2") as fetch:
        for worker in (load, fetch):
            worker.marks = Marks(3600.0)
            worker.claim(BATCH)
        load.end()
        cap(jobs.connection, KEY, 1)
        assert admit(jobs.connection, [KEY]) == 1
        assert keyed[0] in {job.id for job in load.claim(BATCH)}
        fetch.claim(BATCH)
        load.end()
        assert keyed[1] in {job.id for job in load.claim(BATCH)}
        jobs.connection.execute("UPDATE limit_slots SET lease_expires_at = now() - interval '1 s'")
        LaneWalk().step(jobs.connection, BY_NAME)
        load.end([job for job in load.held if job.id != keyed[1]])
        assert {job.limit_key for job in fetch.claim(1)} | {job.limit_key for job in load.claim(BATCH)} == {
            None,
            KEY,
        }


def test_another_worker_finds_what_moved_up_below_its_marks(jobs: Jobs, qwf_dsn: str) -> None:
    """At the latest when it looks at everything again, once per poll."""
    cap(jobs.connection, KEY, 1)
    keyed = jobs.enqueue(3, limit_key=KEY)
    jobs.enqueue(1000)
    with hand(qwf_dsn, "w1") as one, hand(qwf_dsn, "w2") as two:
        one.marks, two.marks = Marks(3600.0), Marks(1.0)
        assert keyed[0] in {job.id for job in one.claim(BATCH)}
        now = time.monotonic()
        two.held += two.claim_session.claim(two.marks, now, limit=200)
        two.end(two.held[:100], "queued")
        # Who lets out does not claim; the other has come further by now, and has given back what it passed.
        one.end()
        assert where(jobs.connection, jobs.table, KEY) == {"completed": 1, "queued": 1, "lane": 1}
        assert keyed[1] not in {job.id for job in two.claim_session.claim(two.marks, now + 0.5, limit=BATCH)}
        assert keyed[1] in {job.id for job in two.claim_session.claim(two.marks, now + 1.5, limit=BATCH)}
