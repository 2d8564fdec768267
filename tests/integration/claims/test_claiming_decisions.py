"""What operators and host apps decide by id: cancel, retry, and the marks of an end; for both families."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from support.rows.jobs import Jobs, ending, jobs_of, stale

from queue_workflows.errors import IllegalTransition, LeaseLost, PayloadError
from queue_workflows.states import JOB_TERMINAL

TERMINAL = sorted(JOB_TERMINAL)


@pytest.fixture(params=["node", "ingest"])
def jobs(request: pytest.FixtureRequest, qwf_dsn: str) -> Iterator[Jobs]:
    """An empty table of each family."""
    with jobs_of(request.param, qwf_dsn) as jobs:
        yield jobs


def audit(jobs: Jobs) -> list[tuple]:
    """What was written down, without the time."""
    return jobs.connection.execute(
        "SELECT actor, action, subject_kind, subject_id, reason, details FROM audit_log ORDER BY id"
    ).fetchall()


def test_who_waits_is_cancelled_at_once(jobs: Jobs) -> None:
    """Queued, scheduled and held jobs end, each with its event."""
    queued, scheduled, held = jobs.enqueue(3)
    for job in jobs.claim(limit=3):
        if job.id != queued:
            jobs.repository.hold(job, "limit", "k", delay_s=60)
        else:
            jobs.repository.release(job)
    ids = (queued, scheduled, held)
    assert jobs.repository.cancel_many(ids) == dict.fromkeys(ids, "cancelled")
    for job_id in ids:
        names = ("status", "hold_reason", "hold_key", "lease_expires_at")
        assert jobs.seen(job_id, *names) == ("cancelled", None, None, None)
        assert jobs.row(job_id)["finished_at"] == jobs.row(job_id)["cancel_requested_at"]
        assert jobs.events(job_id) == jobs.ended((1, 1, "cancelled"))
    assert jobs.claim(limit=9) == []


def test_a_parked_node_is_cancelled_with_a_second_event(qwf_dsn: str) -> None:
    """Waiting for people is waiting."""
    with jobs_of("node", qwf_dsn) as jobs:
        (job_id,) = jobs.enqueue()
        jobs.repository.end(ending(jobs.one(), "awaiting_input"))
        assert jobs.repository.cancel(job_id) == "cancelled"
        assert jobs.events(job_id) == [(1, 1, "awaiting_input"), (1, 1, "cancelled")]


def test_who_runs_is_asked(jobs: Jobs) -> None:
    """The row runs until its worker, which looks for the request, ends it; asking again changes nothing."""
    ids = jobs.enqueue(2)
    held = jobs.claim(limit=2)
    assert jobs.repository.cancel_many(ids) == dict.fromkeys(ids, "running")
    asked = jobs.row(ids[0])["cancel_requested_at"]
    assert asked is not None
    assert jobs.events(ids[0]) == []
    assert jobs.repository.cancel(ids[0]) == "running"
    assert jobs.row(ids[0])["cancel_requested_at"] == asked
    assert jobs.repository.end(ending(held[0], "cancelled")) == "cancelled"
    assert jobs.repository.cancel(ids[0]) is None


@pytest.mark.parametrize("status", TERMINAL)
def test_what_is_over_is_not_cancelled(jobs: Jobs, status: str) -> None:
    """A second call, or one that comes too late, changes nothing and says so."""
    (job_id,) = jobs.enqueue()
    jobs.repository.end(ending(jobs.one(), status))
    before = (jobs.row(job_id), jobs.events(job_id))
    assert jobs.repository.cancel(job_id, actor="ann") is None
    assert jobs.repository.cancel_many([job_id, job_id, 10**12]) == {}
    assert (jobs.row(job_id), jobs.events(job_id), audit(jobs)) == (*before, [])


def test_operators_are_written_down(jobs: Jobs) -> None:
    """Who cancelled and retried what, and why; what is part of something greater is not logged twice."""
    one, two = jobs.enqueue(2)
    jobs.repository.cancel(one, actor="ann", reason="wrong film")
    jobs.repository.cancel(two)
    jobs.repository.retry_many([one], actor="bob")
    kind = f"{jobs.family} job"
    assert audit(jobs) == [
        ("ann", "job.cancel", kind, str(one), "wrong film", {"status": "cancelled"}),
        ("bob", "job.retry", kind, str(one), None, {"generation": 2}),
    ]


@pytest.mark.parametrize("status", TERMINAL)
def test_a_retry_opens_a_generation(jobs: Jobs, status: str) -> None:
    """As new at the end of the queue, but attempts go on counting and the history of errors stays."""
    (job_id,) = jobs.enqueue()
    jobs.connection.execute(f"UPDATE {jobs.table} SET suspect = true, crash_count = 2, failures = 2")
    job = jobs.one(alone=True)
    result = {"result": {"x": 1}} if status in ("completed", "skipped") else {}
    error = {"error": {"kind": "exception"}} if status == "failed" else {}
    jobs.repository.end(ending(job, status, **result, **error, progress={"fraction": 1}))
    (waiting,) = jobs.enqueue()
    assert jobs.repository.retry_many([job_id, waiting], actor="ann") == {job_id: 2}
    names = (
        *("status", "generation", "attempt", "failures", "crash_count", "suspect", "result"),
        *("claimed_by", "progress", "finished_at", "cancel_requested_at"),
    )
    assert jobs.seen(job_id, *names) == ("queued", 2, 1, 0, 0, False, None, None, None, None, None)
    assert len(jobs.row(job_id)["errors"]) == len(error)
    assert jobs.events(job_id) == jobs.ended((1, 1, status))
    assert [each.id for each in jobs.claim(limit=2)] == [waiting, job_id]


def test_a_generation_that_ends_unclaimed_has_its_event(jobs: Jobs) -> None:
    """An older end with the same attempt, not yet acted upon, does not swallow that of the new generation."""
    (job_id,) = jobs.enqueue()
    jobs.repository.cancel(job_id)
    jobs.repository.retry_many([job_id], actor="ann")
    jobs.repository.cancel(job_id)
    assert jobs.events(job_id) == jobs.ended((1, 0, "cancelled"), (2, 0, "cancelled"))


def test_what_is_not_over_is_not_retried(jobs: Jobs) -> None:
    """A retry of a job that waits or runs does nothing."""
    jobs.enqueue(2)
    jobs.one()
    before = jobs.rows()
    assert jobs.repository.retry_many([row["id"] for row in before], actor="ann") == {}
    assert jobs.rows() == before
    with pytest.raises(PayloadError):
        jobs.repository.retry_many([1], actor="")


def test_a_host_marks_the_end(jobs: Jobs) -> None:
    """Completed with a result, failed with an error; the second call returns None and changes nothing."""
    one, two = jobs.enqueue(2)
    jobs.claim(limit=2)
    done = jobs.repository.mark_completed(one, {"pages": 3})
    assert (done.id, done.status, done.finished_at is None) == (one, "completed", False)
    assert jobs.row(one)["result"] == {"pages": 3}
    failed = jobs.repository.mark_failed(two, "the printer is on fire")
    assert (failed.status, failed.failures) == ("failed", 1)
    entry = failed.errors[-1]
    assert (entry["kind"], entry["message"], entry["attempt"]) == ("failed", "the printer is on fire", 1)
    before = (jobs.rows(), jobs.events(one), jobs.events(two))
    for job_id in (one, two, 10**12):
        assert jobs.repository.mark_completed(job_id, {"other": 1}) is None
        assert jobs.repository.mark_failed(job_id, "late") is None
    assert (jobs.rows(), jobs.events(one), jobs.events(two)) == before
    assert before[1:] == (jobs.ended((1, 1, "completed")), jobs.ended((1, 1, "failed")))


def test_the_holder_hears_that_the_host_was_first(jobs: Jobs) -> None:
    """A worker whose job was marked from outside has lost it."""
    jobs.enqueue()
    job = jobs.one()
    jobs.repository.mark_completed(job.id)
    with pytest.raises(LeaseLost):
        jobs.repository.complete(job, {"mine": True})
    assert jobs.row(job.id)["result"] is None


def test_a_fenced_mark_is_the_holders(jobs: Jobs) -> None:
    """With a fence only that very attempt may be marked; one that is over is still no error."""
    (job_id,) = jobs.enqueue()
    job = jobs.one()
    before = jobs.row(job_id)
    for wrong in stale(job.fence)[:3]:
        with pytest.raises(LeaseLost):
            jobs.repository.mark_completed(job_id, {"x": 1}, fence=wrong)
        with pytest.raises(LeaseLost):
            jobs.repository.mark_failed(job_id, "x", fence=wrong)
    assert jobs.row(job_id) == before
    assert jobs.repository.mark_completed(job_id, fence=job.fence).status == "completed"
    assert jobs.repository.mark_completed(job_id, fence=stale(job.fence)[0]) is None


def test_a_fence_is_for_its_own_job(jobs: Jobs) -> None:
    """The fence of one job does not open another."""
    one, two = jobs.enqueue(2)
    held = jobs.claim(limit=2)
    with pytest.raises(LeaseLost):
        jobs.repository.mark_completed(two, fence=held[0].fence)
    assert [jobs.row(each)["status"] for each in (one, two)] == ["running", "running"]


def test_marks_follow_the_table_of_moves(jobs: Jobs) -> None:
    """What waits cannot be completed or failed from outside: nobody ran it."""
    (queued,) = jobs.enqueue()
    (scheduled,) = jobs.enqueue(delay=60)
    for job_id, status in ((queued, "queued"), (scheduled, "scheduled")):
        for mark in (jobs.repository.mark_completed, lambda each: jobs.repository.mark_failed(each, "x")):
            with pytest.raises(IllegalTransition) as refused:
                mark(job_id)
            assert refused.value.old == status
        assert jobs.row(job_id)["status"] == status


def test_parking_and_answering_a_node(qwf_dsn: str) -> None:
    """Parked from the queue or from a run, answered or expired; each step once, with its event."""
    with jobs_of("node", qwf_dsn) as jobs:
        queued, running, scheduled = *jobs.enqueue(2), *jobs.enqueue(delay=60)
        jobs.repository.release(jobs.one())
        assert jobs.repository.mark_awaiting_input(queued).status == "awaiting_input"
        job = jobs.one()
        parked = jobs.repository.mark_awaiting_input(running, fence=job.fence)
        assert (parked.status, parked.finished_at, parked.lease_expires_at) == ("awaiting_input", None, None)
        before = (jobs.rows(), jobs.events(queued), jobs.events(running))
        assert jobs.repository.mark_awaiting_input(queued) is None
        assert jobs.repository.mark_awaiting_input(running, fence=job.fence) is None
        assert (jobs.rows(), jobs.events(queued), jobs.events(running)) == before
        with pytest.raises(IllegalTransition):
            jobs.repository.mark_awaiting_input(scheduled)
        assert jobs.repository.mark_completed(queued, {"ok": True}).context_delta == {"ok": True}
        assert jobs.repository.mark_failed(running, "nobody answered").status == "failed"
        assert jobs.repository.mark_awaiting_input(queued) is None
        assert jobs.events(queued) == [(1, 1, "awaiting_input"), (1, 1, "completed")]
        assert jobs.events(running) == [(1, 1, "awaiting_input"), (1, 1, "failed")]


def test_an_ingest_job_waits_for_nobody(qwf_dsn: str) -> None:
    """The mark that its family does not have is refused in words."""
    with jobs_of("ingest", qwf_dsn) as jobs:
        (job_id,) = jobs.enqueue()
        with pytest.raises(PayloadError, match="an ingest job cannot become awaiting_input"):
            jobs.repository.mark_awaiting_input(job_id)


def test_a_bad_result_is_refused_before_the_row_is_touched(jobs: Jobs) -> None:
    """What is no JSON changes nothing, and does not spoil the caller's transaction."""
    (job_id,) = jobs.enqueue()
    jobs.one()
    with jobs.connection.transaction():
        for bad in ({"t": object()}, {"n": float("nan")}, {"z": "\x00"}):
            with pytest.raises(PayloadError):
                jobs.repository.mark_completed(job_id, bad)
        assert jobs.row(job_id)["status"] == "running"
    assert json.dumps(jobs.row(job_id)["result"]) == "null"
