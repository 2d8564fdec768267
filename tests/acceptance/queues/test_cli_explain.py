"""`qwf explain`: for each way in which a job can wait, run or end, the reason and its code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
from support.processes.commands import Said, qwf_here
from support.processes.workers import running_worker, until
from support.rows.jobs import CLEAR_WITH_WORKERS, Jobs, ending, jobs_of

from queue_workflows import db
from queue_workflows.errors import PayloadError
from queue_workflows.repositories import (
    HeartbeatRepository,
    IngestJobRepository,
    LimitRepository,
    RunRepository,
    WorkerControlRepository,
)

Told = dict[str, Any]


@pytest.fixture(params=["node", "ingest"])
def jobs(request: pytest.FixtureRequest, qwf_dsn: str) -> Iterator[Jobs]:
    """An empty table of each family, and no worker."""
    with jobs_of(request.param, qwf_dsn) as jobs:
        jobs.connection.execute("TRUNCATE worker_heartbeats, concurrency_limits, limit_slots")
        yield jobs


@pytest.fixture
def explain(jobs: Jobs, qwf_dsn: str) -> Callable[[int], Told]:
    """What is told of a job, with the reasons by their codes."""

    def ask(job_id: int) -> Told:
        said = qwf_here("--db", qwf_dsn, "explain", f"{jobs.family}:{job_id}", "--json")
        told = json.loads(said.stdout)
        return told | {"reasons": {reason["code"]: reason for reason in told["reasons"]}}

    return ask


def beat(jobs: Jobs, worker_id: str = "w1", **more: Any) -> None:
    HeartbeatRepository(jobs.connection).beat(
        worker_id, **{"host_label": "h1", "queue": jobs.queue, "pid": 7, "state": "idle"} | more
    )


def codes(told: Told) -> list[str]:
    return list(told["reasons"])


def test_next_in_line(jobs, explain):
    """With a free worker and nobody ahead there is nothing to wait for."""
    beat(jobs)
    (job_id,) = jobs.enqueue()
    told = explain(job_id)
    assert (told["status"], codes(told)) == ("queued", ["next"])
    assert [event["text"] for event in told["history"]] == [
        {"node": "created", "ingest": "enqueued"}[jobs.family]
    ]


def test_behind_others(jobs, explain):
    """As many as the claim would take before it."""
    beat(jobs)
    ids = jobs.enqueue(priorities=(5, 9, 5, 0))
    assert explain(ids[2])["reasons"]["behind"]["data"] == {"ahead": 2}
    assert explain(ids[3])["reasons"]["behind"]["data"] == {"ahead": 3}


def test_for_later_and_due(jobs, explain):
    """When, by the database's clock; once it is due, who will see to it."""
    beat(jobs)
    (job_id,) = jobs.enqueue(delay=3600)
    told = explain(job_id)
    assert codes(told) == ["scheduled"]
    assert ", in " in told["reasons"]["scheduled"]["text"]
    jobs.connection.execute(f"UPDATE {jobs.table} SET run_at = now()")
    assert codes(explain(job_id)) == ["scheduled", "due"]


def test_tried_again_later(jobs, explain):
    """Which failure it was, of how many, and what went wrong."""
    beat(jobs)
    (job_id,) = jobs.enqueue(max_attempts=5)
    error = {"kind": "exception", "type": "ValueError", "message": "no use"}
    jobs.repository.end(ending(jobs.one(), "scheduled", error=error, counts=True, delay_s=600.0))
    told = explain(job_id)
    assert "failure 1 of 5" in told["reasons"]["retry"]["text"]
    assert told["reasons"]["retry"]["data"]["last_error"] == "ValueError: no use"
    assert any("attempt 1 on w1: ValueError: no use" in event["text"] for event in told["history"])


@pytest.mark.parametrize("why", ["the API says so", None])
def test_it_asked_to_be_run_later(jobs, explain, why):
    """That is no failure, also where it failed before, and is told as what it is."""
    beat(jobs)
    (job_id,) = jobs.enqueue()
    error = {"kind": "exception", "type": "ValueError", "message": "no use"}
    jobs.repository.end(ending(jobs.one(), "scheduled", error=error, counts=True, delay_s=0.0))
    jobs.repository.promote()
    asked = {"error": {"kind": "retry_after", "message": why}} if why else {}
    jobs.repository.end(ending(jobs.one(), "scheduled", delay_s=600.0, **asked))
    told = explain(job_id)
    assert codes(told) == ["retry_after"]
    assert told["reasons"]["retry_after"]["text"].startswith("it asked to be run again at ")
    assert told["reasons"]["retry_after"]["text"].endswith(why or "")


