"""One hook as a process: from its command line to how it ended.

The command, its output files, its time and the end of its whole tree are `host/commands`'s affair, which
knows nothing of hooks; here is added what only a hook has.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final

from queue_workflows.engine.execution.redaction import Redactor
from queue_workflows.hooks.script.pid_files import sweep_pid_files
from queue_workflows.host.commands.client import Spawner, Started
from queue_workflows.host.commands.command import Command as HookCommand
from queue_workflows.host.commands.command import Ended
from queue_workflows.host.commands.command import Stop as HookStop

__all__ = ["HookCommand", "HookExit", "HookStop", "run_hook"]

_KNOWN: Final = tuple(field.name for field in fields(Ended))
_LONGEST_TAIL: Final = 8_000
_NO_SECRETS: Final = Redactor()


@dataclass(frozen=True, slots=True)
class HookExit(Ended):
    """How a hook ended; `stderr_tail` is fit to be stored, `swept` are daemons that were ended after it."""

    swept: tuple[int, ...] = ()


def run_hook(
    command: HookCommand,
    *,
    spawner: Spawner,
    stop: HookStop | None = None,
    redactor: Redactor = _NO_SECRETS,
    started: Started | None = None,
    said: Callable[[], None] | None = None,
    is_shared: bool = False,
) -> HookExit:
    """Run a hook until nothing of it is left, at most for its timeout and grace, or until it is told to stop.

    It blocks its thread, asleep; `started` is called in it once the hook runs, and `said` once it has printed
    its command's line. Where its directory `is_shared`, hooks on other hosts write there too. `SpawnRefused`
    says that the hook cannot be started here, `ProcessLost` that what saw to it was killed: then the hook is
    gone too, and how it ended nobody knows.
    """
    since = time.time()
    ended = spawner.run(command, stop=stop, started=started, said=said)
    swept = sweep_pid_files(
        command.cwd,
        mark=ended.mark,
        since=since,
        grace_s=command.grace_s,
        beneath=command.beneath,
        is_shared=is_shared,
    )
    known = {name: getattr(ended, name) for name in _KNOWN}
    known["stderr_tail"] = redactor.tail(ended.stderr_tail, _LONGEST_TAIL)
    return HookExit(**known, swept=swept)
