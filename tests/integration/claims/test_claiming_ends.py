"""Every way in which a claim ends, for both families, one at a time and in batches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from support.rows.jobs import Jobs, ending, jobs_of, stale
from support.rows.schemas import blocked, holding, until

from queue_workflows.errors import LeaseLost, PayloadError
from queue_workflows.repositories import Ending, Fence, error_entry
from queue_workflows.repositories.sql.families import ERRORS_KEPT
from queue_workflows.states import JobStatus


@pytest.fixture(params=["node", "ingest"])
def jobs(request: pytest.FixtureRequest, qwf_dsn: str) -> Iterator[Jobs]:
    """An empty table of each family."""
    with jobs_of(request.param, qwf_dsn) as jobs:
        yield jobs


@pytest.mark.parametrize("status", ["completed", "skipped", "failed", "cancelled"])
def test_a_terminal_end_is_stored_whole(jobs: Jobs, status: str) -> None:
    """The row says how it ended, when, who ran it, and with what; a node's event is there with it."""
    (job_id,) = jobs.enqueue()
    job = jobs.one()
    result = {"result": {"pages": 3}} if status in {"completed", "skipped"} else {}
    assert jobs.repository.end(ending(job, status, **result)) == status
    row = jobs.row(job_id)
    assert row["finished_at"] >= row["started_at"]
    names = ("status", "result", "claimed_by", "lease_expires_at", "attempt", "failures", "hold_reason")
    assert tuple(row[name] for name in names) == (status, result.get("result"), "w1", None, 1, 0, None)
    assert jobs.events(job_id) == jobs.ended((1, 1, status))


def test_a_release_counts_nothing_and_keeps_the_place(jobs: Jobs) -> None:
    """Three deploys in a row leave nothing but attempts behind."""
    first, _ = jobs.enqueue(2)
    place = jobs.row(first)["position"]
    for attempt in (1, 2, 3):
        job = jobs.one()
        assert (job.id, job.attempt) == (first, attempt)
        assert jobs.repository.release(job) == "queued"
    expected = ("queued", place, 3, 0, 0, None, None, [])
    names = (
        "status",
        "position",
        "attempt",
        "failures",
        "crash_count",
        "claimed_by",
        "finished_at",
        "errors",
    )
    assert jobs.seen(first, *names) == expected
    assert jobs.events(first) == []


def test_a_retry_waits_counts_and_says_why(jobs: Jobs) -> None:
    """A failure that has tries left is scheduled with its delay, its count and its entry."""
    (job_id,) = jobs.enqueue()
    job = jobs.one()
    entry = json.loads(error_entry("exception", "boom", error_type="ValueError"))
    jobs.repository.end(ending(job, "scheduled", error=entry, counts=True, delay_s=60.0))
    status, failures, errors, hold = jobs.seen(job_id, "status", "failures", "errors", "hold_reason")
    assert (status, failures, hold) == ("scheduled", 1, None)
    (kept,) = errors
    assert kept.pop("at") is not None
    assert kept == entry | {"attempt": 1, "worker_id": "w1"}
    (due,) = jobs.connection.execute(
        f"SELECT run_at - now() BETWEEN '30 s' AND '60 s' FROM {jobs.table} WHERE id = %s", [job_id]
    ).fetchone()
    assert due
    assert jobs.events(job_id) == []


def test_a_hold_has_its_reason_and_counts_nothing(jobs: Jobs) -> None:
    """What cannot run here goes aside with a reason that can be asked for."""
    (job_id,) = jobs.enqueue()
    job = jobs.one()
    assert jobs.repository.hold(job, "unknown_task", "task", delay_s=5) == "scheduled"
    names = ("status", "hold_reason", "hold_key", "failures", "position", "claimed_by")
    assert jobs.seen(job_id, *names) == ("scheduled", "unknown_task", "task", 0, job.position, None)


