"""What a job replaces, closes or overwrites in its process stops no worker: it goes on, and ends as told."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from support.processes.workers import running_worker, until
from support.stages.floor import Floor

# Of a start afresh, which is a new interpreter.
cold = pytest.mark.usefixtures("cold_starts")

APP = {"QWF_APP": "support.tasks.spoiling_tasks", "QWF_POLL_S": "0.2"}
REPLACED: list[dict[str, Any]] = [
    {"names": ["time.monotonic"], "by": "still"},
    {"names": ["time.monotonic"], "by": "ahead"},
    {"names": ["time.monotonic", "time.sleep", "json.dumps", "json.loads"], "by": "raises"},
]
# A worker of one job and one of several have one guardian and one way to the clock: by day each is met once.
EACH = [
    pytest.param(
        replaced,
        at_once,
        id=f"{at_once}-{replaced}",
        marks=() if (number % 2 == 0) == (at_once == "1") else pytest.mark.nightly,
    )
    for number, replaced in enumerate(REPLACED)
    for at_once in ("1", "3")
]


def spoilt(floor: Floor, task: str, args: dict[str, Any], *options: str, then: str = "good") -> None:
    """A job of the task, others after it in the same process, and a stop that is heard."""
    with running_worker(floor.dsn, *options, **APP) as worker:
        pids = set()
        for number, name in enumerate([task, then, then]):
            job = floor.repository.enqueue(name, queue="fetch", args=args, max_attempts=1).id
            until(lambda job=job: not floor.are_in("queued", job) and not floor.are_in("running", job))
            row = floor.jobs.row(job)
            seen = row["status"], row["failures"], row["crash_count"]
            assert seen == ("completed", 0, 0), (number, row["errors"])
            pids.add(row["result"]["pid"])
        assert pids == {worker.pid}
        # Later than the lease would have lapsed for one that does not renew or beat.
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(150) == 0
        assert worker.stderr is not None
        said = worker.stderr.read()
    assert "Traceback" not in said, said
    assert "SIGTERM: stopping" in said


@pytest.mark.slow
@pytest.mark.parametrize(("replaced", "at_once"), EACH)
def test_clocks_and_json(
    floor: Floor, replaced: dict[str, Any], at_once: str, request: pytest.FixtureRequest
) -> None:
    """The worker and its guardian use what was there before."""
    if replaced["by"] == "raises":
        # A forked worker has imported early what others import after the job.
        request.getfixturevalue("cold_starts")
    spoilt(floor, "replaces", replaced, "--concurrency", at_once)


@pytest.mark.slow
@pytest.mark.parametrize("at_once", ["1", "3"])
def test_a_clock_that_no_line_of_a_log_can_be_written_with(floor: Floor, at_once: str) -> None:
    """The guards of its job cannot say what they do, and end the worker all the same: none is unguarded."""
    args = {"names": ["time.time", "time.time_ns"], "by": "no number", "s": 600}
    # Without its timer, which would end it later.
    with running_worker(floor.dsn, "--concurrency", at_once, QWF_DEADMAN="off", **APP) as worker:
        floor.repository.enqueue("replaces", queue="fetch", args=args, timeout_s=1.0)
        assert worker.wait(150) != 0


@pytest.mark.slow
@pytest.mark.parametrize("at_once", ["1", "3"])
def test_streams(floor: Floor, at_once: str) -> None:
    """What the worker has to say is said all the same, and what other jobs print."""
    spoilt(floor, "closes its streams", {}, "--concurrency", at_once, then="prints")


@pytest.mark.slow
def test_signals(floor: Floor) -> None:
    """A worker whose job ignores them hears them again when it is over."""
    spoilt(floor, "ignores signals", {}, "--concurrency", "1")


@cold
@pytest.mark.slow
@pytest.mark.parametrize("at_once", ["1", "3"])
def test_the_working_directory(floor: Floor, tmp_path: Path, at_once: str) -> None:
    """The settings of a worker are those of where it began, also when a job has taken that from below it."""
    place = {"place": str(tmp_path / "gone")}
    spoilt(floor, "loses its directory", place, "--concurrency", at_once, then="enqueues")


@cold
@pytest.mark.slow
def test_a_worker_that_starts_afresh_after_that(floor: Floor, tmp_path: Path) -> None:
    """It starts where it began."""
    gone = {"place": str(tmp_path / "gone")}
    with running_worker(floor.dsn, "--concurrency", "1", "--recycle-jobs", "1", **APP) as worker:
        jobs = [floor.repository.enqueue("loses its directory", queue="fetch", args=gone).id]
        jobs += [floor.repository.enqueue("enqueues", queue="fetch").id for _ in range(2)]
        floor.until_completed(*jobs)
        assert worker.poll() is None


@pytest.mark.slow
@pytest.mark.parametrize("at_once", ["1", "3"])
def test_its_own_context(floor: Floor, at_once: str) -> None:
    """What the guardian reads of a job is believed only if it is of the right kind."""
    spoilt(floor, "overwrites its context", {"s": 3}, "--concurrency", at_once)


@pytest.mark.slow
def test_the_tasks_of_its_neighbours(floor: Floor, tmp_path: Path) -> None:
    """A job that another one cancels is given back, uncounted; one that cancels itself has failed."""
    begun, after = tmp_path / "begun", tmp_path / "after"
    hit = [
        floor.repository.enqueue("async waits", queue="fetch", args={"begun": str(begun)}).id
        for _ in range(2)
    ]
    by = floor.repository.enqueue("cancels the others", queue="fetch", args={"after": str(after)}).id
    own = floor.repository.enqueue("cancels itself", queue="fetch", max_attempts=1).id
    with running_worker(floor.dsn, "--concurrency", "4", **APP):
        until(lambda: all(Path(f"{begun}-{job}").exists() for job in hit))
        until(lambda: floor.are_in("failed", own))
        after.touch()
        floor.until_completed(by, *hit)
    assert {floor.jobs.seen(job, "failures", "crash_count", "attempt") for job in hit} == {(0, 0, 2)}
    assert floor.jobs.seen(own, "failures") == (1,)


def test_a_task_that_a_neighbour_cancels_before_it_begins(floor: Floor) -> None:
    """It is given back as well: it has done nothing that could have failed."""
    by = floor.repository.enqueue("cancels one before it begins", queue="fetch").id
    with running_worker(floor.dsn, "--concurrency", "4", **APP):
        until(lambda: floor.are_in("running", by))
        hit = floor.repository.enqueue("async good", queue="fetch", max_attempts=1).id
        floor.until_completed(by, hit)
    assert floor.jobs.seen(hit, "failures", "crash_count", "attempt") == (0, 0, 2)


@pytest.mark.slow
@pytest.mark.parametrize("at_once", ["1", "3"])
def test_a_process_that_may_write_no_file(floor: Floor, tmp_path: Path, at_once: str) -> None:
    """It may again when the job is over that forbade it: what needs a lock has it in its first attempt."""
    args = {"limits": {"RLIMIT_FSIZE": 0}}
    locks = str(tmp_path / "locks")
    with running_worker(floor.dsn, "--concurrency", at_once, QWF_LOCK_DIR=locks, **APP) as worker:
        floor.until_completed(floor.repository.enqueue("limits", queue="fetch", args=args).id)
        locked = floor.repository.enqueue("good", queue="fetch", host_lock="camera").id
        until(lambda: floor.jobs.seen(locked, "status") not in [("queued",), ("running",)])
        assert floor.jobs.seen(locked, "status", "attempt") == ("completed", 1)
        assert floor.jobs.row(locked)["result"]["pid"] == worker.pid


@cold
@pytest.mark.slow
def test_limits_that_an_exec_hands_on(floor: Floor) -> None:
    """A worker that starts afresh has those that it began with."""
    limits = {"limits": {"RLIMIT_FSIZE": 0, "RLIMIT_STACK": 65_536}}
    with running_worker(floor.dsn, "--concurrency", "1", "--recycle-jobs", "1", **APP) as worker:
        first = floor.repository.enqueue("limits", queue="fetch", args=limits).id
        others = [floor.repository.enqueue("good", queue="fetch").id for _ in range(2)]
        floor.until_completed(first, *others)
        assert floor.jobs.row(others[-1])["result"]["pid"] == worker.pid


@cold
@pytest.mark.slow
def test_an_environment_that_an_exec_hands_on(floor: Floor) -> None:
    """A worker that starts afresh has the settings that it began with, and none that a job has put there."""
    with running_worker(floor.dsn, "--concurrency", "1", "--recycle-jobs", "1", **APP) as worker:
        first = floor.repository.enqueue("empties its environment", queue="fetch").id
        others = [floor.repository.enqueue("good", queue="fetch").id for _ in range(2)]
        floor.until_completed(first, *others)
        assert worker.poll() is None
