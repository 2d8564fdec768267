"""What a worker does for the jobs it holds and learns about them: renew, beat, watch; for both families."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import pytest
from support.rows.jobs import Jobs, jobs_of

from queue_workflows.errors import LeaseLost, PayloadError
from queue_workflows.repositories import Control, WorkerControlRepository


@pytest.fixture(params=["node", "ingest"])
def jobs(request: pytest.FixtureRequest, qwf_dsn: str) -> Iterator[Jobs]:
    """An empty table of each family."""
    with jobs_of(request.param, qwf_dsn) as jobs:
        yield jobs


def left(jobs: Jobs, job_id: int) -> float:
    """Seconds until the lease is over."""
    sql = f"SELECT extract(epoch FROM lease_expires_at - now())::float8 FROM {jobs.table} WHERE id = %s"
    (seconds,) = jobs.connection.execute(sql, [job_id]).fetchone()
    return seconds


def test_renewing_a_batch(jobs: Jobs) -> None:
    """All that are held get a new lease at once; the answer says which, and who is to be cancelled."""
    ids = jobs.enqueue(3)
    held = jobs.claim(limit=3, lease_s=5)
    jobs.repository.release(held[1])
    jobs.repository.cancel(ids[2])
    answer = jobs.repository.renew([job.fence for job in reversed(held)], lease_s=1000)
    assert answer.keys() == {ids[0], ids[2]}
    assert answer[ids[0]] is None
    assert answer[ids[2]] == datetime.fromisoformat(jobs.row(ids[2])["cancel_requested_at"])
    assert [left(jobs, ids[n]) > 900 for n in (0, 2)] == [True, True]


def test_a_lapsed_lease_that_nobody_took_is_renewed(jobs: Jobs) -> None:
    """Late but still the holder: nothing is lost."""
    (job_id,) = jobs.enqueue()
    job = jobs.one()
    jobs.lapse(job_id)
    assert list(jobs.repository.renew([job.fence], lease_s=1000)) == [job_id]
    assert left(jobs, job_id) > 900


def test_beats_store_progress(jobs: Jobs) -> None:
    """One or many; the last one stays to be read after the end; the answer says who is to be cancelled."""
    ids = jobs.enqueue(2)
    held = jobs.claim(limit=2)
    assert jobs.repository.beat(held[0].fence, {"fraction": 0.1}) is None
    jobs.repository.cancel(ids[1])
    beats = [(held[1].fence, '{"fraction": 0.2}'), (held[0].fence, '{"fraction": 0.3}')]
    answer = jobs.repository.beat_many(beats)
    assert [answer[each] is None for each in ids] == [True, False]
    assert [row["progress"] for row in jobs.rows()] == [{"fraction": 0.3}, {"fraction": 0.2}]
    jobs.repository.complete(held[0])
    assert jobs.row(ids[0])["progress"] == {"fraction": 0.3}
    with pytest.raises(LeaseLost):
        jobs.repository.beat(held[0].fence, {"fraction": 1})
    with pytest.raises(PayloadError):
        jobs.repository.beat(held[1].fence, {"eta": object()})


def test_renewals_and_beats_are_hot(jobs: Jobs) -> None:
    """They touch no index, however often."""
    # Rows of earlier tests may fill the page, and what finds no room on its own is not HOT.
    jobs.connection.execute(f"TRUNCATE {jobs.table} CASCADE")
    jobs.enqueue()
    job = jobs.one()
    stats = f"SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = '{jobs.table}'"
    flush = "SELECT pg_stat_force_next_flush(), pg_stat_clear_snapshot()"
    jobs.connection.execute(flush)
    before = jobs.connection.execute(stats).fetchone()
    for number in range(10):
        jobs.repository.renew([job.fence], lease_s=30)
        jobs.repository.beat(job.fence, {"n": number})
    jobs.connection.execute(flush)
    after = jobs.connection.execute(stats).fetchone()
    assert (after[0] - before[0], after[1] - before[1]) == (20, 20)


def test_a_durable_fence(jobs: Jobs) -> None:
    """The first use of a fence renews the lease on disk; who lost it hears so."""
    (job_id,) = jobs.enqueue()
    job = jobs.one(lease_s=5, durable=False)
    assert jobs.repository.make_durable(job.fence, lease_s=1000) is None
    assert left(jobs, job_id) > 900
    jobs.repository.release(job)
    with pytest.raises(LeaseLost):
        jobs.repository.make_durable(job.fence, lease_s=1000)


FORGET = """
UPDATE {table} SET
    status = 'queued', attempt = attempt - 1, claimed_by = NULL, lease_expires_at = NULL, started_at = NULL
WHERE id = ANY (%s)
"""


def test_a_claim_that_the_server_forgot(jobs: Jobs) -> None:
    """It is made again as it was, where nobody has claimed the job since; one that holds is renewed."""
    forgotten, holds, taken, *_ = ids = jobs.enqueue(5)
    held = jobs.claim(limit=5, lease_s=5)
    before = jobs.row(forgotten)
    jobs.connection.execute(FORGET.format(table=jobs.table), [[taken]])
    assert jobs.one("another").id == taken
    jobs.connection.execute(FORGET.format(table=jobs.table), [[forgotten]])
    jobs.repository.release(held[3])
    jobs.repository.complete(held[4])
    assert jobs.repository.claim_again(held, lease_s=1000) == {forgotten, holds}
    assert [left(jobs, each) > 900 for each in (forgotten, holds)] == [True, True]
    after = jobs.row(forgotten)
    kept = before.keys() - {"lease_expires_at", "updated_at"}
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert jobs.seen(taken, "claimed_by", "attempt") == ("another", 1)
    assert [jobs.row(each)["status"] for each in ids] == [
        *("running", "running", "running", "queued", "completed"),
    ]
    assert jobs.repository.claim_again([], lease_s=1000) == frozenset()


def test_one_question_a_second(jobs: Jobs) -> None:
    """A guard learns in one statement whom to cancel, what is lost, and what the operator wants."""
    ids = jobs.enqueue(3)
    held = jobs.claim(limit=3)
    fences = [job.fence for job in held]
    quiet = jobs.repository.watch(fences, host_label="h1", queue="fetch")
    assert (quiet.cancelled, quiet.lost, quiet.control) == (frozenset(), frozenset(), None)
    jobs.repository.cancel(ids[0])
    jobs.repository.release(held[1])
    control = WorkerControlRepository(jobs.connection)
    control.set("*", "fetch", "pause", actor="ann", reason="deploy")
    asked = control.set("h1", "*", "off", actor="bob", expires_in=600)
    control.set("h2", "fetch", "off", actor="eve")
    seen = jobs.repository.watch(fences, host_label="h1", queue="fetch")
    assert (seen.cancelled, seen.lost) == ({ids[0]}, {ids[1]})
    assert seen.control == Control("off", asked.version, "h1", "*", None, "bob", asked.expires_at)
    effective = control.effective("h1", "fetch")
    assert (effective.desired, effective.version) == (seen.control.desired, seen.control.version)


def test_an_idle_worker_asks_too(jobs: Jobs) -> None:
    """Without a job there is still an operator; a wish that has lapsed is none."""
    control = WorkerControlRepository(jobs.connection)
    control.set("h1", "fetch", "pause", actor="ann", expires_in=0.0)
    assert jobs.repository.watch([], host_label="h1", queue="fetch").control is None
    control.set("h1", "fetch", "pause", actor="ann")
    assert jobs.repository.watch([], host_label="h1", queue="fetch").control.desired == "pause"
