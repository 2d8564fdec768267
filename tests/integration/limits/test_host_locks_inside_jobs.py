"""ctx.host_lock: one holder on a machine at a time, waited for without a stall, freed on every path."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes.workers import until
from support.rows.limited_jobs import LimitedJobs, limited_jobs

from queue_workflows import Cancelled, HostLock, RetryAfter
from queue_workflows.engine.execution.context import JobContext
from queue_workflows.engine.outcomes import Stop
from queue_workflows.host.locks.lock import Free, Held, probe


@pytest.fixture
def jobs(qwf_dsn: str, tmp_path: Path) -> Iterator[LimitedJobs]:
    with limited_jobs(qwf_dsn, lock_dir=tmp_path) as made:
        yield made


def is_held(directory: Path) -> bool:
    found = probe(directory, "camera.hostlock")
    if isinstance(found, Free):
        found.release()
    return isinstance(found, Held)


def test_a_block_has_the_lock_and_frees_it_on_every_path(jobs: LimitedJobs, tmp_path: Path) -> None:
    """Sync and async, also when the block raises; the file names the job."""
    ctx = jobs.ctx()

    async def inside() -> None:
        async with ctx.host_lock("camera"):
            assert is_held(tmp_path)

    def fail() -> None:
        with ctx.host_lock("camera"):
            found = probe(tmp_path, "camera.hostlock")
            assert isinstance(found, Held)
            assert found.claim is not None
            incarnation = ctx.worker_id.rpartition(":")[2]
            assert found.claim.note == f"ingest:{ctx.id}, attempt {ctx.attempt}, worker {incarnation}"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not is_held(tmp_path)
    asyncio.run(inside())
    assert not is_held(tmp_path)
    assert not jobs.windows.locks.held


def test_two_jobs_of_one_process_exclude_each_other_and_the_wait_is_recorded(
    jobs: LimitedJobs, tmp_path: Path
) -> None:
    """The second one says what it waits for, and has the lock when the first is through."""
    second, came_in = jobs.ctx(), threading.Event()

    def wait() -> None:
        with second.host_lock("camera", max_wait_s=math.inf):
            came_in.set()

    with jobs.ctx().host_lock("camera"):
        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: second.awaiting)
        assert [(what.what.value, what.keys) for what, _ in second.awaiting] == [("host_lock", ("camera",))]
        assert not came_in.is_set()
    thread.join(150)
    assert came_in.is_set()
    assert second.waits.locks == 1
    assert second.waits.lock_s > 0
    assert second.awaiting == ()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_stop_ends_the_wait(jobs: LimitedJobs, tmp_path: Path, is_async: bool) -> None:
    """A job that is cancelled, or whose lease is lost, waits no longer and holds nothing."""
    ctx = jobs.ctx()

    async def enter(ctx: JobContext) -> None:
        async with ctx.host_lock("camera", max_wait_s=math.inf):
            raise AssertionError("it never came in")

    ended: list[BaseException] = []

    def run() -> None:
        try:
            if is_async:
                asyncio.run(enter(ctx))
            else:
                with ctx.host_lock("camera", max_wait_s=math.inf):
                    raise AssertionError("it never came in")
        except Cancelled as exc:
            ended.append(exc)

    with HostLock("camera", directory=tmp_path):
        thread = threading.Thread(target=run)
        thread.start()
        until(lambda: ctx.awaiting)
        ctx.stop(Stop.LEASE_LOST)
        thread.join(150)
        assert len(ended) == 1
    assert not is_held(tmp_path)


def test_who_waits_in_vain_is_put_back(jobs: LimitedJobs, tmp_path: Path) -> None:
    """Uncounted, after as long as the job is willing to wait."""
    with (
        HostLock("camera", directory=tmp_path),
        pytest.raises(RetryAfter, match="waited 0 s for the host lock 'camera'"),
        jobs.ctx().host_lock("camera", max_wait_s=0),
    ):
        raise AssertionError("it never came in")


def test_nobody_waits_for_himself(jobs: LimitedJobs, tmp_path: Path) -> None:
    """A lock that the job has anyway is had at once; one around the code is a mistake, and said so."""
    ctx = jobs.ctx(host_lock="elsewhere:camera")
    with HostLock("camera", directory=tmp_path), ctx.host_lock("camera", max_wait_s=0):
        pass
    other = jobs.ctx()
    with (
        other.host_lock("camera"),
        pytest.raises(RuntimeError, match="it would wait for itself"),
        other.host_lock("camera"),
    ):
        raise AssertionError("it never came in")
    assert not is_held(tmp_path)


def test_what_a_function_left_held_ends_with_its_job(jobs: LimitedJobs, tmp_path: Path) -> None:
    """As if the block had been left; leaving it later does nothing."""
    ctx = jobs.ctx()
    locked = ctx.host_lock("camera")
    locked.__enter__()
    assert is_held(tmp_path)
    assert jobs.windows.locks.free([ctx.job.fence]) == ["camera"]
    assert not is_held(tmp_path)
    with HostLock("camera", directory=tmp_path):
        locked.__exit__(None, None, None)
        assert is_held(tmp_path)