def test_an_end_that_was_refused(jobs, explain):
    """Uncounted, and tried again, with what was refused."""
    beat(jobs)
    (job_id,) = jobs.enqueue()
    error = {"kind": "exception", "type": "InternalError", "message": "index damaged"}
    jobs.repository.end(ending(jobs.one(), "scheduled", error=error, delay_s=600.0))
    told = explain(job_id)
    assert told["reasons"]["retry"]["text"].startswith("nothing was counted: it is tried again at ")
    assert told["reasons"]["retry"]["data"]["last_error"] == "InternalError: index damaged"


@pytest.mark.parametrize("reason", ["unknown_task", "unknown_module"])
def test_nobody_knows_what_it_is(jobs, explain, reason):
    """The name, and that a worker which knows it is all that is missing."""
    beat(jobs)
    (job_id,) = jobs.enqueue()
    jobs.repository.hold(jobs.one(), reason, "draw", delay_s=600)
    told = explain(job_id)
    assert codes(told) == [reason]
    assert "'draw'" in told["reasons"][reason]["text"]


def test_a_full_limit_and_who_holds_it(jobs, explain):
    """The limit that was set for the key, and the jobs that have its slots."""
    beat(jobs)
    (job_id,) = jobs.enqueue(limit_key="host:example.org")
    LimitRepository(jobs.connection).set("host:*", 1, actor="ann")
    jobs.connection.execute(
        "INSERT INTO limit_slots (limit_key, slot, job_family, job_id, attempt, claimed_by, lease_expires_at)"
        " VALUES ('host:example.org', 0, 'ingest', 17, 1, 'w9', now() + interval '1 h')"
    )
    jobs.repository.hold(jobs.one(), "limit_full", "host:example.org", delay_s=600)
    reason = explain(job_id)["reasons"]["limit_full"]
    assert reason["data"]["holders"] == ["ingest:17"]
    assert "1 of 1 slots are taken, held by ingest:17, it is the next of its key" in reason["text"]


def test_its_place_in_the_lane_of_a_full_limit(jobs, explain):
    """How many of its key come first; what still stands in the queue is told what it will meet."""
    beat(jobs)
    limits = LimitRepository(jobs.connection)
    limits.set("host:*", 0, actor="ann")
    ids = jobs.enqueue(3, limit_key="host:a")
    waiting = explain(ids[2])["reasons"]["limit_full"]["text"]
    assert waiting == "the limit 'host:a' is full: it is closed, its cap is 0"
    for job in jobs.claim(limit=3):
        jobs.repository.hold(job, "limit_full", "host:a", delay_s=600)
    reason = explain(ids[2])["reasons"]["limit_full"]
    assert (reason["data"]["before"], "2 jobs of its key before it" in reason["text"]) == (2, True)
    limits.set("host:*", 2, actor="ann")
    assert "has room: 0 of 2 slots are taken" in explain(ids[0])["reasons"]["limit_full"]["text"]
    limits.clear("host:*", actor="ann")
    assert "'host:a' has no limit" in explain(ids[0])["reasons"]["limit_full"]["text"]


def test_any_other_hold_says_its_own_words(jobs, explain):
    """Whatever put it aside."""
    beat(jobs)
    (job_id,) = jobs.enqueue()
    jobs.repository.hold(jobs.one(), "full_moon", "scanner", delay_s=600)
    assert "on hold: full moon 'scanner'" in explain(job_id)["reasons"]["full_moon"]["text"]


