"""When the threads of a crew wake the thread that writes what has ended."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from support.processes.workers import until

from queue_workflows.engine.execution.guards import Budget, HeldJob
from queue_workflows.roles.worker.concurrent.job_threads import JobThreads

PATIENCE_S = 30.0


class Bench:
    """One thread at the first of five jobs, which end one by one; and the bell that it rings."""

    def __init__(self) -> None:
        self.rung = threading.Event()
        self._gate = threading.Semaphore(0)
        self._over = 0
        self.job_threads = JobThreads(1, perform=self._perform, ring=self.rung.set)
        jobs = [self._held(job_id) for job_id in range(1, 6)]
        self.job_threads.put(jobs)
        until(lambda: self.job_threads.waiting == 4)

    def _held(self, job_id: int) -> HeldJob:
        job, ctx = SimpleNamespace(id=job_id), SimpleNamespace()
        return HeldJob(job, ctx, Budget(9, 9), 0.0, 9.0)  # type: ignore[arg-type]

    def _perform(self, held: HeldJob) -> None:
        self._gate.acquire()

    def end_one(self) -> None:
        """By the time that the next one has begun, the bell has been rung for this one or will not be."""
        waiting = self.job_threads.waiting
        self._gate.release()
        until(lambda: self.job_threads.waiting < waiting)

    def close(self) -> None:
        """Let all of them end."""
        self._gate.release(5)
        self.job_threads.close()


@pytest.fixture
def bench() -> Iterator[Bench]:
    """At work."""
    bench = Bench()
    yield bench
    bench.close()


def test_the_first_end_is_rung_for(bench: Bench) -> None:
    """However many wait for a thread; and nobody waits for what has ended already."""

    def wait() -> None:
        bench.end_one()
        assert bench.rung.wait(PATIENCE_S)

    bench.job_threads.awaited(wait)
    bench.job_threads.awaited(lambda: pytest.fail("one has ended"))


def test_ends_gather_until_few_wait_for_a_thread(bench: Bench) -> None:
    """As many as are worth a question, and no ring before."""

    def wait() -> None:
        bench.end_one()
        assert bench.job_threads.waiting == 3
        assert not bench.rung.is_set()
        bench.end_one()
        assert not bench.rung.is_set()
        bench.end_one()
        assert bench.rung.wait(PATIENCE_S)

    bench.job_threads.gathered(wait, waiting=2)
    bench.job_threads.gathered(lambda: pytest.fail("few wait already"), waiting=2)
    bench.rung.clear()
    bench.end_one()
    assert not bench.rung.is_set()
