"""When a worker of several jobs is replaced by processes of one each, and when they are one again."""

from __future__ import annotations

import pytest

from queue_workflows.host.processes.harden import RETIRE
from queue_workflows.host.processes.launcher import Child
from queue_workflows.roles.supervisor import single_job_processes
from queue_workflows.roles.supervisor.liveness import Signs
from queue_workflows.roles.supervisor.single_job_processes import CALM_S, Isolation
from queue_workflows.roles.supervisor.slots import Life, Slot, WorkerSpec

CALM = {"fetch": False}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Stage:
    """A slot whose worker has crashed, with parts that live; `told` are the pids that were told to retire."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        shared_by: int = 3,
        *,
        most: int = 16,
        workers: int = 1,
        can_fork: bool = True,
    ) -> None:
        self.clock, self.told = Clock(), list[tuple[int, int]]()
        told = self.told
        monkeypatch.setattr(
            single_job_processes, "tell", lambda child, _fd, number: told.append((child.pid, number))
        )
        self.isolation = Isolation(self.clock, lambda _spec: can_fork, most=most, workers=lambda: workers)
        self.whole = Slot("fetch/1", WorkerSpec("fetch", (), shared_by), None)
        self.parts = self.isolation.crashed(self.whole)
        for part in self.parts:
            self.start(part)

    def start(self, part: Slot) -> None:
        child = Child(["true"])
        child.wait()
        part.start_at, part.life = None, Life(None, child, 99, self.clock.now)

    def tend(self, suspects: dict[str, bool] = CALM) -> list[Slot]:
        return self.isolation.tend(Signs(self.clock.now, suspects=suspects))

    def pids(self, parts: list[Slot]) -> list[tuple[int, int]]:
        return [(part.life.child.pid, RETIRE) for part in parts if part.life]


@pytest.mark.parametrize(("shared_by", "parts"), [(1, 0), (3, 3), (12, 12), (1000, 16)])
def test_as_many_as_had_jobs(monkeypatch: pytest.MonkeyPatch, shared_by: int, parts: int) -> None:
    """Never more than the worker may have, nor than the machine would mind; from the spare, at once."""
    stage = Stage(monkeypatch, shared_by)
    names = [(f"fetch/1.{number}", number, True) for number in range(1, parts + 1)]
    assert [(part.name, part.part, part.urgent) for part in stage.parts] == names
    assert stage.isolation.queues == ({"fetch"} if parts else set())


@pytest.mark.parametrize(
    ("most", "workers", "can_fork", "parts"),
    [
        pytest.param(64, 1, True, 64, id="as the setting says"),
        pytest.param(16, 2, True, 8, id="a share of it where several workers may crash"),
        pytest.param(16, 100, True, 2, id="at least two, as one is no division"),
        pytest.param(1, 1, True, 0, id="none"),
        pytest.param(16, 1, False, 2, id="fewer where each imports everything"),
        pytest.param(64, 1, False, 8, id="in proportion"),
    ],
)
def test_the_bound_is_a_setting(
    monkeypatch: pytest.MonkeyPatch, most: int, workers: int, can_fork: bool, parts: int
) -> None:
    """It is for all workers of a supervisor, and shared among those that may be divided."""
    stage = Stage(monkeypatch, 64, most=most, workers=workers, can_fork=can_fork)
    assert len(stage.parts) == parts


def test_what_others_have_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all workers together there are never more."""
    stage = Stage(monkeypatch, 10)
    another = Slot("load/1", WorkerSpec("load", (), 64), None)
    assert (len(stage.parts), len(stage.isolation.crashed(another))) == (10, 6)
    assert stage.isolation.crashed(Slot("load/2", WorkerSpec("load", (), 64), None)) == []


def test_they_are_one_again_when_it_is_calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while suspects wait, nor before all have ended: there are never more jobs than there may be."""
    stage = Stage(monkeypatch)
    stage.clock.now += CALM_S
    assert stage.tend({"fetch": True}) == stage.tend({}) == stage.told == []
    assert stage.tend() == []
    assert stage.told == stage.pids(stage.parts)
    for part in stage.parts:
        assert stage.tend() == []
        assert stage.isolation.is_rejoining(part)
        part.life = None
    assert stage.tend() == stage.parts
    assert (stage.whole.start_at, stage.whole.urgent, stage.whole.parts) == (stage.clock.now, True, [])
    assert stage.isolation.queues == set()


def test_a_job_that_lasts_keeps_them_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that have ended are started again, and it is tried after twice as long."""
    stage = Stage(monkeypatch)
    stage.clock.now += CALM_S
    stage.tend()
    ended, *lasting = stage.parts
    ended.life = None
    stage.clock.now += 60
    assert stage.tend() == []
    assert (ended.start_at, [part.start_at for part in lasting]) == (stage.clock.now, [None, None])
    stage.start(ended)
    stage.told.clear()
    stage.clock.now += CALM_S
    stage.tend()
    assert stage.told == []
    stage.clock.now += CALM_S
    stage.tend()
    assert stage.told == stage.pids(stage.parts)


def test_a_crash_ends_the_calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while they are told to end: whoever has ended for that is started again."""
    stage = Stage(monkeypatch)
    stage.clock.now += CALM_S
    stage.tend()
    ended, crashing, _ = stage.parts
    ended.life = crashing.life = None
    assert stage.isolation.crashed(crashing) == []
    assert (ended.start_at, ended.urgent) == (stage.clock.now, True)
    assert not stage.isolation.is_rejoining(crashing)
    stage.clock.now += CALM_S / 2
    stage.told.clear()
    stage.tend()
    assert stage.told == []


def test_a_retiring_worker_is_told_by_a_signal_that_is_nobody_elses() -> None:
    """No stop signal, and none that a host app or Python takes."""
    assert RETIRE not in {int(number) for number in (1, 2, 10, 12, 14, 15, 17)}
