"""A supervisor as a real process, over stand-ins or over real workers, and what it and they say."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import psutil
import psycopg
from support.processes.workers import until
from support.suite import warm_starts

from queue_workflows.repositories import HeartbeatRepository, IngestJobRepository

TESTS = Path(__file__).parents[2]
# It beats in its heartbeat pipe alone, and holds nothing.
ORCHESTRATOR = """
import os, signal, sys, threading
from queue_workflows.host.processes import last_word
from queue_workflows.host.processes.tree_by_mark import die_with_parent, take_launcher_pid
from queue_workflows.roles import heartbeat_pipe
heartbeat_pipe.EVERY_S = 0.1
asked = []
def is_fine():
    asked.append(1)
    if len(asked) == 2:  # it was heard of once
        os.write(1, b"orchestrates %d\\n" % os.getpid())
    return True
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
die_with_parent(take_launcher_pid())
with heartbeat_pipe.told(is_fine, lambda: None):
    while not stop.wait(1): pass
os.write(1, b"orchestrator stopping\\n")
last_word.own.announce(0)
"""
STAND_IN = Path(__file__).with_name("standin_worker.py")
HOST = "h1"


class Supervised:
    """The process, started; `until` waits for a line of it or of its workers."""

    def __init__(
        self,
        command: Sequence[str],
        dsn: str,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        from support.processes.programs import environment

        paths = os.pathsep.join([environment()["PYTHONPATH"], str(TESTS)])
        self.process = warm_starts.start(
            command,
            environment(
                {
                    "PYTHONPATH": paths,
                    "QWF_DB_URL": dsn,
                    "QWF_HOST_LABEL": HOST,
                    "QWF_GRACE_S": "5",
                    **(env or {}),
                }
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=cwd,
        )
        self.said: list[str] = []
        self.pids: set[int] = set()
        self._found: set[int] = set()
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    @property
    def pid(self) -> int:
        return self.process.pid

    def until(self, pattern: str, timeout_s: float = 150) -> re.Match[str]:
        """The first line that matches and did not before; several processes speak, in any order."""
        deadline = time.monotonic() + timeout_s
        seen = 0
        while True:
            for number, line in enumerate(self.said[seen:], seen):
                if number not in self._found and (found := re.search(pattern, line)):
                    self._found.add(number)
                    return found
            seen = len(self.said)
            try:
                new = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                new = None
            if new is None:
                raise AssertionError(f"{pattern!r} was not said, but:\n" + "\n".join(self.said))
            self._remember(new)

    def _remember(self, line: str) -> None:
        self.said.append(line)
        if started := re.search(r"started, pid (\d+)", line):
            self.pids.add(int(started[1]))

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def status(self, timeout_s: float = 150) -> int:
        """Its exit status, once everything that it said is read."""
        status = self.process.wait(timeout_s)
        while (line := self._lines.get(timeout=150)) is not None:
            self._remember(line)
        return status

    def stop(self) -> int:
        """As an operator or a service manager does."""
        self.signal(signal.SIGTERM)
        return self.status()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        family = psutil.Process(self.pid).children(recursive=True) if self.process.poll() is None else []
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(150)
        orphans = [psutil.Process(pid) for pid in self.pids if psutil.pid_exists(pid)]
        for process in [*family, *orphans]:
            try:
                # A pid that is somebody else's by now has no word of ours on its command line.
                if any(
                    word in " ".join(process.cmdline())
                    for word in ("standin_worker", "queue_workflows", "-c")
                ):
                    process.kill()
            except psutil.Error:
                pass


def supervisor_of(
    dsn: str, *options: str, prefix: tuple[str, ...] = (), env: Mapping[str, str] | None = None
) -> Supervised:
    """The shipped command, with a host app's tasks."""
    command = [
        *prefix,
        sys.executable,
        "-m",
        "queue_workflows",
        "--app",
        "support.tasks.worker_tasks",
        "supervisor",
    ]
    return Supervised([*command, *options], dsn, env=env)


def enqueue(jobs: IngestJobRepository, task: str, **args: object) -> int:
    return jobs.enqueue(task, queue="fetch", args=args).id


def holder(conn: psycopg.Connection, job: int) -> int | None:
    """The pid of the worker that runs a job, if one does."""
    row = conn.execute(
        "SELECT pid FROM ingest_jobs JOIN worker_heartbeats ON worker_id = claimed_by"
        " WHERE id = %s AND status = 'running'",
        [job],
    ).fetchone()
    return row[0] if row else None


def idle(conn: psycopg.Connection, count: int) -> None:
    """Wait until so many workers wait for work."""
    until(lambda: len(HeartbeatRepository(conn).list(state="idle")) == count)


def over_stand_ins(dsn: str, *workers: str, env: Mapping[str, str] | None = None) -> Supervised:
    """A supervisor of stand-ins; each `QUEUE[:N] [options of the stand-in]`, or `orchestrator`."""
    return Supervised([sys.executable, __file__, json.dumps(workers)], dsn, env=env)


def main(workers: Sequence[str]) -> int:
    from queue_workflows.cli import Invocation
    from queue_workflows.cli.log.logs import log_to_stderr
    from queue_workflows.config import effective_settings
    from queue_workflows.gpu.devices import find_devices
    from queue_workflows.roles.supervisor.database_thread import Pace
    from queue_workflows.roles.supervisor.process import supervise
    from queue_workflows.roles.supervisor.slots import EachDevice, RoleSpec, Spec, WorkerSpec

    log_to_stderr(Invocation(), effective_settings())
    specs: list[Spec] = []
    each = None
    for worker in workers:
        if worker == "orchestrator":
            specs.append(RoleSpec("orchestrator"))
            continue
        name, *options = worker.split()
        if name == "gpu:each":
            each = EachDevice(WorkerSpec("gpu", tuple(options)), tuple(find_devices(60.0, os.environ)))
            continue
        queue_name, _, count = name.partition(":")
        specs += [WorkerSpec(queue_name, tuple(options))] * int(count or 1)
    settings = effective_settings()

    def command_for(spec: Spec) -> list[str]:
        if isinstance(spec, RoleSpec):
            return [sys.executable, "-c", ORCHESTRATOR]
        place = ["--queue", spec.queue, "--host-label", settings.host_label]
        return [sys.executable, str(STAND_IN), *place, *spec.options]

    return supervise(
        specs,
        each=each,
        command_for=command_for,
        settings=settings,
        pace=Pace(look_every=0.2, answer_within=1.0),
    )


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
