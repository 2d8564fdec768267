"""Sync jobs on threads and async ones on a loop share one number of places."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from support.processes.workers import until

from queue_workflows.engine.execution.guards import Budget, HeldJob
from queue_workflows.roles.worker.concurrent import event_loop
from queue_workflows.roles.worker.concurrent.event_loop import SharedLoop
from queue_workflows.roles.worker.concurrent.job_threads import JobThreads


class Places:
    """Jobs of both kinds that write down when they are inside, and stay there until they are let go."""

    def __init__(self, most: int) -> None:
        self.inside: list[int] = []
        self.most_inside = 0
        self.began: list[int] = []
        self.ended: list[int] = []
        self.gates: dict[int, threading.Event] = {}
        self._counting = threading.Lock()
        self.loop = SharedLoop()
        self.job_threads = JobThreads(most, perform=self._run, ring=lambda: None, loop=self.loop)
        self.loop.serve(
            self._run_on_loop,
            begins=lambda _place, _job_id: None,
            over=self.job_threads.over_on_loop,
            broke=self._broke,
        )

    def put(self, *jobs: tuple[int, bool], batch: int = 0, is_gated: bool = False) -> None:
        """Jobs by number, and whether they are async; earlier batches were claimed before later ones."""
        held_jobs = []
        for number, is_async in jobs:
            self.gates[number] = gate = threading.Event()
            if not is_gated:
                gate.set()
            job: Any = SimpleNamespace(id=number)
            context: Any = SimpleNamespace()
            held_jobs.append(HeldJob(job, context, Budget(9, 9), math.inf, float(batch), is_async=is_async))
        self.job_threads.put(held_jobs)

    def until_ended(self, *numbers: int) -> None:
        """As the main thread does, look what has ended until these have."""

        def look() -> bool:
            self.ended += [held.job.id for held in self.job_threads.ended()]
            return set(numbers) <= set(self.ended)

        until(look)

    def close(self) -> None:
        """End all threads."""
        for gate in self.gates.values():
            gate.set()
        self.until_ended(*self.gates)
        self.job_threads.close()
        self.loop.close()

    def _come(self, number: int) -> None:
        with self._counting:
            self.began.append(number)
            self.inside.append(number)
            self.most_inside = max(self.most_inside, len(self.inside))

    def _go(self, number: int) -> None:
        with self._counting:
            self.inside.remove(number)

    def _run(self, held: HeldJob) -> None:
        self._come(held.job.id)
        self.gates[held.job.id].wait(30)
        self._go(held.job.id)

    async def _run_on_loop(self, held: HeldJob) -> None:
        self._come(held.job.id)
        while not self.gates[held.job.id].is_set():
            await asyncio.sleep(0.001)
        self._go(held.job.id)
        if held.job.id < 0:
            raise RuntimeError("as told")

    def _broke(self, held: HeldJob, exc: BaseException) -> None:
        assert str(exc) == "as told"


@pytest.fixture
def one() -> Iterator[Places]:
    """A single place."""
    places = Places(1)
    yield places
    places.close()


def test_a_place_changes_its_kind(one: Places) -> None:
    """Over and over: no thread and no job on the loop keeps it from the other kind."""
    for number in range(0, 20, 2):
        one.put((number, False), batch=number)
        one.put((number + 1, True), batch=number + 1)
    one.until_ended(*range(20))
    assert (one.most_inside, one.began) == (1, list(range(20)))


def test_jobs_of_one_kind_come_first_in_their_batch_alone(one: Places) -> None:
    """A place goes on with its kind as long as the other kind was not claimed before."""
    one.put((0, True), is_gated=True)
    one.put((1, False), (2, True), (3, False), (4, True), batch=1)
    one.put((5, True), (6, False), batch=2)
    one.gates[0].set()
    one.until_ended(*range(7))
    assert one.began == [0, 2, 4, 1, 3, 6, 5]


def test_a_job_that_breaks_off_gives_its_place_on(one: Places) -> None:
    """Whatever its coroutine raises."""
    one.put((-1, True), (-2, True), (3, True))
    one.until_ended(-1, -2, 3)
    assert one.began == [-1, -2, 3]


def test_what_has_not_begun_is_taken_back(one: Places) -> None:
    """Of both kinds; what is put after that has its place."""
    one.put((0, False), is_gated=True)
    one.put((1, True), (2, False), batch=1)
    until(lambda: one.began == [0])
    assert one.job_threads.waiting == 2
    assert sorted(held.job.id for held in one.job_threads.take_back()) == [1, 2]
    assert one.job_threads.waiting == 0
    del one.gates[1], one.gates[2]
    one.put((3, True), batch=2)
    one.gates[0].set()
    one.until_ended(0, 3)
    assert one.began == [0, 3]


def test_there_are_never_more_than_places() -> None:
    """And as many as there are, of hundreds in any order."""
    places = Places(5)
    gated = [(number, number % 2 == 0) for number in range(5)]
    places.put(*gated, is_gated=True)
    until(lambda: len(places.inside) == 5)
    for batch in range(1, 30):
        numbers = range(batch * 10, batch * 10 + 10)
        places.put(*[(number, number * 7 % 3 != 0) for number in numbers], batch=batch)
    places.close()
    assert places.most_inside == 5
    assert sorted(places.began) == sorted(places.gates)


def test_a_loop_whose_thread_had_no_memory_to_begin_in_is_started_anew(
    one: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the main thread, when it has waited for long enough; nothing that was put is lost."""
    started: list[str] = []

    def lost(_work: Callable[[], None], name: str) -> None:
        started.append(name)

    with monkeypatch.context() as patched:
        patched.setattr(event_loop, "start_thread", lost)
        one.put((0, True))
    assert (started, one.began) == (["qwf-loop"], [])
    monkeypatch.setattr(event_loop, "_BEGINS_WITHIN_S", 0.0)
    one.until_ended(0)
    assert one.began == [0]
