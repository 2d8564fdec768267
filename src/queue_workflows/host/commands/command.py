"""A command as a worker describes it, the wish that it ends, and how it ended; plain data."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from queue_workflows.host.directories.below import OpenDirectory


@dataclass(frozen=True, slots=True)
class Command:
    """What to run, where, with which environment, for how long, and where its output goes.

    No link below `beneath` is followed on the way to where it works and to its output. If that is held open,
    those are reached from there. `line` is a regular expression: its first match with a line that the command
    prints, on either stream, is told to what waits for the command.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    stdout_path: Path
    stderr_path: Path
    timeout_s: float | None = None
    grace_s: float = 10.0
    stdout_cap: int = 16 * 1024 * 1024
    stderr_cap: int = 1024 * 1024
    beneath: Path | OpenDirectory | None = None
    line: str | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended; `survivors` are processes of it that even SIGKILL has not ended yet.

    `stopped` is the reason of the `Stop` that ended it, `mark` what its processes had in their environment,
    `stderr_tail` the end of what it said, `killed_by` that the kernel killed it for want of memory, in words.
    """

    code: int | None
    signal: int | None
    timed_out: bool
    stopped: str | None
    seconds: float
    stdout_bytes: int
    stdout_truncated: bool
    stderr_bytes: int
    stderr_truncated: bool
    output_error: str | None = None
    survivors: tuple[int, ...] = ()
    mark: str = ""
    stderr_tail: str = ""
    killed_by: str = ""


class Stop:
    """A wish that a command ends, to be made from any thread, before it starts or while it runs."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._tell: Callable[[float | None], None] | None = None
        self._grace_s: float | None = None
        self.reason: str | None = None
        self.asked_at: float | None = None

    def request(self, reason: str, *, grace_s: float | None = None) -> None:
        """SIGTERM, the grace (by default the command's), SIGKILL; asked again, the grace can only shrink."""
        with self._lock:
            self.reason = self.reason or reason
            self.asked_at = self.asked_at or time.monotonic()
            self._grace_s = grace_s
            if self._tell is not None:
                self._tell(grace_s)

    def _listen(self, tell: Callable[[float | None], None] | None) -> None:
        with self._lock:
            self._tell = tell
            if tell is not None and self.reason is not None:
                tell(self._grace_s)
