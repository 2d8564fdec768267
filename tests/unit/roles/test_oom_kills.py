"""A kill by the kernel is told from other deaths by what a memory cgroup counts, of either version."""

from __future__ import annotations

from pathlib import Path

import pytest

from queue_workflows.host.processes.oom_kills import MemoryCgroups, OomKills, OutOfMemory, memory_cgroup

LIMIT, PEAK = 256 << 20, 255 << 20


class Cgroup:
    """The files of a memory cgroup as the kernel writes them."""

    def __init__(self, directory: Path, *, v1: bool = False, limit: int | None = LIMIT) -> None:
        self.directory, self.v1 = directory, v1
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cgroup.procs").touch()
        names = (
            ("memory.limit_in_bytes", "memory.max_usage_in_bytes") if v1 else ("memory.max", "memory.peak")
        )
        nothing = str((1 << 63) - 4096) if v1 else "max"
        (directory / names[0]).write_text(f"{nothing if limit is None else limit}\n")
        (directory / names[1]).write_text(f"{PEAK}\n")
        self.count(0)

    def count(self, kills: int) -> None:
        name = "memory.oom_control" if self.v1 else "memory.events"
        before = "oom_kill_disable 0\nunder_oom 0" if self.v1 else f"low 0\nhigh 0\nmax 7\noom {kills}"
        (self.directory / name).write_text(f"{before}\noom_kill {kills}\n")


class Clock:
    at = 1000.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture(params=[False, True], ids=["v2", "v1"])
def cgroup(request: pytest.FixtureRequest, tmp_path: Path) -> Cgroup:
    return Cgroup(tmp_path / "workers", v1=request.param)


def test_a_kill_is_told_with_limit_and_peak(cgroup: Cgroup) -> None:
    """Once for each that was counted: who else died by SIGKILL was killed by somebody else."""
    kills = OomKills(str(cgroup.directory))
    assert kills.explain() is None
    cgroup.count(2)
    assert [kills.explain() for _ in range(3)] == [OutOfMemory(LIMIT, PEAK), OutOfMemory(LIMIT, PEAK), None]
    assert OutOfMemory(LIMIT, PEAK).in_words() == (
        "by the kernel, out of memory: the limit is 256 MiB, the peak was 255 MiB"
    )


def test_what_was_killed_before_it_began_or_long_ago_explains_nothing(cgroup: Cgroup) -> None:
    """As a command of a job a minute ago says nothing of a worker that is killed by hand."""
    cgroup.count(3)
    clock = Clock()
    kills = OomKills(str(cgroup.directory), now=clock)
    assert kills.explain() is None
    cgroup.count(4)
    kills.look()
    clock.at += 60
    assert kills.explain() is None
    cgroup.count(5)
    kills.look()
    clock.at += 2
    assert kills.explain() == OutOfMemory(LIMIT, PEAK)


def test_the_limit_may_be_one_above(tmp_path: Path) -> None:
    """As that of a pod is above the container's; without any it was the machine that had no memory left."""
    Cgroup(tmp_path / "pod")
    inner = Cgroup(tmp_path / "pod" / "container", limit=None)
    kills = OomKills(str(inner.directory))
    inner.count(1)
    assert kills.explain() == OutOfMemory(LIMIT, PEAK)
    alone = Cgroup(tmp_path / "alone", limit=None)
    kills = OomKills(str(alone.directory))
    alone.count(1)
    told = kills.explain()
    assert told == OutOfMemory(None, PEAK)
    assert told.in_words() == "by the kernel, out of memory: the machine had none left, the peak was 255 MiB"


def test_where_no_cgroup_tells_nobody_is_accused(tmp_path: Path) -> None:
    """Without files, with files that are no numbers, and of a process that is in none."""
    kills = OomKills(str(tmp_path))
    assert kills.explain() is None
    (tmp_path / "memory.events").write_text("oom_kill many\n")
    assert kills.explain() is None
    assert MemoryCgroups(lambda _pid: None).of(1) is None


def test_children_of_one_cgroup_share_its_count(cgroup: Cgroup, tmp_path: Path) -> None:
    """One kill explains the death of one of them, and a cgroup that was removed is forgotten."""
    cgroups = MemoryCgroups(lambda pid: str(cgroup.directory if pid < 3 else tmp_path / "gone"))
    one, other, third = cgroups.of(1), cgroups.of(2), cgroups.of(3)
    cgroup.count(1)
    cgroups.look()
    assert one is other is not third
    assert one is not None
    assert [one.explain(), one.explain()] == [OutOfMemory(LIMIT, PEAK), None]
    assert cgroups.of(3) is not third


MOUNTS = """\
22 1 0:20 / /proc rw - proc proc rw
30 1 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs rw
31 30 0:27 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory
32 30 0:28 / /sys/fs/cgroup/unified ro - cgroup2 cgroup2 rw
"""


@pytest.mark.parametrize(
    ("groups", "mounts", "directory"),
    [
        ("0::/\n", "30 1 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n", "/sys/fs/cgroup"),
        ("0::/system.slice/qwf.service\n", MOUNTS, "/sys/fs/cgroup/unified/system.slice/qwf.service"),
        ("5:cpu,memory:/docker/abc/in\n0::/\n", MOUNTS, "/sys/fs/cgroup/memory/in"),
        ("5:memory:/docker/abc\n0::/\n", MOUNTS, "/sys/fs/cgroup/memory"),
        ("5:memory:/docker/other\n0::/\n", MOUNTS, None),
        ("1:cpu:/\n", MOUNTS, None),
        ("nonsense\n", MOUNTS, None),
    ],
)
def test_where_the_cgroup_of_a_process_is(
    tmp_path: Path, groups: str, mounts: str, directory: str | None
) -> None:
    """On a machine, in a container that sees a part of the tree, and where neither is to be seen."""
    for name, text in (("7/cgroup", groups), ("self/mountinfo", mounts)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory_cgroup(7, proc=str(tmp_path)) == directory
    assert memory_cgroup(8, proc=str(tmp_path)) is None
