"""A full limit stands in nobody's way, and its jobs go on as soon as there is room, without a poll."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from support.processes.workers import until
from support.rows.claim_sessions import CLEAR_LIMITS, cap, hand, holders, where
from support.rows.jobs import Jobs, ending, jobs_of

from queue_workflows.engine.outcomes import Stop
from queue_workflows.repositories.limits.lanes import LANE_DELAY_S, LIMIT_FULL, LaneRepository
from queue_workflows.repositories.limits.slots import SlotRepository, Want
from queue_workflows.roles.worker.claims.session import ClaimSession
from queue_workflows.states import JobFamily

KEY = "host:example.org"


@pytest.fixture(params=["node", "ingest"])
def jobs(request: pytest.FixtureRequest, qwf_dsn: str) -> Iterator[Jobs]:
    """An empty table of each family, and no limits."""
    with jobs_of(request.param, qwf_dsn) as jobs:
        jobs.connection.execute(CLEAR_LIMITS)
        yield jobs


def lanes(jobs: Jobs) -> LaneRepository:
    return LaneRepository(jobs.connection, jobs.repository.family)


def test_what_has_no_slot_waits_beside_the_queue(jobs: Jobs, qwf_dsn: str) -> None:
    """As many as the cap are claimed, and what stands behind the others; nothing is counted for these."""
    cap(jobs.connection, KEY, 2)
    limited = jobs.enqueue(5, limit_key=KEY)
    free = jobs.enqueue(2)
    with hand(qwf_dsn, "w1", jobs.family) as worker:
        assert [job.id for job in worker.claim(7)] == [*limited[:2], *free]
        assert holders(jobs.connection, KEY) == limited[:2]
        assert where(jobs.connection, jobs.table, KEY) == {"running": 2, "lane": 3}
        rows = [jobs.seen(job, "failures", "hold_reason", "hold_key", "claimed_by") for job in limited[2:]]
        assert rows == [(0, LIMIT_FULL, KEY, None)] * 3
        assert worker.claim(7) == []


def test_a_key_of_cap_one_runs_back_to_back(jobs: Jobs, qwf_dsn: str) -> None:
    """Each end brings the next one, in the order of the queue, without another look at it."""
    cap(jobs.connection, KEY, 1)
    ids = jobs.enqueue(priorities=(5, 9, 5, 5), limit_key=KEY)
    order = [ids[1], ids[0], ids[2], ids[3]]
    with hand(qwf_dsn, "w1", jobs.family) as worker:
        seen = [worker.claim()[0].id]
        while worker.held:
            assert len(holders(jobs.connection, KEY)) == 1
            seen += [job.id for job in worker.end_and_claim()]
        assert seen == order
    assert holders(jobs.connection, KEY) == []
    assert {row["status"] for row in jobs.rows()} == {"completed"}


def test_all_that_a_batch_has_room_for(jobs: Jobs, qwf_dsn: str) -> None:
    """A worker with many hands takes as many of a key as the cap, and of a key without one all."""
    cap(jobs.connection, "host:*", 3)
    jobs.enqueue(10, limit_key=KEY)
    jobs.enqueue(10, limit_key="other")
    with hand(qwf_dsn, "w1", jobs.family) as worker:
        worker.claim(20)
        worker.claim(20)
        counts = [sum(job.limit_key == key for job in worker.held) for key in (KEY, "other")]
        assert counts == [3, 10]
        worker.end()
        assert len(worker.claim(20)) == 3


def test_a_closed_key_waits_and_another_runs(jobs: Jobs, qwf_dsn: str) -> None:
    """A cap of 0 holds all of its jobs, for ever; raised, they run."""
    cap(jobs.connection, KEY, 0)
    jobs.enqueue(3, limit_key=KEY)
    (other,) = jobs.enqueue(limit_key="other")
    with hand(qwf_dsn, "w1", jobs.family) as worker:
        assert [job.id for job in worker.claim(5)] == [other]
        worker.end()
        assert worker.claim(5) == []
        assert lanes(jobs).admit([KEY]) == 0
        cap(jobs.connection, KEY, 2)
        assert lanes(jobs).admit([KEY]) == 2
        assert len(worker.claim(5)) == 2


@pytest.mark.parametrize("status", ["completed", "failed", "queued", "scheduled"])
def test_every_end_gives_the_slot_back(jobs: Jobs, qwf_dsn: str, status: str) -> None:
    """Also one that is no end of the job; the next one of the key comes out of its lane."""
    cap(jobs.connection, KEY, 1)
    ids = jobs.enqueue(2, limit_key=KEY)
    later = {"delay_s": 600.0} if status == "scheduled" else {}
    with hand(qwf_dsn, "w1", jobs.family) as worker, hand(qwf_dsn, "w2", jobs.family) as other:
        assert [job.id for job in worker.claim()] == ids[:1]
        assert other.claim() == []
        worker.end(status=status, **later)
        assert holders(jobs.connection, KEY) == []
        first_again = status == "queued"
        assert jobs.seen(ids[not first_again], "status") == ("queued",)
        assert [job.id for job in other.claim()] == [ids[not first_again]]


def test_a_cancel_while_it_is_put_aside_ends_it(jobs: Jobs, qwf_dsn: str) -> None:
    """A job that somebody cancels in its lane is over."""
    cap(jobs.connection, KEY, 1)
    ids = jobs.enqueue(2, limit_key=KEY)
    with hand(qwf_dsn, "w1", jobs.family) as worker:
        worker.claim(2)
        jobs.repository.cancel(ids[1])
        worker.end()
    assert [row["status"] for row in jobs.rows()] == ["completed", "cancelled"]


def test_a_slot_freed_while_another_goes_into_the_lane_is_seen(jobs: Jobs, qwf_dsn: str) -> None:
    """Whichever of the two commits last sees the other, so nobody is left to a poll."""
    cap(jobs.connection, KEY, 1)
    family = JobFamily(jobs.family)
    for end_comes_first in (True, False):
        jobs.enqueue(2, limit_key=KEY)
        with hand(qwf_dsn, "w1", jobs.family) as worker, hand(qwf_dsn, "w2", jobs.family) as other:
            worker.claim()
            (late,) = jobs.claim("w2")
            assert SlotRepository(other.connection).take([Want(KEY, family, late.fence)], lease_s=60).full
            put = ending(late, "scheduled", delay_s=LANE_DELAY_S, hold_reason=LIMIT_FULL, hold_key=KEY)
            if end_comes_first:
                worker.end()
                jobs.repository.end(put)
                assert lanes(jobs).admit([KEY]) == 1
            else:
                with worker.connection.transaction():
                    SlotRepository(worker.connection).free(worker.terms.kept.of([worker.held[0].fence]))
                    jobs.repository.end(put)
                    assert lanes(jobs).admit([KEY]) == 0
                worker.end()
            assert jobs.seen(late.id, "status") == ("queued",)
            other.claim()
            other.end()


def test_a_slot_given_back_between_the_look_and_the_lane(jobs: Jobs, qwf_dsn: str) -> None:
    """The worker that puts its job into the lane looks for a free slot after that, and has the job again."""
    cap(jobs.connection, KEY, 1)
    ids = jobs.enqueue(2, limit_key=KEY)
    with hand(qwf_dsn, "w1", jobs.family) as worker, hand(qwf_dsn, "w2", jobs.family) as other:
        worker.claim()
        look = other.claim_session._slot_claims._slots.take

        def look_and_be_late(wants: Any, **more: Any) -> Any:
            taken = look(wants, **more)
            if worker.held:
                worker.end()
            return taken

        other.claim_session._slot_claims._slots.take = look_and_be_late  # type: ignore[method-assign]
        assert [job.id for job in other.claim()] == ids[1:]


def test_the_lane_is_looked_at_when_the_slot_is_seen_to_be_free(jobs: Jobs, qwf_dsn: str) -> None:
    """The end is committed while what comes after it still waits for a lock, with and without a claim."""
    cap(jobs.connection, KEY, 1)
    jobs.enqueue(3, limit_key=KEY)
    with hand(qwf_dsn, "w1", jobs.family) as worker:
        worker.claim(3)
        for end in (worker.end_and_claim, worker.end):
            running = worker.held[0].id
            with psycopg.connect(qwf_dsn) as blocking:
                blocking.execute("LOCK TABLE concurrency_limits IN ACCESS EXCLUSIVE MODE")
                ending_it = threading.Thread(target=end)
                ending_it.start()
                until(lambda: blocked_by(jobs, blocking))
                assert holders(jobs.connection, KEY) == []
                assert jobs.seen(running, "status") == ("completed",)
            ending_it.join()
        assert where(jobs.connection, jobs.table, KEY) == {"completed": 2, "queued": 1}


def test_a_slot_that_is_given_back_during_a_renewal_is_not_taken_again(jobs: Jobs, qwf_dsn: str) -> None:
    """The guardian's renewal comes too late for a job that has just ended, and leaves its slot alone."""
    cap(jobs.connection, KEY, 1)
    jobs.enqueue(limit_key=KEY)
    with hand(qwf_dsn, "w1", jobs.family) as worker:
        held = [SimpleNamespace(job=job) for job in worker.claim()]
        forget = worker.terms.kept.forget
        worker.terms.kept.forget = lambda fences: None  # type: ignore[method-assign]
        worker.end()
        assert ClaimSession(worker.terms, jobs.connection).renew(held) == {}  # type: ignore[arg-type]
        assert holders(jobs.connection, KEY) == []
        forget([one.job.fence for one in held])
        assert not worker.terms.kept


