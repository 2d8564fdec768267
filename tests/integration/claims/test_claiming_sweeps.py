"""Promote what is due or freed, reclaim what lapsed, and who is blamed for the death of a worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.rows.jobs import Jobs, ending, jobs_of
from support.servers.cluster import Cluster
from support.stages.wakes import Ear

from queue_workflows.db import bootstrap
from queue_workflows.repositories.claims.sweep import PROMOTED_AT_ONCE, RECLAIMED_AT_ONCE
from queue_workflows.repositories.runs.outbox import DispatchRepository
from queue_workflows.repositories.sql.families import HOLDS_KEPT

LONGEST = 300.0


@pytest.fixture(params=["node", "ingest"])
def jobs(request: pytest.FixtureRequest, qwf_dsn: str) -> Iterator[Jobs]:
    """An empty table of each family."""
    with jobs_of(request.param, qwf_dsn) as jobs:
        yield jobs


def sweep(jobs: Jobs, **more: Any) -> dict[int, tuple[Any, ...]]:
    """One reclaim: what became of each job, and whether it is blamed."""
    taken = jobs.repository.reclaim(**{"max_crashes": 3, "lease_s": LONGEST} | more)
    return {each.id: (each.status, each.counted, each.suspect) for each in taken}


def lost_to_a_sweep(jobs: Jobs, worker: str = "w1", **more: Any) -> tuple[Any, ...]:
    """A suspect or a plain job, claimed alone, whose worker dies; what the sweep made of it."""
    job = jobs.one(worker, alone=True)
    jobs.lapse(job.id)
    return sweep(jobs, **more)[job.id]


def test_due_jobs_are_queued_at_the_end_in_the_order_in_which_they_fell_due(jobs: Jobs) -> None:
    """A retry does not pass those who waited meanwhile, and nobody who is not due moves."""
    later, soon, never = jobs.enqueue(3, delay=3600)
    (waiting,) = jobs.enqueue()
    move = f"UPDATE {jobs.table} SET run_at = now() - make_interval(secs => %s) WHERE id = %s"
    jobs.connection.execute(move, [1, later])
    jobs.connection.execute(move, [2, soon])
    assert jobs.repository.promote() == 2
    assert jobs.repository.promote() == 0
    assert jobs.seen(never, "status") == ("scheduled",)
    assert [job.id for job in jobs.claim(limit=9)] == [waiting, soon, later]


def test_promotion_wakes_its_queue(qwf_dsn: str) -> None:
    """An idle worker hears of a job that fell due."""
    with jobs_of("ingest", qwf_dsn) as jobs, Ear(qwf_dsn) as ear:
        jobs.enqueue(3, delay=3600)
        jobs.connection.execute("UPDATE ingest_jobs SET run_at = now()")
        assert jobs.repository.promote() == 3
        assert ear.heard() == ["fetch"] * 1


def test_promotion_is_bounded(jobs: Jobs) -> None:
    """A million that fall due at once are no statement of a million; the answer says to come again."""
    jobs.enqueue(PROMOTED_AT_ONCE + 7, delay=3600)
    jobs.connection.execute(f"UPDATE {jobs.table} SET run_at = now()")
    assert [jobs.repository.promote() for _ in range(3)] == [PROMOTED_AT_ONCE, 7, 0]


def test_a_hold_that_ends_keeps_its_place(jobs: Jobs) -> None:
    """What was put aside through no fault of its own is first in line again."""
    first, second = jobs.enqueue(2)
    jobs.repository.hold(jobs.one(), "host_lock", "gpu0", delay_s=0)
    assert jobs.repository.promote() == 1
    assert jobs.seen(first, "hold_reason", "hold_key") == (None, None)
    assert [job.id for job in jobs.claim(limit=2)] == [first, second]


def past_holds(jobs: Jobs, job_id: int) -> list[tuple[Any, ...]]:
    """What is kept of a job's holds: what for, how often, and the last attempt that was put aside."""
    names = ("reason", "key", "times", "attempt")
    return [tuple(entry[name] for name in names) for entry in jobs.row(job_id)["past_holds"] or ()]