@pytest.mark.parametrize("status", ["queued", "scheduled", "awaiting_input"])
def test_a_cancelled_job_never_waits_again(jobs: Jobs, status: str) -> None:
    """Whoever asked to cancel gets it, though the worker wanted the job to wait."""
    if jobs.family == "ingest":
        status = status.replace("awaiting_input", "queued")
    (job_id,) = jobs.enqueue()
    job = jobs.one()
    assert jobs.repository.cancel(job_id) == "running"
    delay = {"delay_s": 9.0, "hold_reason": "limit", "hold_key": "k"} if status == "scheduled" else {}
    assert jobs.repository.end(ending(job, status, **delay)) == "cancelled"
    names = ("status", "hold_reason", "hold_key", "claimed_by")
    assert jobs.seen(job_id, *names) == ("cancelled", None, None, "w1")
    assert jobs.events(job_id) == jobs.ended((1, 1, "cancelled"))


def test_what_was_done_before_the_cancel_counts(jobs: Jobs) -> None:
    """A job that finished before it heard of the cancel has finished."""
    (job_id,) = jobs.enqueue()
    job = jobs.one()
    jobs.repository.cancel(job_id)
    assert jobs.repository.complete(job, {"done": True}) == "completed"


def test_a_node_parks_with_its_event(qwf_dsn: str) -> None:
    """A node that asks somebody holds no worker; the orchestrator hears of it."""
    with jobs_of("node", qwf_dsn) as jobs:
        (job_id,) = jobs.enqueue()
        job = jobs.one()
        jobs.repository.end(ending(job, "awaiting_input"))
        names = ("status", "finished_at", "lease_expires_at")
        assert jobs.seen(job_id, *names) == ("awaiting_input", None, None)
        assert jobs.events(job_id) == [(1, 1, "awaiting_input")]


def test_a_failed_nodes_event_carries_the_error(qwf_dsn: str) -> None:
    """Who acts on a failure need not look for it."""
    with jobs_of("node", qwf_dsn) as jobs:
        (job_id,) = jobs.enqueue()
        jobs.repository.end(ending(jobs.one(), "failed", error={"kind": "exception", "message": "boom"}))
        ((payload,),) = jobs.connection.execute("SELECT payload FROM workflow_dispatch_events").fetchall()
        assert payload["error"] == jobs.row(job_id)["errors"][-1]
        assert payload["error"]["message"] == "boom"


def test_a_batch_ends_what_is_held_and_names_the_rest(jobs: Jobs) -> None:
    """Lost leases in a batch change nothing and do not stop the others; all kinds of ends go together."""
    ids = jobs.enqueue(6)
    held = jobs.claim(limit=6)
    lost = held[2]
    jobs.repository.release(lost)
    taken = jobs.one("w2")
    assert taken.id == lost.id
    before = jobs.row(lost.id)
    endings = [
        ending(held[5], "completed", result={"n": 5}, progress={"fraction": 1}),
        ending(held[0], "skipped"),
        ending(held[1], "queued"),
        ending(lost, "failed", error={"kind": "x"}),
        ending(held[3], "scheduled", delay_s=1.5, counts=True, error={"kind": "y"}),
        ending(held[4], "failed", counts=True),
    ]
    done = jobs.repository.end_many(endings)
    assert done.lost == [lost.fence]
    expected = ["skipped", "queued", None, "scheduled", "failed", "completed"]
    assert [done.statuses.get(each) for each in ids] == expected
    assert [jobs.row(each)["status"] for each in ids] == ["skipped", "queued", "running", *expected[3:]]
    assert jobs.row(lost.id) == before
    assert jobs.seen(ids[5], "result", "progress") == ({"n": 5}, {"fraction": 1})
    assert jobs.seen(ids[3], "failures", "run_at")[0] == 1
    assert jobs.seen(ids[0], "errors") == ([],)


