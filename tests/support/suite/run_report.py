"""What a run in several processes says while it goes on.

With -q nothing is said of a failure until the end of the run, and a run that is ended from outside has none.
So each failure is a line at once, and every few minutes a line names what has been running for long.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

NAME = "suite_run_report"
_EVERY_S = 300
_LONG_S = 60
_WIDTH = 300


class RunReport:
    """The plugin of the process that shares out the tests; `say` prints a line."""

    def __init__(self, say: Callable[[str], None], every_s: float = _EVERY_S) -> None:
        self._say = say
        self._every_s = every_s
        self._began: dict[str, float] = {}
        self._tries: Counter[str] = Counter()
        self._is_over = threading.Event()

    def say_what_runs(self, for_s: float = 0) -> None:
        """Name the tests that have been running for so long, the longest first."""
        now = time.monotonic()
        running = sorted((began, test) for test, began in self._began.copy().items() if now - began >= for_s)
        if running:
            self._say("running: " + ", ".join(f"{test} for {now - began:.0f} s" for began, test in running))

    def pytest_sessionstart(self) -> None:
        """Look at the tests now and then, in a thread: where all of them hang nothing else happens."""
        threading.Thread(target=self._look_now_and_then, daemon=True).start()

    def _look_now_and_then(self) -> None:
        while not self._is_over.wait(self._every_s):
            self.say_what_runs(_LONG_S)

    def pytest_sessionfinish(self) -> None:
        self._is_over.set()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._began[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._began.pop(nodeid, None)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Say that a try failed; the process of a test that it took with it says no more of it."""
        outcome: str = report.outcome
        if outcome not in ("failed", "rerun"):
            return
        self._tries[report.nodeid] += 1
        began = self._began.get(report.nodeid, time.monotonic())
        self._say(failure(report, self._tries[report.nodeid], time.monotonic() - began))
        if report.when not in ("setup", "call", "teardown"):
            self._began.pop(report.nodeid, None)

    @pytest.hookimpl(trylast=True)
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be read fails before its tests are known."""
        if report.failed:
            self._say(f"failed: {report.nodeid}: {_error(report)}")


def failure(report: pytest.TestReport, tries: int, taken_s: float) -> str:
    """The line of a failed try."""
    again = "" if report.failed else ", is tried again"
    phase = f" in {report.when}" if report.when in ("setup", "teardown") else ""
    return f"failed: {report.nodeid}{phase}, try {tries} after {taken_s:.1f} s{again}: {_error(report)}"


def _error(report: pytest.TestReport | pytest.CollectReport) -> str:
    """What went wrong in a line: of an exception its name and the first line of what it says."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = str(crash.message).splitlines() if crash else report.longreprtext.strip().splitlines()[-1:]
    return (lines[0] if lines else "nothing is said of it")[:_WIDTH]


def line_writer(config: pytest.Config) -> Callable[[str], None]:
    """Prints a line of its own, also in the midst of the dots of a run; what it prints is there at once."""

    def say(line: str) -> None:
        writer = config.get_terminal_writer()
        if writer.width_of_current_line:
            writer.line()
        writer.line(line)
        writer.flush()

    return say