def put_aside(jobs: Jobs, reason: str, key: str | None = None) -> None:
    """The next job is claimed, cannot run, and is back in the queue when its hold is over."""
    jobs.repository.hold(jobs.one(), reason, key, delay_s=0)
    assert jobs.repository.promote() == 1


def test_a_hold_that_is_over_leaves_a_trace(jobs: Jobs) -> None:
    """What for, since when, until when and how often; of a row of holds for one thing once."""
    (job_id,) = jobs.enqueue()
    for _ in range(3):
        put_aside(jobs, "unknown_task", "draw")
    assert past_holds(jobs, job_id) == [("unknown_task", "draw", 3, 3)]
    (entry,) = jobs.row(job_id)["past_holds"]
    job = jobs.one()
    moments = [entry["since"], entry["until"], jobs.row(job_id)["started_at"]]
    assert moments == sorted(moments)
    jobs.repository.hold(job, "limit_full", delay_s=3600)
    assert past_holds(jobs, job_id) == [("unknown_task", "draw", 3, 3)]
    jobs.connection.execute(f"UPDATE {jobs.table} SET hold_key = 'k'")
    assert jobs.repository.promote_held("limit_full", ["k"], queue=jobs.queue) == 1
    kept = [("unknown_task", "draw", 3, 3), ("limit_full", "k", 1, 4)]
    assert past_holds(jobs, job_id) == kept
    jobs.repository.complete(jobs.one(), {})
    assert past_holds(jobs, job_id) == kept


def test_an_attempt_between_two_holds_parts_them(jobs: Jobs) -> None:
    """Nobody is told that a job was on hold while it ran, which is kept too; without a key it is the same."""
    (job_id,) = jobs.enqueue()
    put_aside(jobs, "host_lock")
    put_aside(jobs, "host_lock")
    jobs.repository.release(jobs.one())
    put_aside(jobs, "host_lock")
    assert past_holds(jobs, job_id) == [
        ("host_lock", None, 2, 2),
        ("given_back", "w1", 1, 3),
        ("host_lock", None, 1, 4),
    ]


def test_past_holds_are_bounded(jobs: Jobs) -> None:
    """The last ones are kept."""
    (job_id,) = jobs.enqueue()
    for number in range(HOLDS_KEPT + 3):
        put_aside(jobs, "limit_full", f"k{number}")
    kept = [("limit_full", f"k{number}", 1, number + 1) for number in range(3, HOLDS_KEPT + 3)]
    assert past_holds(jobs, job_id) == kept


def test_a_job_that_was_never_on_hold_keeps_nothing(jobs: Jobs) -> None:
    """Neither of a retry nor of a delay."""
    (job_id,) = jobs.enqueue(delay=3600)
    jobs.connection.execute(f"UPDATE {jobs.table} SET run_at = now()")
    jobs.repository.promote()
    jobs.repository.end(ending(jobs.one(), "scheduled", delay_s=0.0, counts=True))
    jobs.repository.promote()
    jobs.repository.complete(jobs.one(), {})
    assert jobs.row(job_id)["past_holds"] is None


def test_a_cancel_ends_a_hold_and_keeps_its_trace(jobs: Jobs) -> None:
    """And so does a retry after it, which says until when the job was over."""
    (job_id,) = jobs.enqueue()
    jobs.repository.hold(jobs.one(), "host_lock", "gpu0", delay_s=3600)
    jobs.repository.cancel(job_id)
    (entry,) = jobs.row(job_id)["past_holds"]
    assert entry["until"] == jobs.row(job_id)["finished_at"]
    jobs.repository.retry_many([job_id], actor="ann")
    assert past_holds(jobs, job_id) == [("host_lock", "gpu0", 1, 1), ("over", "cancelled", 1, 1)]


