"""A job that leaves its process no descriptors costs itself a crash: no worker lives on of no use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.processes.quick_supervisor import real_workers
from support.processes.supervised import Supervised
from support.processes.workers import patiently
from support.stages.floor import Floor

pytestmark = pytest.mark.usefixtures("cold_starts")

# What else opens and closes descriptors would give some back to a worker that a job has left none.
APP = {"QWF_APP": "support.tasks.spoiling_tasks", "QWF_MAX_CRASHES": "1", "QWF_LISTEN": "off"}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("concurrency", [1, 4])
def test_what_uses_up_descriptors_is_counted(floor: Floor, concurrency: int) -> None:
    """The process says why it ends, the job is charged with it, and the others run in the next one."""
    spoils = floor.repository.enqueue("uses up descriptors", queue="fetch", max_attempts=1).id
    good = [floor.repository.enqueue("async good", queue="fetch").id for _ in range(3)]
    with real_workers(floor.dsn, f"fetch --concurrency {concurrency}", env=APP) as supervisor:
        patiently(lambda: floor.are_in("completed", *good))
        patiently(lambda: floor.are_in("failed", spoils) or floor.are_in("completed", spoils))
        # Which a worker that has no descriptor left would not do.
        good += [floor.repository.enqueue("async good", queue="fetch").id for _ in range(3)]
        patiently(lambda: floor.are_in("completed", *good))
        assert supervisor.stop() == 0
    check(floor, supervisor, good)
    # Its own crash, and nobody else's: it is seen as soon as the job has ended, beside others or alone.
    assert floor.jobs.seen(spoils, "status", "crash_count", "failures") == ("failed", 1, 0)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_loop_that_finds_no_descriptors(floor: Floor, tmp_path: Path) -> None:
    """Too few are left for the event loop, which starts with its first job: none waits for a loop in vain."""
    begun = tmp_path / "begun"
    # With these the worker gets on, but for the loop, which takes three.
    args = {"but": 2, "begun": str(begun)}
    spoils = floor.repository.enqueue("keeps descriptors", queue="fetch", args=args).id
    with real_workers(floor.dsn, "fetch --concurrency 4", env=APP) as supervisor:
        patiently(begun.is_dir)
        good = [floor.repository.enqueue("async good", queue="fetch").id for _ in range(3)]
        patiently(lambda: floor.are_in("completed", *good) and floor.are_in("failed", spoils))
        assert supervisor.stop() == 0
    check(floor, supervisor, good)
    # It alone had begun, so it need not be suspected first.
    assert floor.jobs.seen(spoils, "attempt", "crash_count", "failures") == (1, 1, 0)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("concurrency", [1, 4])
def test_files_that_may_not_be_written_any_more(floor: Floor, tmp_path: Path, concurrency: int) -> None:
    """A job that forbids its process files for good is charged with its end; the next has its lock."""
    args = {"limits": {"RLIMIT_FSIZE": 0}, "for_good": True}
    env = {**APP, "QWF_LOCK_DIR": str(tmp_path / "locks")}
    with real_workers(floor.dsn, f"fetch --concurrency {concurrency}", env=env) as supervisor:
        spoils = floor.repository.enqueue("limits", queue="fetch", args=args).id
        patiently(lambda: floor.are_in("failed", spoils) or floor.are_in("completed", spoils))
        locked = floor.repository.enqueue("good", queue="fetch", host_lock="camera").id
        patiently(lambda: floor.jobs.seen(locked, "status") not in [("queued",), ("running",)])
        assert supervisor.stop() == 0
    assert floor.jobs.seen(locked, "status", "attempt", "crash_count") == ("completed", 1, 0)
    assert floor.jobs.seen(spoils, "status", "crash_count", "failures") == ("failed", 1, 0)
    said = "\n".join(supervisor.said)
    assert "Traceback" not in said
    assert "how much this process may write into a file" in said


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_threads_that_cannot_be_started(floor: Floor) -> None:
    """The worker of a job that leaves no memory for the stack of a thread ends, and is started anew."""
    env = {**APP, "QWF_MAX_CRASHES": "3"}
    # Its own threads the worker has by then, but for that of the event loop.
    done = [floor.repository.enqueue("good", queue="fetch").id for _ in range(8)]
    spoils = floor.repository.enqueue("allows no thread", queue="fetch").id
    with real_workers(floor.dsn, "fetch --concurrency 4", env=env) as supervisor:
        patiently(lambda: floor.are_in("completed", spoils, *done))
        good = [floor.repository.enqueue("async good", queue="fetch").id for _ in range(3)]
        patiently(lambda: floor.are_in("completed", *good))
        assert supervisor.stop() == 0
    said = "\n".join(supervisor.said)
    assert "can't start new thread" in said
    assert "Traceback" not in said
    assert {floor.jobs.seen(job_id, "failures") for job_id in good} == {(0,)}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_threads_that_end_as_they_start(floor: Floor) -> None:
    """Nothing waits for their work: the worker ends, and the jobs that it held run in the next one."""
    env = {**APP, "QWF_MAX_CRASHES": "5"}
    with real_workers(floor.dsn, "fetch --concurrency 4", env=env) as supervisor:
        spoils = floor.repository.enqueue("traces threads", queue="fetch").id
        patiently(lambda: floor.are_in("completed", spoils))
        good = [floor.repository.enqueue("async good", queue="fetch").id for _ in range(8)]
        patiently(lambda: floor.are_in("completed", *good))
        assert supervisor.stop() == 0
    said = "\n".join(supervisor.said)
    assert "Traceback" not in said
    assert re.search(r"the thread qwf-\S+ ended by ValueError \(replaced by a job\), so it ends", said)
    assert {floor.jobs.seen(job_id, "failures") for job_id in good} == {(0,)}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("concurrency", [1, 4])
def test_threads_that_a_job_ends(floor: Floor, concurrency: int) -> None:
    """One of the engine's that is ended takes its process with it, also when the job ends it once more."""
    env = {**APP, "QWF_LISTEN": "on"}
    spoils = floor.repository.enqueue("ends other threads", queue="fetch").id
    with real_workers(floor.dsn, f"fetch --concurrency {concurrency}", env=env) as supervisor:
        patiently(lambda: floor.are_in("failed", spoils))
        good = [floor.repository.enqueue("good", queue="fetch").id for _ in range(3)]
        patiently(lambda: floor.are_in("completed", *good))
        assert supervisor.stop() == 0
    assert floor.jobs.seen(spoils, "crash_count", "failures") == (1, 0)


def check(floor: Floor, supervisor: Supervised, good: list[int]) -> None:
    """The worker said one line of it, and no other job is charged with anything."""
    assert {floor.jobs.seen(job_id, "crash_count", "failures") for job_id in good} == {(0, 0)}
    said = "\n".join(supervisor.said)
    assert "Traceback" not in said
    assert "has no database" not in said
    assert "descriptor" in said
