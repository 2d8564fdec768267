"""A supervisor that replaces what ends at once: real workers, or processes that end as they are told."""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.processes.fifos import open_for_its_reader
from support.processes.supervised import HOST, Supervised

_PATIENCE_S = 300.0
# It says its incarnation, and does what it is told: it costs so little that each status can have a process.
_TOLD = """
ulimit -c 0
mkfifo "$PLACE/$_QWF_INCARNATION" && echo "$QUEUE $_QWF_INCARNATION" > "$PLACE/begun"
read -r words < "$PLACE/$_QWF_INCARNATION"
eval "$words"
"""


def real_workers(
    dsn: str, *workers: str, env: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
) -> Supervised:
    """Of the shipped command: each `QUEUE[:N] [options]`."""
    return Supervised([*prefix, sys.executable, __file__, json.dumps(workers)], dsn, env=env)


class ToldProcesses:
    """Processes of a supervisor that hold what the test claims for them, and end as it says."""

    def __init__(self, dsn: str, directory: Path, *workers: str) -> None:
        self.directory = directory
        os.mkfifo(directory / "begun")
        # Written to as well, so that it has no end between two processes.
        self._begun, self._names = os.open(directory / "begun", os.O_RDWR), b""
        env = {"PLACE": str(directory), "QWF_MAX_CRASHES": "1", "QWF_FIRST_HEARTBEAT_S": "3600"}
        self.supervisor = Supervised([sys.executable, __file__, json.dumps(workers)], dsn, env=env)

    def next(self) -> tuple[str, str]:
        """A process that waits: its queue and its worker id."""
        while b"\n" not in self._names:
            assert select.select([self._begun], [], [], _PATIENCE_S)[0], self.supervisor.said
            self._names += os.read(self._begun, 4096)
        name, _, self._names = self._names.partition(b"\n")
        queue, incarnation = name.decode().split()
        return queue, f"{HOST}:{queue}:{incarnation}"

    def tell(self, worker_id: str, words: str) -> None:
        """End so, in the words of a shell."""
        with open_for_its_reader(self.directory / worker_id.rpartition(":")[2]) as told:
            told.write(words + "\n")

    def __enter__(self) -> ToldProcesses:
        self.supervisor.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self.supervisor.__exit__(*exc)
        os.close(self._begun)


def main(workers: Sequence[str]) -> int:
    from queue_workflows.cli import Invocation
    from queue_workflows.cli.log.logs import log_to_stderr
    from queue_workflows.cli.roles.supervisor import commands
    from queue_workflows.config import effective_settings
    from queue_workflows.roles.supervisor.database_thread import Pace
    from queue_workflows.roles.supervisor.process import supervise
    from queue_workflows.roles.supervisor.restarts import Restarts
    from queue_workflows.roles.supervisor.slots import Spec, WorkerSpec

    settings = effective_settings()
    log_to_stderr(Invocation(), settings)
    real = commands(Invocation(app=os.environ.get("QWF_APP")), settings)
    specs = []
    for worker in workers:
        name, *options = worker.split()
        queue, _, count = name.partition(":")
        specs += [WorkerSpec(queue, tuple(options))] * int(count or 1)

    def command_for(spec: Spec) -> Sequence[str]:
        if "PLACE" in os.environ:
            return ["/bin/sh", "-c", f"QUEUE={spec.queue}{_TOLD}"]
        return real(spec)

    return supervise(
        specs,
        command_for=command_for,
        settings=settings,
        pace=Pace(look_every=0.2),
        restarts=Restarts(first_s=0.0, most_s=0.0),
    )


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
