"""How busy the processors of the machine were during a run: whether more of its tests could wait at once.

Its line stands in the summary of a run in several processes; the times are the kernel's, of all processes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pytest

STAT = Path("/proc/stat")


class Times(NamedTuple):
    """Seconds that all processors together have worked, and that they have had."""

    busy: float
    all: float


def times(stat: str) -> Times:
    """What the first line of /proc/stat says."""
    ticks = [int(word) for word in stat.split("\n", 1)[0].split()[1:9]]
    idle = sum(ticks[3:5])
    second = os.sysconf("SC_CLK_TCK")
    return Times((sum(ticks) - idle) / second, sum(ticks) / second)


def use(before: Times, after: Times) -> str:
    """The line of the summary."""
    busy, had = after.busy - before.busy, after.all - before.all
    return f"processors: busy {100 * busy / max(had, 0.01):.0f} %, {busy:.0f} of {had:.0f} seconds"


class ProcessorUse:
    """The plugin of the process that shares out the tests."""

    def __init__(self) -> None:
        self._before = times(STAT.read_text())

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say how busy the machine was."""
        terminalreporter.write_line(use(self._before, times(STAT.read_text())))
