"""The demo's processes: the supervisor that everybody runs, for as long as the story goes on."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Final

from queue_workflows.demo.ticking import QUEUE
from queue_workflows.errors import QwfError
from queue_workflows.host.processes.launcher import Child, own_command, spawn

WIRING: Final = "queue_workflows.demo.wiring"
COMMAND: Final = f"supervisor --orchestrator --scheduler --worker cpu --worker gpu:2 --worker {QUEUE}"
# Nothing is left to finish when they are stopped, or nobody wants it any more; and none of them is to last.
_OPTIONS: Final = ("--grace", "0", "--no-spare")
# What the supervisor needs to take back what was not finished.
_STOP_S: Final = 15.0


class DemoProcesses:
    """The supervisor as a child of ours, and what it has said."""

    def __init__(self, child: Child, log: IO[bytes]) -> None:
        self._child = child
        self._log = log

    def check(self) -> None:
        """Raise if it has ended, with its last words."""
        if self._child.poll() is not None:
            raise self.failed(f"ended with status {self._child.returncode}")

    def failed(self, how: str) -> QwfError:
        """What to say when it does not do its work."""
        self._log.seek(0)
        last = self._log.read().decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
        return QwfError(
            f"the supervisor {how}: {last[0]}", advice=f"run it yourself to see the rest: {shown()}"
        )


def shown() -> str:
    """The command as its reader would type it."""
    return f"qwf --app {WIRING} {COMMAND}"


@contextmanager
def at_work(dsn: str | None) -> Iterator[DemoProcesses]:
    """The processes; however this ends, they end with it."""
    command = own_command(["--app", WIRING, *COMMAND.split(), *_OPTIONS])
    with (
        tempfile.TemporaryFile() as log,
        spawn(command, env=_environment(dsn), stdout=subprocess.DEVNULL, stderr=log) as child,
    ):
        try:
            yield DemoProcesses(child, log)
        finally:
            if child.poll() is None:
                child.terminate()
                with suppress(subprocess.TimeoutExpired):
                    child.wait(timeout=_STOP_S)
                child.kill()


def _environment(dsn: str | None) -> dict[str, str]:
    """By the environment the app's own code finds a DSN too; a direct one belongs to another database."""
    if dsn is None:
        return dict(os.environ)
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_DIRECT_DB_URL")}
    return {**kept, "QWF_DB_URL": dsn}
