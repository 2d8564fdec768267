"""Models in real workers: loaded when a job needs one, kept for the next, never in the way of anything."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from support.connections.kept import own_connection
from support.processes.workers import until
from support.rows.jobs import CLEAR_WITH_WORKERS
from support.stages.studios import ModelStudio

from queue_workflows.repositories import WorkerControlRepository
from queue_workflows.repositories.claims.claim_by_model import LOOKED_AT

CLAIMS = """
SELECT EXISTS (
    SELECT FROM pg_stat_activity WHERE query LIKE 'WITH peers %' AND datname = current_database()
)
"""


@pytest.fixture
def studio(qwf_dsn: str, tmp_path: Path) -> Iterator[ModelStudio]:
    with own_connection(qwf_dsn) as connection:
        connection.execute(CLEAR_WITH_WORKERS)
        yield ModelStudio(qwf_dsn, connection, tmp_path)


def test_a_model_is_loaded_for_its_jobs_and_published(studio: ModelStudio) -> None:
    """Reused while it is warm, handed to `async` bodies too, replaced by the next; a failed load is its job's
    failure with the model named; a model that this worker does not know puts its job aside and ends nobody.
    """
    first, same, other = studio.enqueue("a"), studio.enqueue("a", module="draw_async"), studio.enqueue("b")
    broken = studio.enqueue("broken", max_attempts=1)
    strange, bare = studio.enqueue("c"), studio.enqueue(None)
    studio.keep("running-n0")
    with studio.worker() as worker:
        studio.until_logged("run n0:a")
        until(lambda: [(one.current_model, one.cached_models) for one in studio.beats()] == [("a", ["a"])])
        studio.let_go("running-n0")
        studio.until_in("completed", first, same, other, bare)
        studio.until_in("failed", broken)
        studio.until_in("scheduled", strange)
        until(lambda: [one.load.get("model_misses") for one in studio.beats()] == [3])
        (beat,) = studio.beats()
        assert worker.poll() is None
    assert studio.log() == [
        *("load a", "run n0:a", "run n0:a", "unload a"),
        *("load b", "run n0:b", "unload b", "load broken", "run n0:None"),
    ]
    assert (beat.load["model_hits"], beat.current_model) == (1, None)
    (error,) = studio.jobs.row(broken)["errors"]
    assert error["type"].endswith("ModelLoadFailed")
    assert error["message"] == "the model 'broken' could not be loaded: OSError: its weights are gone"
    assert studio.jobs.seen(strange, "hold_reason", "hold_key", "failures") == ("model_unknown", "c", 0)
    assert studio.jobs.seen(same, "context_delta")[0]["model"] == {"name": "a"}
    with studio.worker("--drain", MODELS="c") as knowing:
        assert knowing.wait(150) == 0
    assert studio.jobs.seen(strange, "status", "attempt", "hold_reason") == ("completed", 2, None)


@pytest.mark.slow
def test_a_killed_loader_leaves_its_job_to_the_next(studio: ModelStudio) -> None:
    """The lease is renewed for as long as the load takes; kill -9 in the middle of it loses nothing, and the
    stall watchdog has nothing to say before the job itself has said something.
    """
    studio.keep("loading-a", "running-n0")
    job = studio.enqueue("a", module="draw_and_stall", stall_timeout_s=0.5)
    with studio.worker(QWF_RENEW_S="0.3") as victim:
        studio.until_logged("load a")
        (lease,) = studio.jobs.seen(job, "lease_expires_at")
        until(lambda: studio.jobs.seen(job, "lease_expires_at") > (lease,))
        assert studio.jobs.seen(job, "status", "attempt", "failures") == ("running", 1, 0)
        victim.kill()
        victim.wait()
    studio.jobs.lapse(job)
    studio.let_go("loading-a")
    with studio.worker(QWF_BACKOFF_S="0", QWF_BACKOFF_JITTER="0") as stalled:
        assert stalled.wait(150) == 76
    assert studio.jobs.seen(job, "attempt", "failures") == (2, 1)
    assert [entry["kind"] for entry in studio.jobs.row(job)["errors"]][-1] == "stall"


@pytest.mark.slow
def test_a_load_that_hangs_has_a_time_of_its_own(studio: ModelStudio) -> None:
    """Its worker ends with 75, the job counts a failure that names the model, not its own limit."""
    studio.keep("loading-a")
    job = studio.enqueue("a", max_attempts=1, timeout_s=0.2)
    with studio.worker(QWF_MODEL_LOAD_TIMEOUT_S="1.5") as worker:
        assert worker.wait(150) == 75
    (error,) = studio.jobs.row(job)["errors"]
    assert studio.jobs.seen(job, "status", "failures") == ("failed", 1)
    assert (error["kind"], error["model"]) == ("model_load_timeout", "a")
    assert error["message"] == "the model 'a' was not loaded within 1.5 s"


@pytest.mark.slow
def test_an_unload_that_hangs_ends_its_worker(studio: ModelStudio) -> None:
    """It would pass for an idle one for ever; no job is blamed, and the next worker does what waits."""
    studio.keep("unloading-a")
    job = studio.enqueue("a")
    hurried = {"QWF_MODEL_KEEP_S": "0.1", "QWF_MODEL_LOAD_TIMEOUT_S": "8"}
    with studio.worker(**hurried) as worker:
        studio.until_logged("unload a")
        assert worker.wait(150) == 75
    assert studio.jobs.seen(job, "status", "failures") == ("completed", 0)


@pytest.mark.slow
def test_an_unload_that_hangs_blames_no_job_that_waits_for_it(studio: ModelStudio) -> None:
    """Given back uncounted, though its own time was shorter; and done by the next worker."""
    studio.keep("unloading-a")
    first = studio.enqueue("a")
    second = studio.enqueue("b", timeout_s=0.2, max_attempts=1)
    with studio.worker(QWF_MODEL_LOAD_TIMEOUT_S="8") as worker:
        studio.until_logged("unload a")
        assert worker.wait(150) == 75
    assert studio.jobs.seen(first, "status", "failures") == ("completed", 0)
    assert studio.jobs.seen(second, "status", "failures", "crash_count") == ("queued", 0, 0)
    studio.let_go("unloading-a")
    studio.connection.execute("UPDATE workflow_node_jobs SET timeout_s = NULL WHERE id = %s", [second])
    with studio.worker():
        studio.until_in("completed", second)


@pytest.mark.slow
def test_cancel_and_off_end_a_load(studio: ModelStudio) -> None:
    """Cancelled, the job is over and its worker goes on afresh; switched off, it is given back uncounted and
    the worker is parked with nothing loaded. On again, it goes on.
    """
    studio.keep("loading-a")
    unwanted = studio.enqueue("a")
    control = WorkerControlRepository(studio.connection)
    with studio.worker(QWF_CANCEL_GRACE_S="0.2") as worker:
        studio.until_logged("load a")
        studio.jobs.repository.cancel(unwanted)
        studio.until_in("cancelled", unwanted)
        wanted = studio.enqueue("a")
        studio.until_logged("load a", 2)
        control.set("*", "gpu", desired="off", actor="ann")
        studio.until_in("queued", wanted)
        until(lambda: [(one.state, one.cached_models) for one in studio.beats()] == [("parked", [])])
        assert studio.jobs.seen(wanted, "attempt", "failures", "crash_count") == (1, 0, 0)
        studio.let_go("loading-a")
        control.clear("*", "gpu", actor="ann")
        studio.until_in("completed", wanted)
        assert worker.poll() is None


@pytest.mark.slow
def test_a_worker_that_pauses_or_idles_keeps_no_model(studio: ModelStudio) -> None:
    """Unloaded by its own hand: the process is the same before and after."""
    job = studio.enqueue("a")
    control = WorkerControlRepository(studio.connection)
    with studio.worker() as worker:
        studio.until_in("completed", job)
        control.set("*", "gpu", desired="pause", actor="ann")
        studio.until_logged("unload a")
        until(lambda: [(one.state, one.cached_models) for one in studio.beats()] == [("paused", [])])
        control.clear("*", "gpu", actor="ann")
        again = studio.enqueue("a")
        studio.until_in("completed", again)
        assert len({studio.jobs.seen(each, "context_delta")[0]["pid"] for each in (job, again)}) == 1
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(150) == 0
    with studio.worker(QWF_MODEL_KEEP_S="0.2"):
        studio.until_in("completed", studio.enqueue("b"))
        studio.until_logged("unload b")


@pytest.mark.slow
def test_a_worker_that_is_never_idle_keeps_no_model_for_too_long(studio: ModelStudio) -> None:
    """What is idle for too long is unloaded between two jobs, but not what the next one wants."""
    jobs = [studio.enqueue(model) for model in ("a", None, "a")]
    with studio.worker("--drain", QWF_MODEL_KEEP_S="0") as worker:
        assert worker.wait(150) == 0
    assert {studio.jobs.seen(job, "status") for job in jobs} == {("completed",)}
    assert studio.log() == ["load a", "run n0:a", "run n0:a", "unload a", "run n0:None"]


@pytest.mark.slow
def test_who_cannot_load_a_model_keeps_its_jobs_from_nobody(studio: ModelStudio) -> None:
    """An idle worker claims them as soon as they are fetched, and puts them aside again; still the one that
    can load it does one after the other.
    """
    jobs = [studio.enqueue("c") for _ in range(3)]
    with studio.worker(MODELS="a"):
        studio.until_in("scheduled", *jobs)
        studio.keep("running-n0")
        with studio.worker(MODELS="c"):
            studio.until_logged("run n0:c")
            until(
                lambda: (
                    sorted(studio.jobs.seen(job, "status", "hold_reason") for job in jobs)
                    == [("running", None), *[("scheduled", "model_unknown")] * 2]
                )
            )
            studio.let_go("running-n0")
            studio.until_in("completed", *jobs)
    assert studio.log() == ["load c", *["run n0:c"] * 3]
    assert {studio.jobs.seen(job, "failures") for job in jobs} == {(0,)}


@pytest.mark.slow
def test_what_others_are_claiming_ends_no_drain(studio: ModelStudio, qwf_dsn: str) -> None:
    """More rows than a claim looks at are locked: a worker that drains the queue is not done with it."""
    jobs = [studio.enqueue("a") for _ in range(LOOKED_AT + 4)]
    with psycopg.connect(qwf_dsn) as others:
        others.execute("SELECT FROM workflow_node_jobs FOR UPDATE")
        with studio.worker("--drain") as worker:
            until(lambda: studio.connection.execute(CLAIMS).fetchone() == (True,))
            others.rollback()
            assert worker.wait(150) == 0
    assert {studio.jobs.seen(job, "status") for job in jobs} == {("completed",)}


@pytest.mark.slow
def test_idle_workers_leave_a_job_to_who_has_its_model(studio: ModelStudio) -> None:
    """All of them are woken, and it is the one that has it loaded that takes it."""
    waiting = {"QWF_AFFINITY_YIELD_S": "60"}
    with studio.worker(**waiting), studio.worker(**waiting):
        until(lambda: [one.state for one in studio.beats()] == ["idle"] * 2)
        jobs = []
        for _ in range(4):
            jobs.append(studio.enqueue("a"))
            studio.until_in("completed", jobs[-1])
            until(
                lambda: (
                    sorted((one.state, one.cached_models) for one in studio.beats())
                    == [("idle", []), ("idle", ["a"])]
                )
            )
    assert len({studio.jobs.seen(each, "context_delta")[0]["pid"] for each in jobs}) == 1
    assert studio.log() == ["load a", *["run n0:a"] * 4]


@pytest.mark.slow
def test_a_registrar_that_raises_is_one_line(studio: ModelStudio) -> None:
    """Exit 78 with what to do, before anything is claimed."""
    job = studio.enqueue("a")
    with studio.worker(MODELS="a a") as worker:
        assert worker.wait(150) == 78
        assert worker.stderr is not None
        assert "the model registrar gave 'a' twice" in worker.stderr.read()
    assert studio.jobs.seen(job, "status", "attempt") == ("queued", 0)