def test_a_freed_key_promotes_those_who_wait_for_it(jobs: Jobs) -> None:
    """As many as there is room for, in the order of the queue, of that reason, key and queue only."""
    ids = jobs.enqueue(priorities=(5, 9, 5, 5, 5))
    keys = dict(zip(ids, ("a", "a", "a", "b", "a"), strict=True))
    for job in jobs.claim(limit=5):
        reason = "unknown_task" if job.id == ids[4] else "limit"
        jobs.repository.hold(job, reason, keys[job.id], delay_s=3600)
    assert jobs.repository.promote_held("limit", ["a"], queue="elsewhere") == 0
    assert jobs.repository.promote_held("limit", ["a"], queue=jobs.queue, limit=2) == 2
    assert [job.id for job in jobs.claim(limit=5)] == [ids[1], ids[0]]
    assert jobs.repository.promote_held("limit", ["a", "b"], queue=jobs.queue) == 2
    assert [job.id for job in jobs.claim(limit=5)] == [ids[2], ids[3]]
    assert jobs.repository.promote_held("unknown_task", ["other"], queue=jobs.queue) == 0
    assert jobs.seen(ids[4], "status", "hold_reason") == ("scheduled", "unknown_task")


def test_a_run_that_stops_ends_holds_of_its_nodes(qwf_dsn: str) -> None:
    """And keeps their traces."""
    with jobs_of("node", qwf_dsn) as jobs:
        (job_id,) = jobs.enqueue()
        jobs.repository.hold(jobs.one(), "unknown_module", "draw", delay_s=3600)
        run_id, node_id = jobs.seen(job_id, "run_id", "node_id")
        assert DispatchRepository(jobs.connection).stop(run_id, [node_id], "enough") == {node_id: 1}
        assert past_holds(jobs, job_id) == [("unknown_module", "draw", 1, 1)]


def test_what_is_waited_for_is_told_once(jobs: Jobs) -> None:
    """Of one queue and for one reason, whatever else is on hold, without those that have no key."""
    keys = ["b", "a", "b", None, "c", "a"]
    jobs.enqueue(len(keys))
    for key, job in zip(keys, jobs.claim(limit=len(keys)), strict=True):
        jobs.repository.hold(job, "limit" if key != "c" else "unknown_task", key, delay_s=3600)
    elsewhere = "gpu" if jobs.family == "node" else "load"
    jobs.enqueue(queue=elsewhere)
    (other,) = jobs.repository.claim(elsewhere, worker_id="w1", lease_s=30)
    jobs.repository.hold(other, "limit", "d", delay_s=3600)
    assert sorted(jobs.repository.held_keys("limit", queue=jobs.queue)) == ["a", "b"]
    assert jobs.repository.held_keys("limit", queue=elsewhere) == ["d"]
    assert len(jobs.repository.held_keys("limit", queue=jobs.queue, limit=1)) == 1
    assert jobs.repository.held_keys("nothing", queue=jobs.queue) == []


def test_a_key_named_twice_frees_no_more(jobs: Jobs) -> None:
    """One slot, one job."""
    jobs.enqueue(3)
    for job in jobs.claim(limit=3):
        jobs.repository.hold(job, "limit", "k", delay_s=3600)
    assert jobs.repository.promote_held("limit", ["k", "k"], queue=jobs.queue, limit=2) == 2
    assert jobs.repository.promote_held("limit", [], queue=jobs.queue) == 0


def test_a_lease_that_holds_is_left_alone(jobs: Jobs) -> None:
    """Nobody is reclaimed before the lease is over."""
    jobs.enqueue()
    jobs.one()
    assert sweep(jobs) == {}


def test_a_crash_alone_counts(jobs: Jobs) -> None:
    """To the end of its queue, claimed alone from now on, and the row says what happened."""
    job_id, behind = jobs.enqueue(2)
    jobs.one()
    jobs.lapse(job_id)
    (taken,) = jobs.repository.reclaim(max_crashes=3, lease_s=LONGEST)
    assert (taken.id, taken.status, taken.attempt, taken.lost_worker) == (job_id, "queued", 1, "w1")
    assert (taken.counted, taken.suspect) == (True, True)
    names = ("status", "position", "claimed_by", "lease_expires_at", "crash_count", "suspect", "failures")
    (last,) = jobs.seen(behind, "position")
    assert jobs.seen(job_id, *names) == ("queued", last + 1, None, None, 1, True, 0)
    (entry,) = jobs.row(job_id)["errors"]
    assert (entry["kind"], entry["worker_id"], entry["attempt"], entry["counted"]) == (
        "worker_lost",
        "w1",
        1,
        True,
    )
    assert jobs.events(job_id) == []