@pytest.mark.parametrize("is_taken", [False, True])
def test_a_slot_that_the_server_forgot_is_taken_again(jobs: Jobs, qwf_dsn: str, is_taken: bool) -> None:
    """With the next renewal; a job whose slot is another's by then is told to go back."""
    cap(jobs.connection, KEY, 1)
    jobs.enqueue(2, limit_key=KEY)
    told: list[Any] = []
    with hand(qwf_dsn, "w1", jobs.family) as worker, hand(qwf_dsn, "w2", jobs.family) as other:
        held = [SimpleNamespace(job=job, tell=lambda why, *_: told.append(why)) for job in worker.claim()]
        jobs.connection.execute("UPDATE limit_slots SET lease_expires_at = '-infinity'")
        if is_taken:
            assert len(other.claim()) == 1
        assert list(ClaimSession(worker.terms, jobs.connection).renew(held)) == [held[0].job.id]  # type: ignore[arg-type]
        assert holders(jobs.connection, KEY) == [(other if is_taken else worker).held[0].id]
        assert told == ([Stop.RELEASE] if is_taken else [])
        worker.end()
        assert len(holders(jobs.connection, KEY)) == is_taken


def blocked_by(jobs: Jobs, blocking: psycopg.Connection) -> bool:
    """Whether a session waits for a lock of this one."""
    sql = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
    return jobs.connection.execute(sql, [blocking.info.backend_pid]).fetchone() == (1,)


