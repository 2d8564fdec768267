"""What a fleet starts does not outlive the tests, and nothing else is ended in its place."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.fleet.parents import dies_with_us
from support.fleet.patroni import Member
from support.processes.workers import until

STARTS = """
import subprocess, sys
print(subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL).pid, flush=True)
sys.stdin.read()
"""


def test_it_ends_with_a_process_that_is_killed() -> None:
    """The kernel sees to it, for what is killed sees to nothing."""
    prefix = dies_with_us()
    if not prefix:
        pytest.skip("no setpriv with --pdeathsig here")
    with subprocess.Popen(
        [sys.executable, "-c", STARTS, *prefix, "sleep", "600"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        until(lambda: child.name() == "sleep")
        parent.kill()
    _, alive = psutil.wait_procs([child], timeout=60)
    assert [each for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []


def test_a_number_that_a_killed_server_left_behind_is_not_believed(tmp_path: Path) -> None:
    """It may be that of another process by now, which is none of the member's."""
    member = Member(tmp_path, 1)
    data = member.home / "data"
    data.mkdir(parents=True)
    with subprocess.Popen(["sleep", "600"]) as stranger:
        (data / "postmaster.pid").write_text(f"{stranger.pid}\n{data}\n", encoding="utf-8")
        member.close()
        lived = stranger.poll() is None
        stranger.kill()
    assert lived


def test_a_server_is_known_by_where_it_works(tmp_path: Path) -> None:
    """What works in the member's data is its Postgres, and is ended with it."""
    member = Member(tmp_path, 1)
    data = member.home / "data"
    data.mkdir(parents=True)
    with subprocess.Popen(["sleep", "600"], cwd=data) as server:
        (data / "postmaster.pid").write_text(f"{server.pid}\n{data}\n", encoding="utf-8")
        member.close()
        assert server.wait(60) == -signal.SIGKILL
