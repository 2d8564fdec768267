"""A run says at once what failed, and now and then what has been running for long."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

from support.processes.pytest_runs import run_pytest
from support.suite.run_report import RunReport

TESTS = Path(__file__).resolve().parents[2]
GONE = "test_planted.py::test_gone"
PLANTED = """
import os
import pytest

TRIES = []

@pytest.mark.flaky(reruns=1)
def test_twice():
    TRIES.append(1)
    assert len(TRIES) > 2, "not yet"

@pytest.fixture
def broken():
    raise LookupError("no such thing\\nand more")

def test_broken(broken): pass
def test_gone(): os._exit(3)
def test_sound(): pass
"""


def test_each_failed_try_is_a_line_before_the_next_test_begins(tmp_path: Path) -> None:
    """A first try too, and one whose process is gone with it; of an error what it says first."""
    _, said = run_pytest(
        tmp_path, {"test_planted.py": PLANTED}, "-p", "conftest", "-q", "-n", "1", PYTHONPATH=str(TESTS)
    )
    before_the_end, _, _ = said.partition("=== ")
    lines = re.findall(r"^failed: .*$", before_the_end, re.MULTILINE)
    assert [re.sub(r"after [\d.]+ s", "after x s", line) for line in lines] == [
        "failed: test_planted.py::test_twice, try 1 after x s, is tried again: AssertionError: not yet",
        "failed: test_planted.py::test_twice, try 2 after x s: AssertionError: not yet",
        "failed: test_planted.py::test_broken in setup, try 1 after x s: LookupError: no such thing",
        f"failed: {GONE}, try 1 after x s: worker 'gw0' crashed while running '{GONE}'",
    ], said


def test_what_has_been_running_for_long_is_named_the_longest_first() -> None:
    """What is over is left out, and nothing is said of what began a moment ago."""
    said: list[str] = []
    report = RunReport(said.append)
    for test in ("a", "b", "c"):
        report.pytest_runtest_logstart(test)
        time.sleep(0.001)
    report.pytest_runtest_logfinish("b")
    report.say_what_runs(60)
    assert said == []
    report.say_what_runs()
    assert said == ["running: a for 0 s, c for 0 s"]


def test_it_looks_although_nothing_happens() -> None:
    """In a thread, which ends with the run."""
    looked = threading.Event()
    before = threading.active_count()

    class Report(RunReport):
        def say_what_runs(self, for_s: float = 0) -> None:
            assert for_s == 60
            looked.set()

    report = Report(lambda line: None, every_s=0.001)
    report.pytest_sessionstart()
    assert looked.wait(30)
    report.pytest_sessionfinish()
    while threading.active_count() > before:
        time.sleep(0.01)
