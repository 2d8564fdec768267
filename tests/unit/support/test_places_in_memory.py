"""What a run puts into memory is taken away, also where its process was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.servers import places

TESTS = Path(__file__).parents[2]
HOLDS = """
import sys
sys.path.insert(0, sys.argv[1])
from support.servers.places import held_directory
directory = held_directory()
(directory / "file").write_text("many")
print(directory, flush=True)
sys.stdin.read()
"""
GIB = 2**30


def test_what_a_killed_process_left_is_removed() -> None:
    """By the next run; what belongs to a process that lives is left alone."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, TESTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        left = Path(holder.stdout.readline().strip())
        places.remove_left_behind()
        kept = left.exists()
        holder.kill()
    places.remove_left_behind()
    assert (kept, left.exists()) == (True, False)


def fail_in(seen: list[Path], started: list[subprocess.Popen[bytes]]) -> None:
    with places.passable_directory() as place:
        (place / "data").mkdir()
        seen.append(place)
        started.append(subprocess.Popen(["sleep", "600"], cwd=place / "data"))
        raise ZeroDivisionError


def test_it_is_removed_though_the_test_in_it_fails() -> None:
    """And what still runs in it is ended."""
    seen: list[Path] = []
    started: list[subprocess.Popen[bytes]] = []
    with pytest.raises(ZeroDivisionError):
        fail_in(seen, started)
    assert [place.exists() for place in seen] == [False]
    assert [process.wait(60) for process in started] == [-signal.SIGKILL]


@pytest.mark.parametrize(
    ("processes", "limit_gib", "where"),
    [(1, None, "/dev/shm"), (6, None, "/dev/shm"), (12, None, "/tmp"), (6, 64, "/dev/shm"), (6, 16, "/tmp")],
)
def test_memory_is_used_where_all_of_a_run_have_room(
    monkeypatch: pytest.MonkeyPatch, processes: int, limit_gib: int | None, where: str
) -> None:
    """Two gigabytes each, of which half of what a cgroup allows is the most."""
    found = SimpleNamespace(f_blocks=24 * GIB, f_bavail=20 * GIB, f_frsize=1, f_flag=0)
    monkeypatch.setattr(os, "statvfs", lambda _place: found)
    monkeypatch.setattr(os, "access", lambda _place, _mode: True)
    monkeypatch.setattr(places, "_memory_limit", lambda: (limit_gib or 2**30) * GIB)
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", str(processes))
    assert places.place_for_many_files() == where