def test_paused_by_whom_and_why(jobs, explain):
    """Every wish that keeps workers of the queue from claiming, and how to take it back."""
    beat(jobs, state="paused")
    (job_id,) = jobs.enqueue()
    control = WorkerControlRepository(jobs.connection)
    control.set("*", jobs.queue, "pause", actor="ann", reason="deploy", expires_in=3600)
    control.set("h1", "*", "off", actor="bob")
    told = explain(job_id)
    assert codes(told) == ["queue_off", "queue_pause", "no_free_worker"]
    assert told["reasons"]["no_free_worker"]["text"] == "its only worker claims nothing: paused"
    text = told["reasons"]["queue_pause"]["text"]
    assert text.startswith("the queue is paused by ann since ")
    assert ": deploy" in text
    assert f"qwf workers on '*' '{jobs.queue}'" in text
    assert told["reasons"]["queue_off"]["text"].startswith("its workers on h1 are switched off by bob")
    assert any("workers.pause" in event["text"] for event in told["history"])


def test_no_worker(jobs, explain):
    """None at all, or none that is heard of any more."""
    (job_id,) = jobs.enqueue()
    assert f"qwf worker --queue {jobs.queue}" in explain(job_id)["reasons"]["no_worker"]["text"]
    beat(jobs, "gone")
    jobs.connection.execute("UPDATE worker_heartbeats SET last_seen = now() - interval '10 min'")
    assert "gone was seen last, 6" in explain(job_id)["reasons"]["no_worker"]["text"]


def test_all_workers_are_busy(jobs, explain):
    """With what, and since when."""
    ids = jobs.enqueue(3)
    for worker in ("w1", "w2"):
        held = jobs.one(worker)
        beat(jobs, worker, state="busy", jobs_held=1, current_job=(jobs.family, held.id))
    told = explain(ids[2])
    assert codes(told) == ["all_busy"]
    assert told["reasons"]["all_busy"]["data"] == {"jobs": [f"{jobs.family}:{one}" for one in ids[:2]]}
    assert f"at {jobs.family}:{ids[0]}" in told["reasons"]["all_busy"]["text"]
    beat(jobs, "w3")
    assert codes(explain(ids[2])) == ["next"]


def test_a_worker_that_has_just_claimed_is_busy(jobs, explain):
    """By the row, before its heartbeat says so."""
    beat(jobs, "w1")
    ids = jobs.enqueue(2)
    jobs.one("w1")
    assert explain(ids[1])["reasons"]["all_busy"]["data"] == {"jobs": [f"{jobs.family}:{ids[0]}"]}


def test_a_pause_elsewhere_is_no_obstacle(jobs, explain):
    """It is told, but a worker of another host takes the job."""
    beat(jobs, "w1", state="paused")
    beat(jobs, "w2", host_label="h2")
    (job_id,) = jobs.enqueue()
    WorkerControlRepository(jobs.connection).set("h1", "*", "pause", actor="ann")
    assert codes(explain(job_id)) == ["queue_pause", "next"]


def test_a_suspect_is_claimed_alone(jobs, explain):
    """And says so."""
    beat(jobs)
    (job_id,) = jobs.enqueue()
    jobs.connection.execute(f"UPDATE {jobs.table} SET suspect = true")
    assert codes(explain(job_id)) == ["suspect", "next"]


