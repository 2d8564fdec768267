"""The demo's workers: the supervisor that everybody runs, for as long as there is something to do."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from queue_workflows.demo.orders import QUEUE
from queue_workflows.errors import QwfError
from queue_workflows.host.launcher import Child, own_command, spawn

WORKERS: Final = 2
COMMAND: Final = ("supervisor", "--worker", f"{QUEUE}:{WORKERS} --drain", "--grace", "0")
WIRING: Final = "queue_workflows.demo.wiring"
# What the supervisor needs to take back what was not finished.
_STOP_S: Final = 15.0
_PATIENCE_S: Final = 60.0


def shown() -> str:
    """The command as its reader would type it."""
    return f"qwf --app {WIRING} supervisor --worker '{QUEUE}:{WORKERS} --drain'"


def work_until_empty(dsn: str | None) -> None:
    """Run the supervisor until its workers find the queue empty; an interruption stops it gracefully."""
    database = ("--db", dsn) if dsn is not None else ()
    with _stopped_at_the_end(own_command([*database, "--app", WIRING, *COMMAND])) as crew:
        try:
            _, log = crew.communicate(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired as late:
            raise _failed("has not emptied the queue", late.stderr) from None
        if crew.returncode:
            raise _failed(f"ended with status {crew.returncode}", log)


def _failed(how: str, log: bytes | None) -> QwfError:
    last = (log or b"").decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
    return QwfError(f"the supervisor {how}: {last[0]}", advice=f"run it yourself to see the rest: {shown()}")


@contextmanager
def _stopped_at_the_end(command: list[str]) -> Iterator[Child]:
    with spawn(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as crew:
        try:
            yield crew
        finally:
            if crew.poll() is None:
                crew.terminate()
                with suppress(subprocess.TimeoutExpired):
                    crew.communicate(timeout=_STOP_S)
                crew.kill()
