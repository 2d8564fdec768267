"""How the processes of a run share a container: Docker is stood in for, the lifetime is the subject."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.processes.embedded_users import until

from queue_workflows.testing import containers


class Container:
    """What of a container the protocol uses."""

    started: list[Container]

    def __init__(self) -> None:
        self.stopped = False
        self.started.append(self)

    def get_connection_url(self, driver: None) -> str:
        return f"postgresql://container-{len(self.started)}"

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> list[Container]:
    """The containers that were started."""
    Container.started = []
    monkeypatch.setattr(containers, "_start", lambda image, engine: Container())
    return Container.started


def share(directory: Path):
    return containers.shared_container(directory, "postgres:18", "unix:///engine")


def test_the_starter_leaves_last(tmp_path: Path, started: list[Container]) -> None:
    """Others join the container that the first started, and it is stopped only when they have left."""
    joined, left = threading.Event(), threading.Event()

    def starter() -> None:
        with share(tmp_path):
            joined.wait(150)
        left.set()

    thread = threading.Thread(target=starter)
    thread.start()
    until(lambda: started, "the starter starts it")
    with share(tmp_path) as dsn:
        assert dsn == "postgresql://container-1"
        joined.set()
        assert not left.wait(0.5)
        assert not started[0].stopped
    thread.join(150)
    assert started[0].stopped
    assert len(started) == 1


def test_who_comes_after_the_end_starts_another(tmp_path: Path, started: list[Container]) -> None:
    """A container that was stopped is not handed out again."""
    with share(tmp_path) as first:
        pass
    with share(tmp_path) as second:
        assert not started[1].stopped
    assert (first, second) == ("postgresql://container-1", "postgresql://container-2")
    assert [container.stopped for container in started] == [True, True]


def test_many_at_once_start_one(tmp_path: Path, started: list[Container]) -> None:
    """Processes that need the server at the same moment start one container."""
    barrier = threading.Barrier(5)
    seen: list[str] = []

    def worker() -> None:
        with ExitStack() as stack:
            barrier.wait(150)
            seen.append(stack.enter_context(share(tmp_path)))
            barrier.wait(150)

    threads = [threading.Thread(target=worker) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(150)
    assert seen == ["postgresql://container-1"] * 5
    assert [container.stopped for container in started] == [True]