def test_what_a_running_job_is_at(jobs, explain):
    """Who, since when, until when it holds, what it said last, and whether somebody wants it to stop."""
    (job_id,) = jobs.enqueue()
    held = jobs.one("w1")
    beat(jobs, state="busy", jobs_held=1, current_job=(jobs.family, job_id))
    jobs.repository.beat(held.fence, {"fraction": 0.5})
    jobs.repository.cancel(job_id, actor="ann", reason="wrong file")
    told = explain(job_id)
    assert codes(told) == ["running", "progress", "cancelling", "waited"]
    assert told["reasons"]["running"]["data"]["worker_id"] == "w1"
    assert told["reasons"]["progress"]["text"] == "it last said: 50 %"
    assert told["reasons"]["progress"]["data"] == {"progress": {"fraction": 0.5}}
    assert any(event["text"] == "job.cancel by ann: wrong file" for event in told["history"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "args", "what"),
    [
        ("window", {"keys": ["host:a"], "max": 1}, "window of 'host:a'"),
        ("async window", {"keys": ["host:a", "host:b"], "max": 1}, "window of 'host:a' and 'host:b'"),
        ("rated", {"per_s": 0.01, "burst": 1}, "tokens of the rate 'unpaywall'"),
    ],
)
def test_what_a_running_job_waits_for_inside(qwf_dsn, tmp_path, task, args, what):
    """Of two that cannot both go on, the one that waits says for what, until it waits no more."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR_WITH_WORKERS + "; TRUNCATE limit_slots, rate_limits")
        jobs = IngestJobRepository(connection)
        given = args | {"log": str(tmp_path / "log"), "s": 30}
        ids = [jobs.enqueue(task, queue="fetch", reason="test", args=given).id for _ in range(2)]

        def said() -> list[str]:
            told = [qwf_here("--db", qwf_dsn, "explain", f"ingest:{one}").stdout for one in ids]
            return [
                text
                for text in told
                if f"it waits for {'a ' if 'window' in what else ''}{what}, for " in text
            ]

        with running_worker(qwf_dsn, "--concurrency", "2", QWF_APP="support.tasks.window_tasks"):
            until(lambda: len(said()) == 1, within_s=150)


def test_a_running_job_whose_worker_is_gone(jobs, explain):
    """Silent first, then out of its lease."""
    (job_id,) = jobs.enqueue()
    jobs.one("w1")
    assert codes(explain(job_id)) == ["running", "worker_silent", "waited"]
    jobs.lapse(job_id)
    assert codes(explain(job_id)) == ["running", "lease_lapsed", "waited"]


def test_how_a_past_job_ended(jobs, explain):
    """Its attempts, failures and crashes, its last error, and how long it waited and ran."""
    (job_id,) = jobs.enqueue(max_attempts=1)
    error = {"kind": "exception", "type": "ValueError", "message": "no use"}
    jobs.repository.end(ending(jobs.one(), "failed", error=error, counts=True))
    told = explain(job_id)
    assert codes(told) == ["ended", "last_error", "waited", "took"]
    assert "after 1 attempt, 1 of 1 failures, 0 crashes, the last on w1" in told["reasons"]["ended"]["text"]
    assert told["reasons"]["last_error"]["text"] == "ValueError: no use"
    jobs.repository.retry_many([job_id], actor="ann", reason="fixed")
    assert any(event["text"] == "job.retry by ann: fixed" for event in explain(job_id)["history"])


def moments(told: Told) -> list[str]:
    """When and what, where the time itself does not matter."""
    assert told["history"] == sorted(told["history"], key=lambda event: event["at"])
    return [event["text"] for event in told["history"]]


@pytest.mark.parametrize("status", ["running", "completed"])
def test_a_past_job_says_what_it_was_on_hold_for(jobs, explain, status):
    """Since when, until when, why and how often, and how long it waited for a worker after that."""
    (job_id,) = jobs.enqueue()
    for _ in range(3):
        jobs.repository.hold(jobs.one(), "unknown_task", "draw", delay_s=0)
        jobs.repository.promote()
    job = jobs.one()
    beat(jobs, state="busy", jobs_held=1, current_job=(jobs.family, job_id))
    if status == "completed":
        jobs.repository.complete(job, {})
    (kept,) = jobs.row(job_id)["past_holds"]
    told = explain(job_id)
    expected = {"running": ["running", "was_held", "waited"]}
    assert codes(told) == expected.get(status, ["ended", "was_held", "waited", "took"])
    held, waited = told["reasons"]["was_held"], told["reasons"]["waited"]
    assert held["text"].endswith(", 3 times: unknown task 'draw'")
    assert {name: held["data"][name] for name in ("hold_reason", "hold_key", "times")} == {
        "hold_reason": "unknown_task",
        "hold_key": "draw",
        "times": 3,
    }
    assert waited["data"]["exact"]
    assert [instant(held["data"][name]) for name in ("since", "until")] == [
        instant(kept["since"]),
        instant(kept["until"]),
    ]
    assert waited["data"]["claimable_since"] == held["data"]["until"]
    happened = [text for text in moments(told) if "hold" in text]
    assert happened == ["on hold: unknown task 'draw'", "hold over: unknown task 'draw'"]


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_a_job_that_was_cancelled_on_hold_says_so(jobs, explain):
    """Though no worker ever ran it."""
    (job_id,) = jobs.enqueue()
    jobs.repository.hold(jobs.one(), "host_lock", "scanner", delay_s=600)
    jobs.repository.cancel(job_id)
    assert ": host lock 'scanner'" in explain(job_id)["reasons"]["was_held"]["text"]


@pytest.mark.parametrize("before", ["held", "retried"])
def test_a_job_that_ended_while_it_waited_took_no_time(jobs, explain, before):
    """Its last attempt is another story; what was asked of its queue since then is told."""
    (job_id,) = jobs.enqueue()
    if before == "held":
        jobs.repository.hold(jobs.one(), "unknown_task", "draw", delay_s=600)
    else:
        jobs.repository.complete(jobs.one(), {})
        jobs.repository.retry_many([job_id], actor="ann")
    WorkerControlRepository(jobs.connection).set("*", jobs.queue, "pause", actor="zoe")
    assert any(event["text"].endswith("by zoe") for event in explain(job_id)["history"])
    jobs.repository.cancel(job_id)
    told = explain(job_id)
    assert codes(told) == ["ended", *(["was_held"] if before == "held" else []), "was_paused"]
    assert any(event["text"].endswith("by zoe") for event in told["history"])


def test_how_long_it_waited_for_a_worker(jobs, explain):
    """Since it was due, given back, or failed last; at most, after an attempt that left no trace."""
    (job_id,) = jobs.enqueue(delay=3600)
    jobs.connection.execute(
        f"UPDATE {jobs.table} SET created_at = now() - interval '2 h', run_at = now() - interval '60 s'"
    )
    jobs.repository.promote()
    job = jobs.one()
    waited = explain(job_id)["reasons"]["waited"]
    assert 60 <= waited["data"]["waited_s"] < 3600
    assert "due" in moments(explain(job_id))
    jobs.repository.release(job)
    job = jobs.one()
    assert explain(job_id)["reasons"]["waited"]["data"]["exact"]
    jobs.repository.end(ending(job, "scheduled", delay_s=0.0))
    jobs.repository.promote()
    job = jobs.one()
    waited = explain(job_id)["reasons"]["waited"]
    assert (waited["data"]["exact"], "waited at most " in waited["text"]) == (False, True)
    error = {"kind": "exception", "type": "ValueError", "message": "no use"}
    jobs.repository.end(ending(job, "scheduled", error=error, counts=True, delay_s=0.0))
    jobs.repository.promote()
    jobs.one()
    waited = explain(job_id)["reasons"]["waited"]
    assert waited["data"]["exact"]
    assert instant(waited["data"]["claimable_since"]) == instant(jobs.row(job_id)["run_at"])


def test_a_pause_that_a_past_job_sat_through(jobs, explain):
    """Who and why, whether it began before the job or after, and when it was over; no other queue's."""
    beat(jobs)
    control = WorkerControlRepository(jobs.connection)
    control.set("h2", jobs.queue, "off", actor="dan")
    control.clear("h2", jobs.queue, actor="dan")
    control.set("*", jobs.queue, "pause", actor="ann", reason="deploy")
    control.set("*", "elsewhere", "pause", actor="eve")
    (job_id,) = jobs.enqueue()
    control.set("h1", "*", "off", actor="bob")
    control.clear("*", jobs.queue, actor="ann")
    control.clear("h1", "*", actor="bob")
    job = jobs.one()
    control.set("*", jobs.queue, "pause", actor="zoe")
    jobs.repository.complete(job, {})
    said = qwf_here("--db", jobs.connection.info.dsn, "explain", f"{jobs.family}:{job_id}").stdout
    told = [line[4:] for line in said.splitlines() if " was paused" in line or " were " in line]
    assert [line.partition(" since ")[0] for line in told] == [
        "the queue was paused by ann",
        "its workers on h1 were switched off by bob",
    ]
    assert told[0].endswith(": deploy")
    assert all(" until " in line for line in told)