def test_a_batch_of_the_same_end_is_told_apart_by_the_rows(jobs: Jobs) -> None:
    """A lost lease changes nothing, and who is cancelled has ended, where the batch says the same of all."""
    ids = jobs.enqueue(6)
    held = jobs.claim(limit=6)
    jobs.repository.release(held[2])
    assert jobs.one("w2").id == ids[2]
    jobs.repository.cancel(ids[4])
    before = [jobs.row(each) for each in ids]
    endings = [ending(job, "scheduled", delay_s=5.0, hold_reason="limit", hold_key="k") for job in held]
    done, claimed = jobs.repository.end_and_claim(
        endings[::-1], jobs.queue, worker_id="w1", lease_s=9, limit=2
    )
    assert (done.lost, claimed) == ([held[2].fence], [])
    after = dict.fromkeys(ids, "scheduled") | {ids[4]: "cancelled"}
    del after[ids[2]]
    assert {each: str(status) for each, status in done.statuses.items()} == after
    names = ("status", "hold_reason", "hold_key", "claimed_by", "lease_expires_at", "position")
    for each, was in zip(ids, before, strict=True):
        position = was["position"]
        if each == ids[2]:
            assert jobs.row(each) == was
        elif each == ids[4]:
            assert jobs.seen(each, *names) == ("cancelled", None, None, "w1", None, position)
        else:
            assert jobs.seen(each, *names) == ("scheduled", "limit", "k", None, None, position)


def test_the_same_result_is_that_of_each(jobs: Jobs) -> None:
    """What a batch has in common is sent once and stored for all of it."""
    ids = jobs.enqueue(3)
    done = jobs.repository.end_many([ending(job, result={"n": 1}) for job in jobs.claim(limit=3)])
    assert done.lost == []
    assert [jobs.seen(each, "status", "result") for each in ids] == [("completed", {"n": 1})] * 3
    assert [jobs.events(each) for each in ids] == [jobs.ended((1, 1, "completed"))] * 3


def test_a_batch_may_be_empty(jobs: Jobs) -> None:
    """Where all leases were lost there is nothing to end, and the next jobs are claimed all the same."""
    (job_id,) = jobs.enqueue()
    assert jobs.repository.end_many([]).statuses == {}
    ended, (claimed,) = jobs.repository.end_and_claim([], jobs.queue, worker_id="w1", lease_s=9)
    assert (ended.statuses, ended.lost, claimed.id) == ({}, [], job_id)
    assert jobs.repository.renew([], lease_s=5) == {}
    assert jobs.repository.beat_many([]) == {}


def test_every_part_of_the_fence_counts(jobs: Jobs) -> None:
    """Another attempt, worker or job is refused by every fenced write, and nothing changes."""
    (job_id,) = jobs.enqueue()
    job = jobs.one()
    jobs.repository.release(job)
    job = jobs.one()
    before = jobs.row(job_id)
    for wrong in stale(job.fence):
        for write in (
            lambda fence: jobs.repository.end(Ending(fence, JobStatus.COMPLETED)),
            lambda fence: jobs.repository.beat(fence, {"fraction": 0.5}),
            lambda fence: jobs.repository.make_durable(fence, lease_s=99),
        ):
            with pytest.raises(LeaseLost) as refused:
                write(wrong)
            assert (refused.value.job_id, refused.value.attempt) == (wrong.job_id, wrong.attempt)
        assert jobs.repository.renew([wrong], lease_s=99) == {}
        assert jobs.repository.watch([wrong], host_label="h", queue="q").lost == {wrong.job_id}
    assert jobs.row(job_id) == before


BAD = {
    "back to running": {"status": JobStatus.RUNNING},
    "a retry without a delay": {"status": JobStatus.SCHEDULED},
    "a release with a delay": {"status": JobStatus.QUEUED, "delay_s": 1.0},
    "a delay without end": {"status": JobStatus.SCHEDULED, "delay_s": float("inf")},
    "a hold that is no hold": {"status": JobStatus.QUEUED, "hold_reason": "limit"},
    "a key without a reason": {"status": JobStatus.SCHEDULED, "delay_s": 1.0, "hold_key": "k"},
    "a release with a result": {"status": JobStatus.QUEUED, "result": "{}"},
    "a reason with NUL": {"status": JobStatus.SCHEDULED, "delay_s": 1.0, "hold_reason": "a\x00b"},
}


@pytest.mark.parametrize("fields", BAD.values(), ids=BAD.keys())
def test_a_senseless_ending_is_refused_before_anything_is_sent(jobs: Jobs, fields: dict) -> None:
    """Not one of a batch is written if one of it makes no sense."""
    jobs.enqueue(2)
    first, second = jobs.claim(limit=2)
    with pytest.raises(PayloadError):
        jobs.repository.end_many([ending(first), Ending(second.fence, **fields)])
    assert [row["status"] for row in jobs.rows()] == ["running", "running"]


