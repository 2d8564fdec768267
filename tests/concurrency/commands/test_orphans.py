"""Commands that outlived their worker, their spawner and their keeper, and who ends them."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from support.processes.commands_kept import shell
from support.processes.programs import Running, gone, linux_only
from support.processes.workers import until

from queue_workflows.host.commands import orphans
from queue_workflows.host.commands.client import Spawner
from queue_workflows.host.commands.orphans import COMMAND, end_orphans
from queue_workflows.host.processes.tree_by_mark import SHORTEST_MARK

pytestmark = linux_only

PROGRAM = """
import sys
from pathlib import Path
from queue_workflows.host.commands.client import Spawner
from queue_workflows.host.commands.command import Command
home = Path(sys.argv[1])
Spawner().run(Command(
    ["/bin/sh", "-c", "echo $$ > new; mv new pid; exec sleep 1000"], {"PATH": "/usr/bin:/bin"},
    home, home / "out", home / "err"))
"""
WAITING = "echo $$ > new; mv new pid; until [ -e go ]; do sleep 0.05; done"


def pid_in(directory: Path) -> int:
    return int(until(lambda: (directory / "pid").exists() and (directory / "pid").read_text()))


def killed_at_once(worker: psutil.Process, command: int) -> None:
    """The worker, its spawner and its keepers die before one of them can see to what is below it."""
    stopped = [worker]
    worker.suspend()
    for process in stopped:  # it grows: who stands still starts nobody
        below = [child for child in process.children() if child.pid != command and child not in stopped]
        for child in below:
            child.suspend()
        stopped += below
    for process in reversed(stopped):
        process.kill()


def test_what_outlived_its_worker_is_ended_before_another_command_runs(tmp_path: Path) -> None:
    """By a new spawner, or before a second attempt; the commands of those that live are left alone."""
    lost, kept = tmp_path / "lost", tmp_path / "kept"
    for directory in (lost, kept):
        directory.mkdir()
    with ThreadPoolExecutor(1) as pool, Spawner() as living:
        running = pool.submit(living.run, shell(kept, WAITING))
        neighbour = pid_in(kept / "work")
        with Running([sys.executable, "-c", PROGRAM, str(lost)]) as worker:
            orphan = pid_in(lost)
            killed_at_once(psutil.Process(worker.pid), orphan)
        # Whom a signal has just killed may be seen for a moment yet.
        until(lambda: (end_orphans(), gone(orphan))[1])
        assert not gone(neighbour)
        (kept / "work" / "go").touch()
        assert running.result(150).code == 0


def test_in_doubt_a_command_is_nobodys_orphan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is this process, which may be a command itself, or what bears a mark that many could bear."""
    spawner = "a" * SHORTEST_MARK
    command = {2**22 + 1: f"{spawner}{COMMAND}1"}
    looks: list[dict[int, str]] = []
    monkeypatch.setattr(orphans, "marks", lambda: looks.pop(0))
    for seen in (
        [command, command | {2**22 + 2: spawner}],  # its spawner was passed over at first
        [command | {2**22 + 2: spawner}],
        [{os.getpid(): f"{spawner}{COMMAND}1"}],
        [{2**22 + 1: f"short{COMMAND}1"}],
    ):
        looks[:] = seen
        assert end_orphans() == []
    looks[:] = [command, command]
    assert end_orphans() == [spawner]