def test_a_pause_that_lapsed_before(jobs, explain):
    """Is nothing that the job waited for; one that lapsed while it waited is over then."""
    control = WorkerControlRepository(jobs.connection)
    control.set("*", jobs.queue, "pause", actor="ann", expires_in=3600)
    jobs.connection.execute(
        "UPDATE audit_log SET at = now() - interval '2 h',"
        " details = jsonb_build_object('expires_at', now() - interval '1 h')"
    )
    (job_id,) = jobs.enqueue()
    job = jobs.one()
    assert codes(explain(job_id)) == ["running", "worker_silent", "waited"]
    jobs.connection.execute(f"UPDATE {jobs.table} SET created_at = now() - interval '90 min'")
    jobs.repository.complete(job, {})
    paused = explain(job_id)["reasons"]["was_paused"]["data"]
    assert instant(paused["until"]) - instant(paused["since"]) == timedelta(hours=1)


def test_a_host_lock_names_who_holds_it_and_on_which_host(jobs, explain):
    """No job has it as its own, which excludes none inside it; then one has; and the policy of who waits."""
    beat(jobs)
    first, second = jobs.enqueue(2, host_lock="scanner")
    (third,) = jobs.enqueue(host_lock="elsewhere:scanner")
    assert codes(explain(first)) == ["next"]
    jobs.repository.hold(jobs.one("here:fetch:1"), "host_lock", "scanner", delay_s=600)
    told = explain(first)["reasons"]["host_lock"]["text"]
    assert told.startswith("it is on hold: host lock 'scanner', which no running job has as its own")
    assert "a program had it, or a job inside `ctx.host_lock`" in told
    assert "`lslocks`" in told
    assert jobs.one("here:fetch:1").id == second
    found = explain(first)["reasons"]["host_lock"]
    assert f"held by {jobs.family}:{second} on here:fetch:1 since " in found["text"]
    assert "it goes on as soon as it is free, looked at again " in found["text"]
    assert [holder["job"] for holder in found["data"]["holders"]] == [f"{jobs.family}:{second}"]
    assert f"held by {jobs.family}:{second} on here" in explain(third)["reasons"]["host_lock"]["text"]
    jobs.repository.hold(jobs.one("here:fetch:2"), "host_lock", "elsewhere:scanner", delay_s=600)
    assert "; a host where it is free takes it" in explain(third)["reasons"]["host_lock"]["text"]