def test_one_job_ends_once_in_a_batch(jobs: Jobs) -> None:
    """Two endings of one job are a mistake of the caller, and neither is written."""
    (job_id,) = jobs.enqueue()
    job = jobs.one()
    with pytest.raises(PayloadError, match="two endings"):
        jobs.repository.end_many([ending(job), ending(job, "failed")])
    assert jobs.row(job_id)["status"] == "running"


def test_errors_are_bounded(jobs: Jobs) -> None:
    """The last entries stay, whatever comes, and an entry is as long as it may be."""
    (job_id,) = jobs.enqueue()
    for number in range(ERRORS_KEPT + 5):
        error = {"kind": "exception", "message": str(number)}
        jobs.repository.end(ending(jobs.one(), "scheduled", error=error, delay_s=0.0))
        assert jobs.repository.promote() == 1
    errors = jobs.row(job_id)["errors"]
    assert [entry["message"] for entry in errors] == [str(number) for number in range(5, ERRORS_KEPT + 5)]
    huge = error_entry(
        "exception", "\x00é\udc80" * 100_000, error_type="T" * 999, traceback="x" * 99_999 + "end"
    )
    assert len(huge) < 12_000
    jobs.repository.end(Ending(jobs.one().fence, JobStatus.FAILED, error=huge))
    last = jobs.row(job_id)["errors"][-1]
    assert last["traceback"].endswith("end")
    assert last["message"].startswith("\\0é\\udc80")


def test_a_node_returns_an_object(qwf_dsn: str) -> None:
    """Downstream nodes refer into it by name, so a list is refused before the node is touched."""
    with jobs_of("node", qwf_dsn) as jobs:
        (job_id,) = jobs.enqueue()
        job = jobs.one()
        for bad in ([1], "x", {"t": object()}):
            with pytest.raises(PayloadError):
                jobs.repository.complete(job, bad)
        assert jobs.row(job_id)["status"] == "running"


def test_ends_and_claims_in_one(jobs: Jobs) -> None:
    """One statement ends the last job, names what was lost, and hands out the next."""
    ids = jobs.enqueue(3)
    job = jobs.one()
    gone = Fence(10**9, 1, "w1")
    done, claimed = jobs.repository.end_and_claim(
        [ending(job, result={"n": 0}), Ending(gone, JobStatus.COMPLETED)],
        jobs.queue,
        worker_id="w1",
        lease_s=9,
    )
    assert done.statuses == {ids[0]: "completed"}
    assert done.lost == [gone]
    assert [(each.id, each.attempt, each.claimed_by) for each in claimed] == [(ids[1], 1, "w1")]
    assert jobs.seen(ids[0], "status", "result") == ("completed", {"n": 0})
    assert jobs.events(ids[0]) == jobs.ended((1, 1, "completed"))
    done, claimed = jobs.repository.end_and_claim(
        [ending(claimed[0])], jobs.queue, worker_id="w1", lease_s=9, limit=5
    )
    assert [each.id for each in claimed] == [ids[2]]
    done, claimed = jobs.repository.end_and_claim([ending(claimed[0])], jobs.queue, worker_id="w1", lease_s=9)
    assert (done.statuses, claimed) == ({ids[2]: "completed"}, [])


EVERY_WORD = [
    {"status": "completed", "result": {"pages": 'é"\\\\{}'}, "progress": {"n": 1}},
    {"status": "skipped", "error": {"kind": "skipped", "message": 'a "quote" and a \\\\'}},
    {"status": "failed", "error": {"kind": "failed"}, "counts": True},
    {"status": "cancelled"},
    {"status": "queued"},
    {"status": "scheduled", "error": {"kind": "exception"}, "counts": True, "delay_s": 3600.0},
    {"status": "scheduled", "hold_reason": "limit", "hold_key": 'a "key", {odd}', "delay_s": 3600.0},
]


