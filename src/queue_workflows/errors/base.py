"""What every error of ours is, and what a process ends with."""

from __future__ import annotations

from enum import IntEnum
from typing import Self


class ExitCode(IntEnum):
    """What a process of ours says when it ends; each code carries the sentence that the docs print."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> Self:
        code = int.__new__(cls, value)
        code._value_ = value
        code.meaning = meaning
        return code

    DONE = 0, "Done."
    FAILED = 1, "The outcome that was asked about is a failure, or something unforeseen went wrong."
    USAGE = 2, "The command line or a payload is wrong; nothing was changed, or the message says what was."
    UNREACHABLE = 69, "The database cannot be reached, or takes no writes."
    DEADLINE = 73, "What was waited for did not happen before the deadline."
    WALL_CLOCK = 75, "A job ran longer than it may; the worker ended itself, and the job counts a failure."
    STALL = 76, "A job stopped making progress; the worker ended itself, and the job counts a failure."
    STOPPED = 77, "The operator switched this worker off, and it runs with `--exit-when-off`."
    CONFIGURATION = 78, "A setting, a file, the host app's wiring or the database's access rules are wrong."
    SCHEMA = 79, "The database's schema is behind or ahead of this code."
    LEASE_LOST = 80, "Another attempt owns the job now; nothing was written."
    INTERRUPTED = 130, "Interrupted (SIGINT, Ctrl-C)."
    PIPE_CLOSED = 141, "What read the output went away, as `head` does."
    TERMINATED = 143, "Terminated (SIGTERM)."


class QwfError(Exception):
    """Base of all our errors: one line of message, what to do about it, and the exit code it ends with."""

    exit_code: ExitCode = ExitCode.FAILED

    def __init__(self, message: str, *, advice: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.message} — {self.advice}" if self.advice else self.message


class ConfigurationError(QwfError):
    """A setting, a file or the wiring of the host app is wrong."""

    exit_code = ExitCode.CONFIGURATION


class PayloadError(QwfError, ValueError):
    """A JSON payload that Postgres or another reader could not take; `path` names the offending place."""

    exit_code = ExitCode.USAGE

    def __init__(self, message: str, *, path: str = "$", advice: str | None = None) -> None:
        super().__init__(message, advice=advice)
        self.path = path


class IllegalTransition(QwfError):
    """A status change that the table in `states.py` does not allow."""

    def __init__(self, family: str, old: str, new: str) -> None:
        super().__init__(f"{family}: {old} -> {new} is not a legal transition")
        self.family, self.old, self.new = family, old, new