def test_poison_ends_as_failed_and_says_why(jobs: Jobs) -> None:
    """What kills every worker that runs it stops doing so."""
    (job_id,) = jobs.enqueue()
    assert [lost_to_a_sweep(jobs) for _ in range(3)] == [
        ("queued", True, True),
        ("queued", True, True),
        ("failed", True, True),
    ]
    status, crashes, failures, worker, errors = jobs.seen(
        job_id, "status", "crash_count", "failures", "claimed_by", "errors"
    )
    assert (status, crashes, failures, worker) == ("failed", 3, 0, "w1")
    assert errors[-1]["message"] == "it killed its worker 3 times, each time running alone"
    assert jobs.row(job_id)["finished_at"] is not None
    assert jobs.events(job_id) == jobs.ended((1, 3, "failed"))


def test_of_several_nobody_is_blamed(jobs: Jobs) -> None:
    """A worker that died with many jobs makes all of them suspect, and counts none."""
    ids = jobs.enqueue(4)
    jobs.claim(limit=4)
    jobs.lapse(*ids)
    assert sweep(jobs) == dict.fromkeys(ids, ("queued", False, True))
    assert {row["crash_count"] for row in jobs.rows()} == {0}
    assert lost_to_a_sweep(jobs) == ("queued", True, True)


def test_leases_that_lapse_one_after_the_other_are_one_crash(jobs: Jobs) -> None:
    """The last of several is not taken for one that was alone."""
    ids = jobs.enqueue(3)
    jobs.claim(limit=3)
    for job_id in ids:
        jobs.lapse(job_id)
        assert sweep(jobs) == {job_id: ("queued", False, True)}


def test_more_than_a_batch_is_one_crash(jobs: Jobs) -> None:
    """A worker with more jobs than a sweep takes leaves no last one to be blamed."""
    ids = jobs.enqueue(RECLAIMED_AT_ONCE + 1)
    jobs.claim(limit=len(ids))
    jobs.lapse(*ids)
    seen = {**sweep(jobs), **sweep(jobs)}
    assert seen == dict.fromkeys(ids, ("queued", False, True))


def test_a_worker_with_jobs_of_both_families_held_several(qwf_dsn: str) -> None:
    """One of each is not alone, whichever family is swept first."""
    for first, second in (("node", "ingest"), ("ingest", "node")):
        with jobs_of(first, qwf_dsn) as one, jobs_of(second, qwf_dsn, clear=False) as two:
            for jobs in (one, two):
                jobs.enqueue()
                jobs.lapse(jobs.one().id)
            for jobs in (one, two):
                assert list(sweep(jobs).values()) == [("queued", False, True)]


def test_a_mark_is_for_one_attempt(jobs: Jobs) -> None:
    """A job that went on alone after its sibling was lost is judged by what it does next."""
    first, second = jobs.enqueue(2)
    _, other = jobs.claim(limit=2)
    jobs.lapse(first)
    sweep(jobs)
    assert jobs.seen(second, "status", "suspect") == ("running", True)
    jobs.repository.release(other)
    jobs.connection.execute(f"UPDATE {jobs.table} SET status = 'scheduled' WHERE id = %s", [first])
    assert lost_to_a_sweep(jobs) == ("queued", True, True)


def test_a_reclaimed_job_that_was_to_be_cancelled_is(jobs: Jobs) -> None:
    """A cancel outlives the worker that it was meant for."""
    (job_id,) = jobs.enqueue()
    jobs.one()
    jobs.repository.cancel(job_id)
    jobs.lapse(job_id)
    assert sweep(jobs)[job_id][0] == "cancelled"
    assert jobs.events(job_id) == jobs.ended((1, 1, "cancelled"))


