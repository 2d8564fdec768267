"""However many jobs a limit's key has, few of them stand in front of others: they wait in the key's lane."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest
from support.rows.claim_sessions import CLEAR_LIMITS, cap, hand, holders, where
from support.rows.jobs import Jobs, ending, jobs_of
from support.stages.ticking import away_since, pass_once

from queue_workflows.engine.limits.lane_upkeep import LaneWalk, admit, free_left_by
from queue_workflows.repositories import (
    IngestJobRepository,
    NewIngestJob,
    NewNodeJob,
    NodeJobRepository,
    RunRepository,
    ScheduleRepository,
)
from queue_workflows.repositories.limits.lanes import FRONT, MENDED_AT_ONCE
from queue_workflows.repositories.limits.slots import SlotRepository
from queue_workflows.repositories.sql.families import BY_NAME
from queue_workflows.states import JobStatus

KEY = "host:example.org"


@pytest.fixture
def jobs(qwf_dsn: str) -> Iterator[Jobs]:
    """An empty table of ingest jobs, and no limits."""
    with jobs_of("ingest", qwf_dsn) as jobs:
        jobs.connection.execute(CLEAR_LIMITS)
        yield jobs


def test_enqueued_one_by_one_or_many_at_once_the_first_stand_in_front(jobs: Jobs) -> None:
    """Each key by itself and in each queue; who has no key, and who is for later, is not looked at."""
    for _ in range(FRONT + 3):
        jobs.repository.enqueue("task", queue="fetch", limit_key="single")
    jobs.enqueue(FRONT - 1, limit_key="many")
    jobs.enqueue(4, limit_key="many")
    jobs.repository.enqueue("task", queue="fetch", limit_key="many")
    jobs.enqueue(2, limit_key="many", queue="load")
    jobs.enqueue(2, limit_key="many", delay=600)
    jobs.enqueue(3)
    assert where(jobs.connection, jobs.table, "single") == {"queued": FRONT, "lane": 3}
    assert where(jobs.connection, jobs.table, "many") == {"queued": FRONT + 2, "lane": 4, "scheduled": 2}
    assert sum(row["status"] == "queued" for row in jobs.rows()) == 2 * FRONT + 2 + 3


def test_retried_many_at_once_the_first_stand_in_front(jobs: Jobs) -> None:
    """Page by page, of each key by itself; those that wait in front already count, and none is lost."""
    jobs.enqueue(3, limit_key="many")
    waiting = {row["id"] for row in jobs.rows()}
    ids = jobs.enqueue(3 * FRONT, limit_key="many") + jobs.enqueue(2, limit_key="few") + jobs.enqueue(2)
    assert len(jobs.repository.cancel_many(ids)) == len(ids)
    assert len(jobs.repository.retry_many(ids[: 2 * FRONT], actor="ann")) == 2 * FRONT
    assert where(jobs.connection, jobs.table, "many") == {
        "queued": FRONT,
        "lane": FRONT + 3,
        "cancelled": FRONT,
    }
    rest = ids[2 * FRONT :]
    assert jobs.repository.retry_many(rest, actor="ann") == dict.fromkeys(rest, 2)
    assert where(jobs.connection, jobs.table, "many") == {"queued": FRONT, "lane": 2 * FRONT + 3}
    assert where(jobs.connection, jobs.table, "few") == {"queued": 2}
    assert sum(row["status"] == "queued" for row in jobs.rows()) == FRONT + 2 + 2
    with hand(jobs.connection.info.dsn, "w1") as worker:
        done: set[int] = set()
        while claimed := worker.claim(8):
            done |= {job.id for job in claimed}
            worker.end()
            admit(jobs.connection, ["many"])
    assert done == waiting | set(ids)


def test_many_of_several_keys_in_one_call(jobs: Jobs) -> None:
    """The first of each key, in the order of the call; a key that was taken already is found."""
    made = jobs.repository.enqueue_many(
        NewIngestJob(
            task_name="task",
            queue="fetch",
            limit_key=("a", "b", None)[n % 3],
            dedupe_key=f"{n}",
            args={"n": n},
        )
        for n in range(3 * FRONT + 9)
    )
    for key in ("a", "b"):
        assert where(jobs.connection, jobs.table, key) == {"queued": FRONT, "lane": 3}
        theirs = sorted(
            (row for row in jobs.rows() if row["limit_key"] == key), key=lambda row: row["position"]
        )
        assert [row["status"] for row in theirs] == ["queued"] * FRONT + ["scheduled"] * 3
    again = jobs.repository.enqueue_many(
        NewIngestJob(task_name="task", queue="fetch", limit_key="a", dedupe_key=f"{n}") for n in range(9)
    )
    assert again == [(one.id, False) for one in made[:9]]


def test_nodes_go_into_the_lane_as_they_are_inserted(qwf_dsn: str) -> None:
    """The first of each key in front, whoever comes later; not who is for later or needs no worker."""
    with jobs_of("node", qwf_dsn) as nodes:
        nodes.connection.execute(CLEAR_LIMITS)
        nodes.enqueue(FRONT + 3, limit_key="many")
        nodes.enqueue(2, limit_key="many", queue="gpu")
        nodes.enqueue(2, limit_key="many", delay=600)
        nodes.enqueue(2, limit_key="many", status=JobStatus.SKIPPED)
        nodes.enqueue(1, limit_key="many", queue="hooks", pinned_host="here")
        nodes.enqueue(3)
        assert where(nodes.connection, nodes.table, "many") == {
            "queued": FRONT + 3,
            "lane": 3,
            "scheduled": 2,
            "skipped": 2,
        }
        run = RunRepository(nodes.connection).insert("film", spec={}, spec_hash="h").id
        repository = NodeJobRepository(nodes.connection)
        one = NewNodeJob(run_id=run, node_id="one", queue="cpu", limit_key="many")
        assert repository.open_many([one])[0].created
        with nodes.connection.pipeline():
            repository.send_open([NewNodeJob(run_id=run, node_id="two", queue="cpu", limit_key="many")])
        assert where(nodes.connection, nodes.table, "many")["lane"] == 5
        assert sum(row["status"] == "queued" and row["limit_key"] is None for row in nodes.rows()) == 3


def test_a_node_that_is_opened_again_waits_in_the_lane_from_then_on(qwf_dsn: str) -> None:
    """What it went through before says nothing of how long it is on hold."""
    with jobs_of("node", qwf_dsn) as nodes:
        nodes.connection.execute(CLEAR_LIMITS)
        run = RunRepository(nodes.connection).insert("film", spec={}, spec_hash="h").id
        node = NewNodeJob(run_id=run, node_id="draw", queue="cpu", limit_key="many")
        ((job, _),) = nodes.repository.open_many([node])
        held = nodes.one()
        nodes.repository.end(ending(held))
        nodes.enqueue(FRONT, limit_key="many")
        before = nodes.row(job)["started_at"]
        assert nodes.repository.open_many([node]) == [(job, True)]
        status, reason, key, generation, started = nodes.seen(
            job, "status", "hold_reason", "hold_key", "generation", "started_at"
        )
        assert (status, reason, key, generation) == ("scheduled", "limit_full", "many", 2)
        assert started > before


def test_ticks_go_into_the_lane_as_they_are_inserted(jobs: Jobs, qwf_dsn: str) -> None:
    """A schedule that catches up has a crowd; its own key and that of its task count alike."""
    schedules = ScheduleRepository(jobs.connection)
    jobs.connection.execute("TRUNCATE schedules")
    for name, key in (("keyed", "many"), ("of its task", None), ("free", None)):
        schedules.upsert(
            name, cron="* * * * *", task_name="tidy", queue="fetch", limit_key=key, catch_up="all",
            catch_up_cap=FRONT + 4,
        )  # fmt: skip
        away_since(jobs.connection, name, timedelta(hours=2))
    keys = {"of its task": "one more"}
    pass_once(
        lambda: psycopg.connect(qwf_dsn, autocommit=True),
        options=lambda schedule: {"limit_key": keys.get(schedule.name)},
    )
    for key in ("many", "one more"):
        assert where(jobs.connection, jobs.table, key) == {"queued": FRONT, "lane": 4}
    assert sum(row["status"] == "queued" for row in jobs.rows()) == 2 * FRONT + FRONT + 4


@pytest.mark.parametrize(("mine", "other"), [("ingest", "node"), ("node", "ingest")])
def test_two_families_of_one_key_take_turns(qwf_dsn: str, mine: str, other: str) -> None:
    """Who has ended a job claims at once, and yet not before the other one, of which few or many wait."""
    with jobs_of(mine, qwf_dsn) as busy, jobs_of(other, qwf_dsn) as woken:
        busy.connection.execute(CLEAR_LIMITS)
        cap(busy.connection, KEY, 1)
        busy.enqueue(200, limit_key=KEY)
        with hand(qwf_dsn, "w1", mine) as one, hand(qwf_dsn, "w2", other) as two:
            one.claim(1)
            woken.enqueue(5, limit_key=KEY)
            order: list[str] = []
            while order.count(other) < 5 and len(order) < 30:
                two.claim(1)
                at_work = one if one.held else two
                order += [job.family for job in at_work.held]
                # Whoever has the slot ends its job, and asks for the next before anybody is awake.
                at_work.end_and_claim(1)
                assert len(holders(busy.connection, KEY)) <= 1
                if not one.held:
                    one.claim(1)
            assert len(order) <= 2 * 5 + 2


@pytest.mark.parametrize(("mine", "other"), [("ingest", "node"), ("node", "ingest")])
def test_a_family_with_a_few_in_front_all_the_time_is_no_exception(
    qwf_dsn: str, mine: str, other: str
) -> None:
    """It would never use its lane, and take each slot by the claim that comes with an end."""
    with jobs_of(mine, qwf_dsn) as busy, jobs_of(other, qwf_dsn) as woken:
        busy.connection.execute(CLEAR_LIMITS)
        cap(busy.connection, KEY, 1)
        busy.enqueue(3, limit_key=KEY)
        with hand(qwf_dsn, "w1", mine) as one, hand(qwf_dsn, "w2", other) as two:
            one.claim(1)
            (waiting,) = woken.enqueue(1, limit_key=KEY)
            turns = 0
            while not two.held and turns < 9:
                turns += 1
                busy.enqueue(1, limit_key=KEY)
                one.end_and_claim(1)
                two.claim(1)
            assert [job.id for job in two.held] == [waiting]


def test_a_family_of_which_nobody_claims_keeps_no_slot_from_the_other(qwf_dsn: str) -> None:
    """One of its jobs is let out and stands there; after that one walk the others go on by themselves."""
    with jobs_of("node", qwf_dsn) as dead, jobs_of("ingest", qwf_dsn) as alive:
        alive.connection.execute(CLEAR_LIMITS)
        cap(alive.connection, KEY, 1)
        dead.enqueue(FRONT + 5, limit_key=KEY)
        alive.enqueue(40, limit_key=KEY)
        with hand(qwf_dsn, "w1", "node") as gone, hand(qwf_dsn, "w2") as worker:
            worker.claim(1)
            # So that all of its jobs stand in the lane.
            assert gone.claim(1) == []
            done = 0
            for _ in range(41):
                done += len(worker.held)
                if not worker.end_and_claim(1):
                    LaneWalk().step(alive.connection, BY_NAME)
                    worker.claim(1)
            assert done == 40
        assert where(dead.connection, dead.table, KEY) == {"queued": 1, "lane": FRONT + 4}


def test_a_serializable_caller_looks_at_nobody(jobs: Jobs, qwf_dsn: str) -> None:
    """It takes no dependency on others of its key; the claim puts aside what is too much."""
    with psycopg.connect(qwf_dsn) as connection:
        connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        repository = IngestJobRepository(connection)
        for _ in range(FRONT + 1):
            repository.enqueue("task", queue="fetch", limit_key=KEY)
        repository.enqueue_many(NewIngestJob(task_name="t", queue="fetch", limit_key=KEY) for _ in range(2))
        locks = connection.execute(
            "SELECT count(*) FROM pg_locks WHERE mode = 'SIReadLock' AND pid = pg_backend_pid()"
        )
        assert locks.fetchone() == (0,)
        connection.commit()
    assert where(jobs.connection, jobs.table, KEY) == {"queued": FRONT + 3}


def test_what_falls_due_goes_into_the_lane(jobs: Jobs) -> None:
    """A crowd that was for later is no crowd in front; retries of others are."""
    jobs.enqueue(FRONT + 5, limit_key=KEY, delay=3600)
    jobs.enqueue(3, delay=3600)
    jobs.connection.execute("UPDATE ingest_jobs SET run_at = now()")
    assert jobs.repository.promote() == FRONT + 8
    assert where(jobs.connection, jobs.table, KEY) == {"queued": FRONT, "lane": 5}
    jobs.enqueue(2, limit_key=KEY, delay=3600)
    jobs.connection.execute("UPDATE ingest_jobs SET run_at = now() WHERE hold_reason IS NULL")
    jobs.repository.promote()
    assert where(jobs.connection, jobs.table, KEY) == {"queued": FRONT, "lane": 7}
    assert sum(row["status"] == "queued" for row in jobs.rows()) == FRONT + 3


@pytest.mark.parametrize("most", [None, 1, 5])
def test_a_key_with_ten_is_done_before_one_with_a_thousand(
    jobs: Jobs, qwf_dsn: str, most: int | None
) -> None:
    """The ten wait for no more than about as many jobs as may stand in front, for each of the keys."""
    if most is not None:
        cap(jobs.connection, "host:*", most)
    for key in ("host:big", "host:huge"):
        jobs.enqueue(1000, limit_key=key)
    small = set(jobs.enqueue(10, limit_key="host:small"))
    done = 0
    with hand(qwf_dsn, "w1") as worker:
        worker.claim(8)
        while small:
            done += len(worker.held)
            small -= {job.id for job in worker.held}
            worker.end_and_claim(8)
    # In numbers, as `docs/how-to/limit.md` has them.
    assert done <= 3 * (16 + 10) + 8


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_are_done_before_a_hundred_thousand(jobs: Jobs, qwf_dsn: str) -> None:
    """A key with many jobs lets those of another pass behind about as many as stand in front of all."""
    jobs.enqueue(FRONT, limit_key="host:huge")
    jobs.connection.execute(
        "INSERT INTO ingest_jobs (task_name, queue, limit_key, status, hold_reason, hold_key, run_at)"
        " SELECT 'task', 'fetch', 'host:huge', 'scheduled', 'limit_full', 'host:huge', now() + interval '9 y'"
        " FROM generate_series(1, 100000)"
    )
    small = set(jobs.enqueue(10, limit_key="host:small"))
    done = 0
    with hand(qwf_dsn, "w1") as worker:
        worker.claim(8)
        while small:
            done += len(worker.held)
            small -= {job.id for job in worker.held}
            worker.end_and_claim(8)
    assert done <= 2 * FRONT + 10 + 8


def test_a_key_without_a_cap_fills_batches(jobs: Jobs, qwf_dsn: str) -> None:
    """What may stand in front grows with what is claimed of the key, so that no worker waits for its lane."""
    jobs.enqueue(1000, limit_key=KEY)
    sizes = []
    with hand(qwf_dsn, "w1") as worker:
        sizes.append(len(worker.claim(200)))
        while worker.held:
            sizes.append(len(worker.end_and_claim(200)))
    assert sum(sizes) == 1000
    assert sizes[0] == FRONT
    assert max(sizes) == 200
    assert len(sizes) <= 12


def test_the_walk_finds_what_nobody_told(jobs: Jobs, qwf_dsn: str) -> None:
    """Slots whose lease is over, and lanes without anybody in front; all lanes, some at a time."""
    cap(jobs.connection, KEY, 1)
    jobs.enqueue(3, limit_key=KEY)
    with hand(qwf_dsn, "w1") as worker:
        worker.claim(3)
        jobs.connection.execute("UPDATE limit_slots SET lease_expires_at = now() - interval '1 s'")
        walk = LaneWalk()
        walk.step(jobs.connection, BY_NAME)
        assert where(jobs.connection, jobs.table, KEY) == {"running": 1, "queued": 1, "lane": 1}
    jobs.connection.execute(
        "INSERT INTO ingest_jobs (task_name, queue, status, limit_key, hold_reason, hold_key, run_at)"
        " SELECT 't', 'fetch', 'scheduled', 'k' || n, 'limit_full', 'k' || n, now() + interval '9 y'"
        " FROM generate_series(1, %s) AS n",
        [MENDED_AT_ONCE + 5],
    )
    walk = LaneWalk()
    walk.step(jobs.connection, BY_NAME)
    left = jobs.connection.execute("SELECT count(*) FROM ingest_jobs WHERE hold_reason = 'limit_full'")
    assert left.fetchone() == (7,)
    walk.step(jobs.connection, BY_NAME)
    left = jobs.connection.execute("SELECT count(*) FROM ingest_jobs WHERE hold_reason = 'limit_full'")
    assert left.fetchone() == (1,)


def test_a_dead_workers_slots_are_anothers_at_once(jobs: Jobs, qwf_dsn: str) -> None:
    """Taken back with its jobs by whoever knows that it is dead, long before the slots' leases are over."""
    cap(jobs.connection, KEY, 2)
    jobs.enqueue(4, limit_key=KEY)
    with hand(qwf_dsn, "w1") as dead, hand(qwf_dsn, "w2") as other:
        dead.claim(2)
        jobs.repository.reclaim_worker("w1", max_crashes=9, crashed=False)
        free_left_by(jobs.connection, ["w1"])
        assert len(other.claim(4)) == 2
        assert other.claim(4) == []
        late = list(dead.terms.kept.of([job.fence for job in dead.held]))
        assert SlotRepository(dead.connection).free(late) == []
        assert len(other.terms.kept.of([job.fence for job in other.held])) == 2


def test_room_made_by_an_operator_is_used_at_once(jobs: Jobs, qwf_dsn: str) -> None:
    """By keys that share a pattern too."""
    cap(jobs.connection, "host:*", 0)
    for key in ("host:a", "host:b"):
        jobs.enqueue(3, limit_key=key)
    with hand(qwf_dsn, "w1") as worker:
        assert worker.claim(9) == []
        cap(jobs.connection, "host:*", 2)
        assert admit(jobs.connection, ["host:a", "host:b", "host:c"]) == 4
        assert admit(jobs.connection, []) == 0
        assert len(worker.claim(9)) == 4
