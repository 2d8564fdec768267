"""A host that falls silent is excused for its jobs a few times, and not for ever: one of them may be why."""

from __future__ import annotations

import os
import signal
from typing import Any

import psycopg
import pytest
from support.processes.workers import running_orchestrator, until
from support.rows.jobs import Jobs, jobs_of
from support.stages.floor import Floor

from queue_workflows.repositories import ClaimedJob
from queue_workflows.repositories.claims.withdraw_doubts import withdraw_doubts

MAX_CRASHES = 3
# So that leases lapse within seconds, but not while another worker starts. One silence is excused,
# and two are counted.
QUICK = {"QWF_LEASE_S": "6", "QWF_RENEW_S": "0.5", "QWF_MAX_CRASHES": "2"}
TERMS: dict[str, Any] = {"max_crashes": MAX_CRASHES, "lease_s": 30.0, "beat_s": 5.0}
HEARTBEAT = """
INSERT INTO worker_heartbeats (worker_id, host_label, queue, pid, state, started_at, last_seen)
VALUES (%s, %s, 'fetch', 1, 'busy', now() - interval '600 s', now() - interval '25 s')
"""
DOUBTS = ("crash_count", "suspect", "status")


def claimed_by_a_host(jobs: Jobs, host: str, count: int = 1) -> list[ClaimedJob]:
    """The next jobs, claimed one each by workers of a host that was heard of last when they were."""
    claimed = [jobs.one(f"{host}:fetch:{number}", alone=True) for number in range(count)]
    for number in range(max(count, 2)):
        jobs.connection.execute(HEARTBEAT, [f"{host}:fetch:{number}", host])
    return claimed


def fall_silent(jobs: Jobs, host: str, count: int = 1) -> list[ClaimedJob]:
    """A host takes the next jobs and is gone, with all that it held."""
    claimed = claimed_by_a_host(jobs, host, count)
    jobs.lapse(*[job.id for job in claimed])
    assert len(jobs.repository.reclaim(**TERMS)) == count
    return claimed


@pytest.fixture(params=["node", "ingest"])
def jobs(request: pytest.FixtureRequest, qwf_dsn: str) -> Any:
    with jobs_of(request.param, qwf_dsn) as jobs:
        jobs.connection.execute("TRUNCATE worker_heartbeats")
        yield jobs


def test_after_a_few_times_it_is_counted_as_any_crash(jobs: Jobs) -> None:
    """Excused at first, then doubted, then counted, at last failed: whichever hosts go down with it."""
    (job,) = jobs.enqueue()
    said = [fall_silent(jobs, f"host{time}") and jobs.seen(job, *DOUBTS) for time in range(5)]
    assert said == [
        (0, False, "queued"),
        (0, True, "queued"),
        (1, True, "queued"),
        (2, True, "queued"),
        (3, True, "failed"),
    ]
    messages = [entry["message"] for entry in jobs.row(job)["errors"]]
    assert messages[:2] == ["its host fell silent, with all of its workers"] * 2
    assert (
        messages[2] == "its host fell silent again, with all of its workers, and it ran alone on its worker"
    )
    assert messages[4] == "it killed its worker 3 times, each time running alone"


def test_from_the_second_time_on_what_is_innocent_comes_first(jobs: Jobs) -> None:
    """It does not stand in front of those that never fell silent, nor of those that did once."""
    job, once, never = jobs.enqueue(3)
    fall_silent(jobs, "first")
    held = jobs.one("x:fetch:1", alone=True)
    assert held.id == job, "once is no doubt"
    jobs.repository.release(held)
    fall_silent(jobs, "second", count=2)
    assert [jobs.seen(each, *DOUBTS)[1] for each in (job, once, never)] == [True, False, False]
    assert [jobs.one("y:fetch:1", alone=True).id for _ in range(3)] == [once, never, job]


def test_one_that_may_crash_but_once_is_excused_once(jobs: Jobs) -> None:
    """A cut network must not be what fails a job for good, and what takes hosts down takes two at most."""
    (job,) = jobs.enqueue(max_crashes=1)
    assert [fall_silent(jobs, f"host{time}") and jobs.seen(job, *DOUBTS) for time in range(2)] == [
        (0, False, "queued"),
        (1, True, "failed"),
    ]


def test_many_crashes_allowed_are_not_many_silences(jobs: Jobs) -> None:
    """No more than its errors are kept to tell."""
    (job,) = jobs.enqueue(max_crashes=100)
    for time in range(5):
        fall_silent(jobs, f"host{time}")
    assert jobs.seen(job, *DOUBTS) == (1, True, "queued")


def test_another_generation_is_excused_anew(jobs: Jobs) -> None:
    """What an operator's retry begins does not pay for what was before."""
    (job,) = jobs.enqueue()
    for time in range(5):
        fall_silent(jobs, f"host{time}")
    assert jobs.repository.retry_many([job], actor="op")
    fall_silent(jobs, "another")
    assert jobs.seen(job, *DOUBTS) == (0, False, "queued")


def test_a_host_that_comes_back_takes_it_back(jobs: Jobs) -> None:
    """Its worker lives, so the silence was its network's, and says nothing for the next time."""
    (job,) = jobs.enqueue()
    for time in range(4):
        (held,) = fall_silent(jobs, f"host{time}")
        assert withdraw_doubts(jobs.connection, [held]) == 1
        assert jobs.seen(job, *DOUBTS) == (0, False, "queued")


@pytest.mark.slow
def test_hosts_that_go_down_for_real(floor: Floor) -> None:
    """One host after the other, each with two workers, ends at one moment while the job runs there."""
    job = floor.enqueue(gated=True)
    with running_orchestrator(floor.dsn, **QUICK):
        for attempt in (1, 2, 3):
            take_a_host_down(floor, job, attempt, f"host{attempt}")
    assert floor.jobs.seen(job, *DOUBTS) == (2, True, "failed")
    counted = [entry["counted"] for entry in floor.jobs.row(job)["errors"]]
    assert counted == [False, True, True]


def take_a_host_down(floor: Floor, job: int, attempt: int, host: str) -> None:
    """Kill both workers of a host at one moment; nobody starts them again, and the lease lapses."""
    options = ("--host-label", host)
    with floor.worker(*options, **QUICK) as first, floor.worker(*options, **QUICK) as second:
        floor.until_begun(job, attempt)
        until(lambda: both_beat(floor.connection, host))
        for process in (first, second):
            os.kill(process.pid, signal.SIGKILL)
        for process in (first, second):
            process.wait(150)
        until(lambda: not floor.are_in("running", job))


def both_beat(connection: psycopg.Connection, host: str) -> bool:
    """Whether two workers of the host have each been heard of since the other began."""
    seen = connection.execute(
        "SELECT count(*), min(last_seen) > max(started_at) FROM worker_heartbeats WHERE host_label = %s",
        [host],
    ).fetchall()
    return seen == [(2, True)]