# What only one family has.


@pytest.fixture
def nodes(qwf_dsn: str) -> Iterator[Jobs]:
    with jobs_of("node", qwf_dsn) as jobs:
        jobs.connection.execute("TRUNCATE worker_heartbeats")
        yield jobs


def of_node(dsn: str, job_id: int) -> dict[str, Told]:
    told = json.loads(qwf_here("--db", dsn, "explain", f"node:{job_id}", "--json").stdout)
    return {reason["code"]: reason for reason in told["reasons"]}


def test_a_hook_whose_script_no_worker_has(nodes, qwf_dsn):
    """It is no node module, and where scripts are looked for is a setting."""
    (job_id,) = nodes.enqueue(queue="hooks")
    (job,) = nodes.repository.claim("hooks", worker_id="w1", lease_s=30, limit=1)
    nodes.repository.hold(job, "unknown_module", "title/on_Page__10_title.sh", delay_s=600)
    text = of_node(qwf_dsn, job_id)["unknown_module"]["text"]
    assert "hook 'title/on_Page__10_title.sh'" in text
    assert "QWF_HOOK_DIRS" in text
    assert "module" not in text


def test_where_its_model_is(nodes, qwf_dsn):
    """Loaded by nobody, by these; left for a moment to who has it and is idle; or nobody may load it."""
    nodes.queue = "gpu"
    beat(nodes, cached_models=["other"])
    (job_id,) = nodes.enqueue(required_model="sdxl")
    told = of_node(qwf_dsn, job_id)
    assert list(told) == ["model_cold", "next"]
    assert "'sdxl'" in told["model_cold"]["text"]
    beat(nodes, "w2", cached_models=["other", "sdxl"])
    nodes.connection.execute("UPDATE workflow_node_jobs SET run_at = now() + interval '1 h'")
    told = of_node(qwf_dsn, job_id)
    assert list(told) == ["model_warm", "left_to_peer", "next"]
    assert "is loaded by w2 (idle)" in told["model_warm"]["text"]
    assert told["left_to_peer"]["data"] == {"worker_id": "w2", "yield_s": 0.5}
    nodes.connection.execute("UPDATE workflow_node_jobs SET run_at = now() - interval '1 h'")
    assert list(of_node(qwf_dsn, job_id)) == ["model_warm", "next"]
    nodes.repository.hold(nodes.one(), "model_unknown", "sdxl", delay_s=600)
    assert "can load the model 'sdxl'" in of_node(qwf_dsn, job_id)["model_unknown"]["text"]


