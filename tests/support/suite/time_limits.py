"""Limits in time that end a test, or the whole run, whatever its process waits in.

pytest-timeout sets one alarm for a test, and the first failure takes it off: a second try would have none,
nor would the teardown of what failed. Its alarm is also heard only once the main thread is back in Python. So
each attempt gets an alarm of its own here, and behind it stands the watchdog of faulthandler, a thread of C.
It prints the stacks of all threads and ends the process of an attempt that is not over a grace after its
alarm; xdist reports that test as failed and replaces the process.

That watchdog also ends every process of a run at the run's ceiling, QWF_TEST_CEILING_S seconds after its
start; `scripts/test` always sets one.
"""

from __future__ import annotations

import faulthandler
import os
import time
from collections.abc import Generator
from typing import Any

import pytest
from support.suite.run_report import NAME, RunReport

GRACE_S = "QWF_TEST_GRACE_S"
CEILING_S = "QWF_TEST_CEILING_S"
_HANDED_ON = "suite_ends_at"
# What the process that shares out the tests may take to report a run that met its ceiling.
_REPORT_S = 60


class TimeLimits:
    """The plugin, one in each process of a run; its clock is the machine's, which all of them read alike."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        # Output goes to pytest while a test runs, and what it holds is lost with the process.
        self._stderr = os.dup(2)
        self._grace_s = float(os.environ.get(GRACE_S) or 30)
        ceiling_s = float(os.environ.get(CEILING_S) or 0)
        ends_at = time.monotonic() + ceiling_s if ceiling_s else None
        self._handed_on: dict[str, Any] | None = getattr(config, "workerinput", None)
        self._ends_at = ends_at if self._handed_on is None else self._handed_on.get(_HANDED_ON)
        self._shares_out = False
        self._alarm: Any = None
        self._watch(None)

    def _watch(self, within_s: float | None) -> None:
        """End this process so many seconds from now, and at the run's end at the latest."""
        left = [] if within_s is None else [within_s]
        if self._ends_at is not None:
            late_s = _REPORT_S if self._shares_out else 0
            left.append(max(self._ends_at + late_s - time.monotonic(), 0.1))
        if left:
            faulthandler.dump_traceback_later(min(left), exit=True, file=self._stderr)
        else:
            faulthandler.cancel_dump_traceback_later()

    def _begin(self, item: pytest.Item) -> None:
        """Give an attempt, or what follows its failure, a whole limit."""
        if self._alarm is None:
            return
        self._config.hook.pytest_timeout_cancel_timer(item=item)
        self._config.hook.pytest_timeout_set_timer(item=item, settings=self._alarm)
        self._watch(self._alarm.timeout + self._grace_s)

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> None:
        """Learn which limit pytest-timeout found for a test."""
        self._alarm = settings

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._alarm = None
        try:
            return (yield)
        finally:
            self._watch(None)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        self._begin(item)
        return (yield)

    @pytest.hookimpl(trylast=True)
    def pytest_exception_interact(self, node: pytest.Item | pytest.Collector) -> None:
        """After pytest and pytest-timeout, which take their limits off so that a person may look around."""
        if isinstance(node, pytest.Item):
            self._begin(node)
        else:
            self._watch(None)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Hand the run's end on; a process that replaces one which met it is only there to be sent away."""
        self._shares_out = True
        self._watch(None)
        if self._ends_at is not None:
            is_over = time.monotonic() >= self._ends_at
            node.workerinput[_HANDED_ON] = self._ends_at + (_REPORT_S if is_over else 0)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Stop a run whose processes met its ceiling, with the usual summary."""
        if self._ends_at is None or time.monotonic() < self._ends_at:
            return
        distribution = self._config.pluginmanager.get_plugin("dsession")
        if distribution is not None and not distribution.shouldstop:
            faulthandler.dump_traceback(file=self._stderr)
            report = self._config.pluginmanager.get_plugin(NAME)
            if isinstance(report, RunReport):
                report.say_what_runs()
            ceiling = f"the run took longer than {CEILING_S}={os.environ.get(CEILING_S)} seconds"
            distribution.shouldstop = ceiling
