"""`wait_for`: the result of one job or run, or why there is none."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb
from sqlalchemy import Engine
from support.processes.workers import running_worker
from support.rows.jobs import Jobs, ending, jobs_of

from queue_workflows import (
    JobCancelled,
    JobFailed,
    JobNotCompleted,
    PayloadError,
    QwfError,
    RunCancelled,
    RunFailed,
    RunRepository,
    UnknownJob,
    UnknownRun,
    WaitTimeout,
    wait_for,
)
from queue_workflows.engine.watch.wait_for import LATEST_S, SOONEST_S
from queue_workflows.repositories import IngestJobRepository, StartedRun


@pytest.fixture(params=["node", "ingest"])
def jobs(request: pytest.FixtureRequest, qwf_dsn: str) -> Iterator[Jobs]:
    """An empty table of each family."""
    with jobs_of(request.param, qwf_dsn) as jobs:
        yield jobs


class Clock:
    """Time that passes only while somebody sleeps; before each sleep ends, something may happen."""

    def __init__(self, *happens: Callable[[], Any]) -> None:
        self.at = 0.0
        self.pauses: list[float] = []
        self.happens = list(happens)

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.at += seconds
        if self.happens:
            self.happens.pop(0)()


def wait(jobs: Jobs, dsn: str, job_id: int, clock: Clock, timeout: float | None = None) -> Any:
    return wait_for(job_id, timeout, family=jobs.family, db_url=dsn, now=clock.now, sleep=clock.sleep)


def test_the_result_comes_as_soon_as_it_is_there(jobs: Jobs, qwf_dsn: str) -> None:
    """Whatever the job goes through on the way; a retry is part of the way."""
    (job_id,) = jobs.enqueue()

    def run() -> None:
        jobs.repository.complete(jobs.one(), {"pages": 3})

    def fail_and_retry() -> None:
        jobs.repository.end(ending(jobs.one(), "scheduled", delay_s=0.0))
        jobs.repository.promote()

    clock = Clock(lambda: None, fail_and_retry, run)
    assert wait(jobs, qwf_dsn, job_id, clock) == {"pages": 3}
    assert len(clock.pauses) == 3
    assert wait(jobs, qwf_dsn, job_id, Clock(), 0) == {"pages": 3}


def test_why_there_is_no_result(jobs: Jobs, qwf_dsn: str) -> None:
    """Failed, cancelled: an exception of its own, with the job's last words."""
    error = {"kind": "exception", "type": "ValueError", "message": "no use"}
    failed, cancelled, skipped = jobs.enqueue(3)
    jobs.repository.end(ending(jobs.one(), "failed", error=error, counts=True))
    with pytest.raises(JobFailed, match=rf"^{jobs.family}:{failed} failed: ValueError: no use$") as caught:
        wait(jobs, qwf_dsn, failed, Clock())
    assert caught.value.error["message"] == "no use"
    jobs.repository.cancel(cancelled)
    with pytest.raises(JobCancelled, match=rf"^{jobs.family}:{cancelled} was cancelled$"):
        wait(jobs, qwf_dsn, cancelled, Clock())
    jobs.repository.end(ending(jobs.one(), "skipped"))
    assert wait(jobs, qwf_dsn, skipped, Clock()) is None
    assert issubclass(JobFailed, JobNotCompleted)


def test_patience_ends(jobs: Jobs, qwf_dsn: str) -> None:
    """At the very time that was given; the job goes on, and the exception is a TimeoutError too."""
    (job_id,) = jobs.enqueue()
    clock = Clock()
    with pytest.raises(TimeoutError, match=f"qwf explain {jobs.family}:{job_id}") as caught:
        wait(jobs, qwf_dsn, job_id, clock, 7.5)
    assert isinstance(caught.value, WaitTimeout)
    assert isinstance(caught.value, QwfError)
    assert (caught.value.exit_code, caught.value.status) == (73, "queued")
    assert clock.at == pytest.approx(7.5)
    assert jobs.row(job_id)["status"] == "queued"


def test_it_looks_often_at_first_and_never_rarely(jobs: Jobs, qwf_dsn: str) -> None:
    """After a tenth of what it has waited, within its bounds: a long wait costs a look a second."""
    (job_id,) = jobs.enqueue()
    clock = Clock()
    with pytest.raises(WaitTimeout):
        wait(jobs, qwf_dsn, job_id, clock, 60)
    assert clock.pauses[0] == SOONEST_S
    assert max(clock.pauses) == LATEST_S
    waited = 0.0
    for pause in clock.pauses[:-1]:
        assert pause == pytest.approx(min(LATEST_S, max(SOONEST_S, waited / 10)))
        waited += pause
    assert len(clock.pauses) < 130


def test_a_job_that_is_not_there(jobs: Jobs, qwf_dsn: str) -> None:
    """Not committed, or pruned while somebody waits."""
    with pytest.raises(UnknownJob, match="is not committed yet"):
        wait(jobs, qwf_dsn, 999_999, Clock())
    with psycopg.connect(qwf_dsn) as open_:
        (job_id,) = Jobs(jobs.family, open_).enqueue()
        with pytest.raises(UnknownJob):
            wait(jobs, qwf_dsn, job_id, Clock())
        open_.commit()
    with pytest.raises(UnknownJob):
        wait(jobs, qwf_dsn, job_id, Clock(lambda: jobs.connection.execute(f"DELETE FROM {jobs.table}")))


