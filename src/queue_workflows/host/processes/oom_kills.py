"""Whether it was the kernel, out of memory, that killed a process: SIGKILL does not say what sent it.

A memory cgroup counts the processes in it that the kernel chose for that. It does not say which these were,
so a kill is believed of a process that died by SIGKILL if the count of its cgroup has gone up since shortly
before its end, by more than the deaths that this explained already.

    seen long ago ──a command of a job was killed, say──> seen lately ──a worker dies──> now, one more

Read from cgroup v2 (`memory.events`, `memory.max`, `memory.peak`) or v1 (`memory.oom_control` and its
neighbours). Where neither is to be read, nobody is accused. Nothing but the standard library is needed, and
little of that: `pid1` loads this file by its path.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

# How long the kernel may take to empty a large process that it has killed.
_DIES_WITHIN_S: Final = 10.0
# cgroup v1 says "no limit" by a number near the largest there is.
_NO_LIMIT: Final = 1 << 62


class _Files(NamedTuple):
    """Where a version of cgroups keeps the count of kills, the limit, and the most that was ever used."""

    kills: str
    limit: str
    peak: str


_V2: Final = _Files("memory.events", "memory.max", "memory.peak")
_V1: Final = _Files("memory.oom_control", "memory.limit_in_bytes", "memory.max_usage_in_bytes")


class OutOfMemory(NamedTuple):
    """A kill by the kernel: the limit that was met, and the most that its cgroup used, in bytes if known.

    Without a limit it was the machine itself that had no memory left.
    """

    limit: int | None
    peak: int | None

    def in_words(self) -> str:
        """What a log line and a job's error say behind "killed by SIGKILL"."""
        what = "the machine had none left" if self.limit is None else f"the limit is {_mib(self.limit)}"
        peak = "" if self.peak is None else f", the peak was {_mib(self.peak)}"
        return f"by the kernel, out of memory: {what}{peak}"


class OomKills:
    """The kills of one memory cgroup, with those that explained a death taken off; `look` now and then."""

    def __init__(self, directory: str, *, now: Callable[[], float] = time.monotonic) -> None:
        self.directory = directory
        self._now = now
        self._files = _V1 if os.path.exists(os.path.join(directory, _V1.kills)) else _V2
        # When each number was first seen; the first of them was there before anything that we ask about.
        self._seen: deque[tuple[float, int]] = deque()
        self._explained = 0
        self.look()

    def look(self) -> int | None:
        """Note how many there are now; None where that is not to be read."""
        count = _figure(self.directory, self._files.kills, "oom_kill")
        if count is not None and (not self._seen or self._seen[-1][1] != count):
            self._seen.append((self._now(), count))
        while len(self._seen) > 1 and self._seen[1][0] < self._now() - _DIES_WITHIN_S:
            self._seen.popleft()
        return count

    def explain(self) -> OutOfMemory | None:
        """What killed a process that has just died by SIGKILL, if it was the kernel; each kill once."""
        count = self.look()
        before = max(self._explained, self._seen[0][1]) if self._seen else 0
        if count is None or count <= before:
            return None
        self._explained = before + 1
        return self._limit_met()

    def _limit_met(self) -> OutOfMemory:
        """The nearest limit from here up, as the processes of a cgroup share what those above it allow."""
        for place in _upwards(self.directory):
            limit = _figure(place, self._files.limit)
            if limit is not None and limit < _NO_LIMIT:
                return OutOfMemory(limit, _figure(place, self._files.peak))
        return OutOfMemory(None, _figure(self.directory, self._files.peak))


class MemoryCgroups:
    """The memory cgroups of a supervisor's children, mostly one and its own; `find` gives that of a pid."""

    def __init__(self, find: Callable[[int], str | None] | None = None) -> None:
        self._find = find or memory_cgroup
        self._known: dict[str, OomKills] = {}

    def of(self, pid: int) -> OomKills | None:
        """What counts the kills around a process that lives; a dead one is in no cgroup any more."""
        directory = self._find(pid)
        if directory is None:
            return None
        return self._known.setdefault(directory, OomKills(directory))

    def look(self) -> None:
        """Note how many kills there are, and forget what was removed."""
        self._known = {name: kills for name, kills in self._known.items() if kills.look() is not None}


def memory_cgroup(pid: int | str = "self", *, proc: str = "/proc") -> str | None:
    """The directory of a process's memory cgroup; None if there is none here, or it is out of our sight."""
    try:
        with open(f"{proc}/{pid}/cgroup") as groups:
            parts = [line.rstrip("\n").split(":", 2) for line in groups]
        with open(f"{proc}/self/mountinfo") as mounts:
            return _directory({part[1]: part[2] for part in parts}, mounts)
    except (OSError, ValueError, IndexError):
        return None


def _directory(groups: dict[str, str], mounts: Iterator[str]) -> str | None:
    """Where the groups of one process, by their controllers, are mounted; the empty name is that of v2."""
    named = next((names for names in groups if "memory" in names.split(",")), "")
    ours = groups.get(named)
    for line in mounts if ours is not None else ():
        place, _, kind = line.partition(" - ")
        root, path = place.split()[3:5]
        options = kind.split()[-1].split(",")
        is_it = "memory" in options if named else kind.startswith("cgroup2 ")
        # A container may see a part of the tree, and be told of its own place from the root of the whole.
        if is_it and ours is not None and (root in ("/", ours) or ours.startswith(f"{root}/")):
            below = ours if root == "/" else ours[len(root) :]
            return os.path.normpath(path + "/" + below)
    return None


def _upwards(directory: str) -> Iterator[str]:
    """This directory and those above it that are cgroups as well."""
    while os.path.exists(os.path.join(directory, "cgroup.procs")):
        yield directory
        directory = os.path.dirname(directory)


def _figure(directory: str, name: str, key: str | None = None) -> int | None:
    """The number in a file, or behind a key there; None if it has none."""
    try:
        with open(os.path.join(directory, name)) as file:
            words = file.read().split()
        number = words[0] if key is None else words[words.index(key) + 1]
        return int(number)
    except (OSError, ValueError, IndexError):
        return None


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
