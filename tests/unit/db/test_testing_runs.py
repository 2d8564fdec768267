"""Where the directory of a test run lies, and what is left of runs that were killed."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from queue_workflows.testing import runs

ROOM = 2 * 2**30


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A file system in memory, with as much room as is needed."""
    place = tmp_path / "memory"
    place.mkdir()
    monkeypatch.setattr(runs, "_MEMORY", place)
    has_free(monkeypatch, ROOM)
    return place


def has_free(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    disk_usage = SimpleNamespace(free=free)
    monkeypatch.setattr(
        runs, "shutil", SimpleNamespace(rmtree=shutil.rmtree, disk_usage=lambda _: disk_usage)
    )


def test_servers_of_tests_are_in_memory_where_there_is_room(memory: Path) -> None:
    """And only what asks for it: a benchmark is about a disk."""
    with runs.new_run(in_memory=True) as run:
        assert (run.directory.parent, run.is_in_memory) == (memory, True)
    with runs.new_run() as run:
        assert run.directory.parent != memory
        assert not run.is_in_memory
    assert list(memory.iterdir()) == []


def test_without_room_they_are_on_disk(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container has 64 MB there, other systems nothing at all."""
    has_free(monkeypatch, ROOM - 1)
    with runs.new_run(in_memory=True) as run:
        assert not run.is_in_memory
    has_free(monkeypatch, ROOM)
    monkeypatch.setattr(runs, "_MEMORY", memory / "missing")
    with runs.new_run(in_memory=True) as run:
        assert not run.is_in_memory


@pytest.mark.parametrize("in_memory", [True, False])
def test_what_a_killed_run_left_in_memory_goes_with_the_next(memory: Path, in_memory: bool) -> None:
    """Also where that one is on disk, because what was left takes the room."""
    left, used = memory / "qwf-tests-left", memory / "qwf-tests-used"
    left.mkdir()
    (left / "alive").touch()
    with runs.new_run(in_memory=True) as living:
        living.directory.rename(used)
        with runs.new_run(in_memory=in_memory):
            assert not left.exists()
            assert used.exists()
        used.rename(living.directory)