def test_a_dead_workers_jobs_are_taken_at_once(jobs: Jobs) -> None:
    """Whoever saw it die need not wait for the lease; others keep theirs."""
    first, second = jobs.enqueue(2)
    jobs.one("w1")
    jobs.one("w2")
    (taken,) = jobs.repository.reclaim_worker("w1", max_crashes=3)
    assert (taken.id, taken.status, taken.counted) == (first, "queued", True)
    assert jobs.seen(second, "status") == ("running",)
    assert jobs.repository.reclaim_worker("w1", max_crashes=3) == []


def test_an_exit_of_the_workers_own_blames_nobody(jobs: Jobs) -> None:
    """A worker that ended for want of a database, say, has not been killed by its job."""
    (job_id,) = jobs.enqueue()
    for _ in range(5):
        jobs.one(alone=True)
        (taken,) = jobs.repository.reclaim_worker("w1", max_crashes=1, crashed=False)
        assert (taken.status, taken.counted, taken.suspect) == ("queued", False, False)
    assert jobs.seen(job_id, "crash_count", "suspect") == (0, False)


@pytest.mark.parametrize(("recovered_s", "blamed"), [(None, True), (0.0, False), (0.5, False), (60.0, True)])
def test_an_outage_that_the_sweeper_saw(jobs: Jobs, recovered_s: float | None, blamed: bool) -> None:
    """Who could not renew for want of a database is no poison; an outage before that is no excuse."""
    (job_id,) = jobs.enqueue()
    jobs.one()
    renewed_a_second_ago = "started_at = now() - interval '1 s', lease_expires_at = now() - interval '0.5 s'"
    jobs.connection.execute(f"UPDATE {jobs.table} SET {renewed_a_second_ago}")
    assert sweep(jobs, lease_s=0.5, recovered_s=recovered_s) == {job_id: ("queued", blamed, blamed)}
    excuse = jobs.row(job_id)["errors"][-1]["message"] == "its lease lapsed while the database was away"
    assert excuse is not blamed


def test_ends_while_a_sweep_waits_for_nobody(qwf_dsn: str, jobs: Jobs) -> None:
    """A row that somebody is ending is passed by, and its end is what counts."""
    ids = jobs.enqueue(2)
    held = jobs.claim(limit=2)
    jobs.lapse(*ids)
    with jobs_of(jobs.family, qwf_dsn, autocommit=False, clear=False) as other:
        other.repository.end(ending(held[0]))
        jobs.connection.execute("SET lock_timeout = '2s'")
        assert list(sweep(jobs)) == [ids[1]]
        other.connection.commit()
    assert sweep(jobs) == {}
    assert jobs.seen(ids[0], "status") == ("completed",)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A migrated server that may be stopped and hurt."""
    with Cluster.primary() as cluster:
        bootstrap(cluster.dsn())
        yield cluster


@pytest.mark.slow
@pytest.mark.parametrize("family", ["node", "ingest"])
@pytest.mark.parametrize("how", ["restart", "crash"])
def test_an_outage_that_only_the_server_knows_of(cluster: Cluster, family: str, how: str) -> None:
    """After a restart, and after a crash that the postmaster survived, a lapse from before counts nothing."""
    with jobs_of(family, cluster.dsn()) as jobs:
        ids = jobs.enqueue(2)
        jobs.one("w1")
        if how == "restart":
            cluster.stop("immediate")
            cluster.start()
        else:
            cluster.crash()
    with jobs_of(family, cluster.dsn(), clear=False) as jobs:
        jobs.lapse(ids[0])
        assert sweep(jobs, lease_s=30.0) == {ids[0]: ("queued", False, False)}
        after = jobs.claim("w2", limit=2)
        jobs.repository.release(after[1])
        jobs.lapse(ids[0])
        assert sweep(jobs, lease_s=30.0) == {ids[0]: ("queued", True, True)}
