"""What a check-up found, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from queue_workflows.errors import ExitCode, QwfError


class Status(StrEnum):
    """How bad it is; `skip` is a check that could not be made."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True)
class Check:
    """One finding; `code` is what a process ends with that failed because of it."""

    name: str
    status: Status
    found: str
    advice: str = ""
    code: ExitCode = ExitCode.FAILED
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """All findings, in the order in which they were made."""

    checks: tuple[Check, ...]

    @property
    def exit_code(self) -> ExitCode:
        """0 if nothing failed, the failures' own code if they agree on one, else 1."""
        codes = {check.code for check in self.checks if check.status is Status.FAIL}
        if not codes:
            return ExitCode.DONE
        return codes.pop() if len(codes) == 1 else ExitCode.FAILED


def failed(name: str, exc: QwfError) -> Check:
    """The finding that an error is."""
    return Check(name, Status.FAIL, exc.message, exc.advice or "", exc.exit_code)
