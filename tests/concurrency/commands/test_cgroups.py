"""Commands in cgroups of their own, on a machine that lets us make some."""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from support.processes.commands_kept import DAEMON, bearing, shell
from support.processes.programs import Running, gone, linux_only, program
from support.processes.workers import until

from queue_workflows.host.commands import cgroups
from queue_workflows.host.commands.cgroups import SpawnerCgroup
from queue_workflows.host.commands.client import Spawner

pytestmark = linux_only


@pytest.fixture
def home() -> Iterator[str]:
    """A cgroup of the test's own, with this process in it: no other test's spawner sweeps there."""
    outer = cgroups._delegated() if Path("/proc/self/cgroup").exists() else None
    if outer is None:
        pytest.skip("no cgroup is delegated here")
    own = os.path.join(outer, f"test-{secrets.token_hex(8)}")
    try:
        os.mkdir(own)
        if os.geteuid() == 0:
            os.setxattr(own, "trusted.delegate", b"1")
        enter(own)
    except OSError as wrong:
        with suppress(OSError):
            os.rmdir(own)
        pytest.skip(f"there can be no cgroup of our own: {wrong.strerror}")
    try:
        opened = SpawnerCgroup.open()
        if opened is None:
            pytest.skip("there can be no cgroups below one of our own")
        opened.close()
        os.close(opened._lock)
        yield own
    finally:
        enter(outer)
        until(lambda: is_removed(own))


def enter(cgroup: str) -> None:
    Path(cgroup, "cgroup.procs").write_text("0")


def is_removed(cgroup: str) -> bool:
    """Whoever is still dying in it holds it up."""
    cgroups._sweep(cgroup)
    cgroups._remove(cgroup)
    return not os.path.exists(cgroup)


def below(home: str) -> set[str]:
    return {name for name in os.listdir(home) if name.startswith("qwf-")}


def test_a_command_is_in_a_cgroup_of_its_own(home: str, tmp_path: Path) -> None:
    """Its keeper is not, and nothing of it is left when the spawner ends."""
    with Spawner() as spawner:
        for _ in range(2):
            # The keeper leaves it as soon as the command has begun; with it inside, none could be ended.
            keeper_leaves = "while grep -q qwf- /proc/$PPID/cgroup; do sleep 0.02; done"
            assert spawner.run(shell(tmp_path, f"cat /proc/self/cgroup; {keeper_leaves}")).code == 0
            found = re.search(r"^0::.*/(qwf-[0-9a-f]{16})/[0-9]+$", (tmp_path / "out").read_text(), re.M)
            assert found
            assert found[1] in below(home)
    assert found[1] not in below(home)


@pytest.mark.slow
def test_what_nobody_lived_to_end_is_ended_by_the_next(home: str, tmp_path: Path) -> None:
    """Worker, spawner and keepers are killed at once; its daemon lives, until somebody starts here."""
    text = f"""
DAEMON = {DAEMON!r}
from pathlib import Path
from queue_workflows.host.commands.client import Spawner
from queue_workflows.host.commands.command import Command
place = Path(sys.argv[1])
argv = [sys.executable, "-S", "-c", DAEMON + "\\ntime.sleep(1000)", str(place / "d")]
Spawner().run(Command(argv, {{"PATH": "/bin"}}, place, place / "out", place / "err"))
"""
    with Running([*program(text), str(tmp_path)]) as host:
        until((tmp_path / "d.up").exists)
        (spawner,) = psutil.Process(host.pid).children()
        ours = [spawner, *spawner.children()]
        for one in (psutil.Process(host.pid), *ours):
            one.suspend()
        for one in (psutil.Process(host.pid), *ours):
            one.kill()
        until(lambda: all(gone(one.pid) for one in ours))
    assert len(bearing(str(tmp_path / "d"))) == 2
    with Spawner() as spawner:
        assert spawner.run(shell(tmp_path, "exit 0")).code == 0
        until(lambda: not bearing(str(tmp_path / "d")))


@pytest.mark.slow
def test_the_cgroup_of_one_that_lives_is_left_alone(home: str, tmp_path: Path) -> None:
    """Its lock says so, whatever its pid looks like from here."""
    with Spawner() as first:
        first.run(shell(tmp_path, "exit 0"))
        before = below(home)
        with Spawner() as second:
            second.run(shell(tmp_path, "exit 0"))
            assert before < below(home)
        assert first.run(shell(tmp_path, "cat /proc/self/cgroup")).code == 0
        assert "qwf-" in (tmp_path / "out").read_text()


def test_without_the_right_to_make_cgroups_there_are_none(tmp_path: Path) -> None:
    """And nobody is bothered with that."""
    assert SpawnerCgroup.open(str(tmp_path / "nowhere")) is None
    plain = tmp_path / "plain"
    plain.mkdir()
    assert SpawnerCgroup.open(str(plain)) is None
    assert list(plain.iterdir()) == []
    assert sys.platform.startswith("linux")