def test_keys_of_two_queues_take_turns(qwf_dsn: str) -> None:
    """A key's slot goes to the queue whose first job is older, and a queue that nobody serves keeps none."""
    with jobs_of("ingest", qwf_dsn) as jobs:
        jobs.connection.execute(CLEAR_LIMITS)
        cap(jobs.connection, KEY, 1)
        for queue in ("fetch", "load", "fetch", "load", "fetch", "load"):
            jobs.enqueue(limit_key=KEY, queue=queue)
        with hand(qwf_dsn, "w1") as fetch, hand(qwf_dsn, "w2", queue="load") as load:
            (first,) = fetch.claim(3)
            assert load.claim(3) == []
            ended = [first.queue]
            workers = {"fetch": fetch, "load": load}
            for _ in range(4):
                workers[ended[-1]].end_and_claim()
                (following,) = [job for each in workers.values() for job in each.held or each.claim()]
                ended.append(following.queue)
            assert ended == ["fetch", "load", "fetch", "load", "fetch"]
            workers["fetch"].end()
            assert where(jobs.connection, jobs.table, KEY) == {"completed": 5, "queued": 1}
            jobs.enqueue(3, limit_key=KEY)
            while fetch.claim():
                fetch.end()
            assert where(jobs.connection, jobs.table, KEY) == {"completed": 8, "queued": 1}