def test_a_cancelled_run(nodes, qwf_dsn):
    """What the run is, for which a job is not begun any more."""
    beat(nodes)
    (job_id,) = nodes.enqueue()
    nodes.connection.execute("UPDATE workflow_runs SET cancel_requested_at = now(), cancel_reason = 'enough'")
    assert of_node(qwf_dsn, job_id)["run_cancelled"]["text"] == "its run is being cancelled: enough"
    run_id = nodes.row(job_id)["run_id"]
    nodes.connection.execute("UPDATE workflow_runs SET status = 'failed', finished_at = now()")
    assert RunRepository(nodes.connection).fetch(run_id).status == "failed"
    assert of_node(qwf_dsn, job_id)["run_over"]["text"] == "its run is failed"


def test_a_host_that_the_claim_does_not_go_by(nodes, qwf_dsn):
    """Refused where a job is made; a row that has it all the same is next for any worker, and is claimed."""
    with pytest.raises(PayloadError, match="pinned_host"):
        nodes.enqueue(pinned_host="h2")
    beat(nodes)
    (job_id,) = nodes.enqueue()
    nodes.connection.execute("UPDATE workflow_node_jobs SET pinned_host = 'h2'")
    assert list(of_node(qwf_dsn, job_id)) == ["next"]
    assert nodes.one().id == job_id


def test_a_node_on_a_queue_of_ingest_jobs(nodes, qwf_dsn):
    """Whose workers would never take it."""
    beat(nodes, queue="fetch")
    (job_id,) = nodes.enqueue(queue="fetch")
    assert list(of_node(qwf_dsn, job_id)) == ["wrong_queue"]


def test_a_node_that_waits_for_somebody(nodes, qwf_dsn):
    """No worker is needed for that."""
    (job_id,) = nodes.enqueue()
    nodes.repository.mark_awaiting_input(job_id)
    assert list(of_node(qwf_dsn, job_id)) == ["awaiting_input"]


def test_a_schema_that_workers_refuse(qwf_new_database):
    """The job is fine, the deployment is not."""
    dsn = qwf_new_database()
    with psycopg.connect(dsn, autocommit=True) as connection:
        job_id = IngestJobRepository(connection).enqueue("note", queue="fetch").id
        connection.execute("UPDATE queue_schema_version SET version_num = '9999'")
    said = qwf_here("--db", dsn, "explain", str(job_id)).stdout
    assert "workers of this version refuse the database: the database schema is at 9999" in said


def test_a_schema_that_workers_wait_for(qwf_new_database):
    """Neither they nor this command can read an older one, and what to do is said."""
    dsn = qwf_new_database()
    with psycopg.connect(dsn, autocommit=True) as connection:
        job_id = IngestJobRepository(connection).enqueue("note", queue="fetch").id
    db.downgrade(dsn, chain="engine", revision="0014")
    said = qwf_here("--db", dsn, "explain", str(job_id), status=79).stderr
    assert "the database schema is at 0014, this needs 00" in said
    assert "run `qwf db upgrade`" in said
    assert said.count("\n") == 1