def test_a_lost_connection_is_not_the_end(jobs: Jobs, qwf_dsn: str) -> None:
    """The job outlives it, and so does the wait; what it waits for may come meanwhile."""
    (job_id,) = jobs.enqueue()

    def cut() -> None:
        jobs.connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name LIKE 'qwf:waiter%' AND datname = current_database()"
        )
        jobs.repository.complete(jobs.one(), {"ok": True})

    assert wait(jobs, qwf_dsn, job_id, Clock(cut)) == {"ok": True}


def test_on_the_callers_engine_nothing_is_held_meanwhile(jobs: Jobs, qwf_engine: Engine) -> None:
    """Each look gives its connection back: many may wait on a small pool."""
    (job_id,) = jobs.enqueue()
    held: list[int] = []

    def look() -> None:
        held.append(qwf_engine.pool.checkedout())

    def done() -> None:
        jobs.repository.complete(jobs.one(), {"ok": True})

    clock = Clock(look, look, done)
    job = f"{jobs.family}:{job_id}"
    assert wait_for(job, engine=qwf_engine, now=clock.now, sleep=clock.sleep) == {"ok": True}
    assert held == [0, 0]


def test_the_outputs_of_a_run(qwf_dsn: str) -> None:
    """By whatever names it; as with a job, a failure and a cancel are exceptions of their own."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection:
        runs = RunRepository(connection)
        done, failed, cancelled = (runs.insert("film", spec={}, spec_hash="h") for _ in range(3))

        def end(run: StartedRun, status: str, **columns: Any) -> None:
            connection.execute(
                "UPDATE workflow_runs SET status = %s, finished_at = now(), outputs = %s, error = %s"
                " WHERE id = %s",
                [status, columns.get("outputs"), columns.get("error"), run.id],
            )

        clock = Clock(lambda: None, lambda: end(done, "completed", outputs=Jsonb({"url": "x"})))
        assert wait_for(done, db_url=qwf_dsn, now=clock.now, sleep=clock.sleep) == {"url": "x"}
        assert len(clock.pauses) == 2
        for named in (done.id, str(done.id), f"run:{done.id}"):
            assert wait_for(named, 0, db_url=qwf_dsn) == {"url": "x"}
        assert runs.finished(failed.id) is None
        with pytest.raises(WaitTimeout, match=f"qwf explain run:{failed.id}"):
            wait_for(failed, 0, db_url=qwf_dsn)
        end(failed, "failed", error=Jsonb({"node": "cut", "message": "ValueError: no use"}))
        words = rf"^run:{failed.id} failed: node cut: ValueError: no use"
        with pytest.raises(RunFailed, match=words) as caught:
            wait_for(failed, db_url=qwf_dsn)
        assert (caught.value.exit_code, caught.value.run) == (1, f"run:{failed.id}")
        end(cancelled, "cancelled")
        with pytest.raises(RunCancelled, match=rf"^run:{cancelled.id} was cancelled"):
            wait_for(cancelled, db_url=qwf_dsn)
        over = runs.finished(done.id)
        assert over is not None
        assert (over.workflow, over.status, over.outputs) == ("film", "completed", {"url": "x"})
    with pytest.raises(UnknownRun, match="is not committed yet"):
        wait_for(uuid.uuid4(), db_url=qwf_dsn)


@pytest.mark.parametrize("job", ["7", "run:7", "ingest:", 0, -1, True, 1.5, 2**63, None])
def test_what_is_no_job_is_refused(qwf_dsn: str, job: Any) -> None:
    """Before anything is asked."""
    with pytest.raises(PayloadError):
        wait_for(job, db_url=qwf_dsn)


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "5"])
def test_what_is_no_time_is_refused(qwf_dsn: str, timeout: Any) -> None:
    """None is for ever."""
    with pytest.raises(PayloadError):
        wait_for(1, timeout, db_url=qwf_dsn)
    with pytest.raises(PayloadError):
        wait_for(1, family="film", db_url=qwf_dsn)


def test_with_a_real_worker(qwf_dsn: str) -> None:
    """A caller enqueues, commits, and gets what the task returned; several may wait for one job."""
    with psycopg.connect(qwf_dsn, autocommit=True) as connection, running_worker(qwf_dsn):
        job = IngestJobRepository(connection).enqueue("note", queue="fetch", reason="hello")
        results: list[Any] = []
        others = [
            threading.Thread(target=lambda: results.append(wait_for(job, 60, db_url=qwf_dsn)))
            for _ in range(3)
        ]
        for other in others:
            other.start()
        assert wait_for(job, 60, db_url=qwf_dsn)["reason"] == "hello"
        for other in others:
            other.join(150)
        assert [result["reason"] for result in results] == ["hello"] * 3
        failing = IngestJobRepository(connection).enqueue("fails", queue="fetch", max_attempts=1)
        with pytest.raises(JobFailed, match="ValueError: no use: None"):
            wait_for(failing, 60, db_url=qwf_dsn)