@pytest.mark.parametrize("words", EVERY_WORD, ids=lambda words: words["status"])
@pytest.mark.parametrize("to_be_cancelled", [False, True])
def test_one_end_is_that_of_a_batch_of_one(jobs: Jobs, words: dict[str, Any], to_be_cancelled: bool) -> None:
    """A worker with one job sends plain values instead of arrays; the row and its event are the same."""
    ids = jobs.enqueue(2)
    held = {job.id: job for job in jobs.claim(limit=2)}
    if to_be_cancelled:
        jobs.repository.cancel_many(ids)
    alone, in_a_batch = (ending(held[job_id], **words) for job_id in ids)
    done, _ = jobs.repository.end_and_claim([alone], "other", worker_id="w1", lease_s=9)
    assert done.statuses[ids[0]] == jobs.repository.end_many([in_a_batch]).statuses[ids[1]]
    rows = [jobs.row(job_id) for job_id in ids]
    own = {"id", "node_id", "position", "created_at", "started_at", "finished_at", "run_at"}
    own |= {"inputs", "args", "cancel_requested_at"}
    for row in rows:
        for error in row["errors"]:
            del error["at"]
        for entry in row["past_holds"] or ():
            del entry["until"]
    first, second = ({name: row[name] for name in row.keys() - own} for row in rows)
    assert first == second
    due = [datetime.fromisoformat(row["run_at"]) for row in rows]
    assert abs(due[1] - due[0]) < timedelta(minutes=30)
    assert jobs.events(ids[0]) == jobs.events(ids[1])


def test_every_part_of_the_fence_counts_for_one_end(jobs: Jobs) -> None:
    """An end with another's id, attempt or name changes nothing; the next job is claimed all the same."""
    (job_id, *others) = jobs.enqueue(5)
    job = jobs.one()
    for fence, following in zip(stale(job.fence), others, strict=True):
        done, claimed = jobs.repository.end_and_claim(
            [Ending(fence, JobStatus.COMPLETED)], jobs.queue, worker_id="w1", lease_s=9
        )
        assert (done.statuses, done.lost) == ({}, [fence])
        assert [each.id for each in claimed] == [following]
    assert jobs.seen(job_id, "status", "attempt", "claimed_by") == ("running", 1, "w1")


@pytest.mark.parametrize("status", ["queued", "scheduled"])
def test_what_is_given_back_is_not_taken_again_at_once(jobs: Jobs, status: str) -> None:
    """A released row is not claimed by the statement that released it, though it is first in line."""
    first, second = jobs.enqueue(2)
    job = jobs.one()
    delay = {"delay_s": 0.0} if status == "scheduled" else {}
    done, claimed = jobs.repository.end_and_claim(
        [ending(job, status, **delay)], jobs.queue, worker_id="w1", lease_s=9, limit=2
    )
    assert done.statuses == {first: status}
    assert [each.id for each in claimed] == [second]
    assert jobs.seen(first, "status", "attempt") == (status, 1)


@pytest.mark.parametrize("verb", ["end", "renew", "cancel", "retry"])
def test_batches_lock_their_rows_in_one_order(qwf_dsn: str, jobs: Jobs, verb: str) -> None:
    """Whoever waits for the first row holds none of the others, so that no two batches deadlock."""
    ids = sorted(jobs.enqueue(3))
    held = {job.id: job for job in jobs.claim(limit=3)}
    backwards = [held[job_id] for job_id in reversed(ids)]
    if verb == "retry":
        jobs.repository.end_many([ending(job) for job in backwards])
    batch: dict[str, Callable[[], object]] = {
        "end": lambda: jobs.repository.end_many([ending(job) for job in backwards]),
        "renew": lambda: jobs.repository.renew([job.fence for job in backwards], lease_s=9),
        "cancel": lambda: jobs.repository.cancel_many(reversed(ids)),
        "retry": lambda: jobs.repository.retry_many(reversed(ids), actor="ann"),
    }
    first = f"SELECT FROM {jobs.table} WHERE id = {ids[0]} FOR UPDATE"
    with holding(qwf_dsn, first) as holder, ThreadPoolExecutor(1) as threads:
        answer = threads.submit(batch[verb])
        until(lambda: blocked(qwf_dsn, holder.info.backend_pid), "the wait for the first row")
        with psycopg.connect(qwf_dsn) as other:
            others = f"SELECT FROM {jobs.table} WHERE id > {ids[0]} FOR UPDATE NOWAIT"
            assert other.execute(others).rowcount == 2
        holder.rollback()
        assert answer.result(150)
