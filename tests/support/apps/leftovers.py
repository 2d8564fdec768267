"""A host app whose things are files in a directory: made below a lock, found, torn down, and written about.

PLACE/things/NAME    is there          PLACE/log    a line for each discovery and each teardown
PLACE/gate           while it is there, the teardown of a thing called `gated-…` waits
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from queue_workflows import ResourceKind, register_resource_kind

PLACE: Final = "LEFTOVERS"
# A file; while it is there, the discovery of a second kind does not return.
HANG: Final = "LEFTOVERS_HANG"
LOCKS: Final = "LEFTOVERS_LOCKS"
# The owner of a thing: it has the lock, makes the thing, says so, and lives until it is told something.
OWNER: Final = """
import os, sys
from pathlib import Path
from queue_workflows.host.locks.lock import HostLock
place, locks, name = sys.argv[1:]
said = []
lock = HostLock(name, directory=Path(locks), deadline_s=60)
lock.acquire(on_wait=lambda _s: said or said.append(os.write(1, b"waits\\n")))
found = os.path.exists(os.path.join(place, "things", name))
Path(place, "things", name).touch()
os.write(1, b"has it, and found one\\n" if found else b"has it\\n")
sys.stdin.readline()
"""


class Leftovers:
    """The things of one place."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.things = place / "things"
        self.log = place / "log"
        self.gate = place / "gate"

    def make(self, *names: str) -> None:
        self.things.mkdir(parents=True, exist_ok=True)
        for name in names:
            (self.things / name).touch()

    def owner(self, name: str, locks: Path) -> list[str]:
        """The command of an owner."""
        self.things.mkdir(parents=True, exist_ok=True)
        return [sys.executable, "-c", OWNER, str(self.place), str(locks), name]

    def discover(self) -> Iterator[str]:
        self._say("discover", str(os.getpid()))
        names = os.listdir(self.things)
        if any(name.startswith("chatty") for name in names):
            print("from the discovery")
        return iter(names)

    def teardown(self, name: str) -> None:
        self._say("teardown", name)
        if name.startswith("chatty"):
            print("from the teardown")
            subprocess.run(["echo", "from its command"], check=True)
        if name.startswith("raising"):
            raise RuntimeError(f"{name} does not want to end")
        if name.startswith("spawning"):
            subprocess.run(["sleep", "1000"], check=True)
        if name.startswith("crashing"):
            os.abort()
        while name.startswith("hanging") or (name.startswith("gated") and self.gate.exists()):
            time.sleep(0.01)
        if not name.startswith("clinging"):
            (self.things / name).unlink(missing_ok=True)

    def torn_down(self) -> list[str]:
        """The names, in the order in which they were torn down, as often as they were."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line.split()[1] for line in lines if line.startswith("teardown")]

    def discoverers(self) -> set[int]:
        """The pids of those that looked."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return {int(line.split()[1]) for line in lines if line.startswith("discover")}

    def left(self) -> list[str]:
        return sorted(os.listdir(self.things))

    def kind(self, pattern: str = r"[a-z]+-\d", **options: float) -> ResourceKind:
        return ResourceKind("thing", pattern, self.discover, self.teardown, **options)

    def _say(self, *words: str) -> None:
        with self.log.open("a") as log:
            log.write(" ".join(words) + "\n")


def _hangs() -> list[str]:
    while os.path.exists(os.environ[HANG]):
        time.sleep(0.01)
    return []


def _register() -> None:
    if HANG in os.environ:
        register_resource_kind(ResourceKind("hung", "x", _hangs, print, timeout_s=0.2))
    timeout_s = float(os.environ.get("LEFTOVERS_TIMEOUT_S", "60"))
    register_resource_kind(Leftovers(Path(os.environ[PLACE])).kind(timeout_s=timeout_s))


if PLACE in os.environ:
    _register()