def test_with_a_real_worker(qwf_dsn):
    """Held because the worker does not know the task; done once one does."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        jobs = IngestJobRepository(connection)
        job_id = jobs.enqueue("note", queue="fetch", reason="test").id
        with running_worker(qwf_dsn, QWF_APP="support.processes.programs"):
            until(lambda: jobs.fetch(job_id).hold_reason, within_s=150)
            said = qwf_here("--db", qwf_dsn, "explain", f"ingest:{job_id}").stdout
            assert "no worker alive knows the task 'note'" in said
        with running_worker(qwf_dsn):
            until(lambda: jobs.fetch(job_id).status == "completed", within_s=150)
    said = qwf_here("--db", qwf_dsn, "explain", f"ingest:{job_id}").stdout.splitlines()
    assert said[0].startswith(f"ingest:{job_id} note on fetch is completed since ")
    assert said[1].startswith("  - completed at ")
    assert "unknown task 'note'" in said[2]


def test_where_the_time_of_a_job_went(jobs, explain, qwf_dsn):
    """Of one that is over in a sentence, with `--past` each part of it; the parts are in JSON anyway."""
    (job_id,) = jobs.enqueue()
    jobs.repository.hold(jobs.one(), "unknown_task", "draw", delay_s=600)
    held = explain(job_id)["past"]
    assert [part["kind"] for part in held["parts"]] == ["queued", "held"]
    assert held["worked_s"] == 0
    # By another name than what a person gave as a reason, which a page may not show.
    assert [one.get("hold_reason") for one in held["parts"]] == ["", "unknown_task"]
    assert not [one for one in (*held["parts"], *held["causes"]) if "reason" in one]
    assert held["waited_s"] == pytest.approx(sum(one["seconds"] for one in held["causes"]))
    jobs.connection.execute(
        f"UPDATE {jobs.table} SET created_at = created_at - interval '1 h',"
        " started_at = started_at - interval '7 s'"
    )
    jobs.repository.promote_held("unknown_task", ["draw"], queue=jobs.queue)
    jobs.repository.end(ending(jobs.one(), "completed"))
    name = f"{jobs.family}:{job_id}"
    said = qwf_here("--db", qwf_dsn, "explain", name).stdout
    assert "held: unknown task 'draw'" in said
    assert "where its time went" not in said
    head, _, parts = qwf_here("--db", qwf_dsn, "explain", name, "--past").stdout.partition(
        "where its time went:\n"
    )
    assert said.startswith(head)
    told = [line.split(" s  ")[1] for line in parts.partition("history:")[0].splitlines()]
    assert told[-3:] == ["held: unknown task 'draw'", "queued", "attempt 2 on w1"]
    waits = qwf_here("--db", qwf_dsn, "queue", "waits", "--queue", jobs.queue).stdout
    assert [line.split()[0] for line in waits.splitlines()] == ["QUEUE", *[jobs.queue] * 3]
    assert "held: unknown task 'draw'" in waits
    # The hold has set the time anew at which it was due.
    assert "queued, or what its row keeps no more" in waits
    none = qwf_here("--db", qwf_dsn, "queue", "waits", "--queue", "nosuch").stderr
    assert none.endswith(
        "there is no queue 'nosuch' now: nothing waits or runs on it, and no worker serves it\n"
    )
    wrong = qwf_here("--db", qwf_dsn, "queue", "waits", "--queue", "no such", status=2)
    assert "'no such' is no queue name" in wrong.stderr
    refused = qwf_here(
        "--db", qwf_dsn, "explain", "0" * 8 + "-0000-0000-0000-" + "0" * 12, "--past", status=2
    )
    assert "--past goes with a JOB" in refused.stderr


# Input that is no job.


def refused(dsn: str, name: str) -> Said:
    said = qwf_here("--db", dsn, "explain", name, status=2)
    assert (said.stdout, said.stderr.count("\n")) == ("", 1)
    return said


@pytest.mark.parametrize("name", ["", "x", "ingest:", "ingest:x", "0", "1.5", "9" * 19, "run:7", "٣"])
def test_what_is_no_job_is_refused(qwf_dsn, name):
    """With the forms that are."""
    assert "write ingest:7, node:7, or 7" in refused(qwf_dsn, name).stderr


def test_a_job_that_is_not_there(qwf_dsn):
    """Named as it was asked for."""
    for name in ("ingest:999999", "node:999999", "999999"):
        assert f"there is no job {name} " in refused(qwf_dsn, name).stderr


def test_a_number_that_two_jobs_have(nodes, qwf_dsn):
    """Both are named, and the choice is left to who asks."""
    (job_id,) = nodes.enqueue()
    nodes.connection.execute(
        "INSERT INTO ingest_jobs (id, task_name, queue) VALUES (%s, 'note', 'fetch')", [job_id]
    )
    assert f"ingest:{job_id} and node:{job_id}" in refused(qwf_dsn, str(job_id)).stderr
    nodes.connection.execute("TRUNCATE ingest_jobs")
    assert qwf_here("--db", qwf_dsn, "explain", str(job_id)).stdout.startswith(f"node:{job_id} ")


def test_a_jobs_own_words_stay_words(qwf_dsn, nodes):
    """Control characters of an error do not reach the terminal."""
    (job_id,) = nodes.enqueue()
    error = {"kind": "exception", "message": "a\x1b[2Jb\nc"}
    nodes.repository.end(ending(nodes.one(), "failed", error=error, counts=True))
    said = qwf_here("--db", qwf_dsn, "explain", f"node:{job_id}").stdout
    assert "a?[2Jb c" in said
    assert "\x1b" not in said
