"""No test, and no run of them, goes on for ever: planted hangs in runs with this suite's own conftest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.processes.pytest_runs import run_pytest

TESTS = Path(__file__).resolve().parents[2]
INI = "[pytest]\ntimeout = 3\n"
# The second lock of this mutex is not left for any signal, so Python never gets to hear the alarm.
DEAF = """
import ctypes, os, threading, time
import pytest

def deaf():
    mutex = ctypes.create_string_buffer(128)
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""


def run(directory: Path, planted: dict[str, str], *arguments: str, **environ: str) -> tuple[int, str]:
    """The end of a run of these tests, whose limit is three seconds unless they say another."""
    files = {"pytest.ini": INI, **{name: DEAF + text for name, text in planted.items()}}
    limits = {"QWF_TEST_GRACE_S": "2", **environ}
    return run_pytest(directory, files, "-p", "conftest", *arguments, PYTHONPATH=str(TESTS), **limits)


def counts(said: str) -> str:
    """The closing line, without what it took."""
    return re.sub(r"=+ | in [\d.]+s.*", "", said.splitlines()[-1])


def test_a_second_try_has_a_limit_too(tmp_path: Path) -> None:
    """And a test that failed has one anew, for its second try and for what its fixtures put in order."""
    planted = """
        @pytest.fixture
        def slow_to_end():
            yield
            if len(TRIES) == 2:
                threading.Event().wait()

        TRIES = []

        @pytest.mark.flaky(reruns=1)
        def test_planted(slow_to_end):
            TRIES.append(1)
            threading.Event().wait()
    """.replace("\n        ", "\n")
    status, said = run(tmp_path, {"test_planted.py": planted})
    assert (status, counts(said)) == (1, "1 failed, 1 error, 1 rerun"), said
    assert said.count("Failed: Timeout (>3.0s)") >= 3


@pytest.mark.slow
@pytest.mark.parametrize("tries", ["", "@pytest.mark.flaky(reruns=1)\n"], ids=["one try", "two tries"])
def test_one_that_hears_no_alarm_is_ended_with_its_process(tmp_path: Path, tries: str) -> None:
    """It failed, its stacks are printed, and the others of its process are done by another one."""
    planted = f"def test_before(): pass\n{tries}def test_deaf(): deaf()\ndef test_after(): pass\n"
    others = {f"test_{name}.py": "def test_other(): pass\n" for name in "abc"}
    status, said = run(tmp_path, {"test_planted.py": planted, **others}, "-n", "1", "--dist", "loadfile")
    assert (status, counts(said)) == (1, "1 failed, 5 passed"), said
    assert "crashed while running 'test_planted.py::test_deaf'" in said
    assert re.search(r'Timeout \(.*File "[^"]*test_planted.py", line \d+ in test_deaf', said, re.DOTALL)


def test_a_test_alone_in_its_process_is_ended_with_the_run(tmp_path: Path) -> None:
    """Without processes to share them, the stacks say which test it was."""
    status, said = run(tmp_path, {"test_planted.py": "def test_deaf(): deaf()\n"})
    assert status != 0
    assert re.search(r'Timeout \(.*File "[^"]*test_planted.py", line \d+ in test_deaf', said, re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [[], ["-n", "2", "--dist", "loadfile"]], ids=["one", "shared"])
def test_a_whole_run_has_a_ceiling(tmp_path: Path, processes: list[str]) -> None:
    """At which each of its processes prints its stacks and ends, and the run has failed."""
    hang = "@pytest.mark.timeout(500)\ndef test_{name}(): threading.Event().wait()\n"
    planted = {f"test_{name}.py": hang.format(name=name) for name in ("first", "second")}
    status, said = run(tmp_path, planted, *processes, QWF_TEST_CEILING_S="15")
    assert status != 0
    names = ["first", "second"] if processes else ["first"]
    for name in names:
        assert re.search(rf'File "[^"]*test_{name}.py", line \d+ in test_{name}', said), said
    if processes:
        assert "the run took longer than QWF_TEST_CEILING_S=15 seconds" in said
        assert "2 failed" in said
        assert re.search(r"running: test_(first|second).py::test_\1 for \d+ s, test_", said)


@pytest.mark.slow
def test_a_run_below_its_ceiling_is_left_alone(tmp_path: Path) -> None:
    """As is a process that waits for its next test for longer than a test may take."""
    planted = {"test_a.py": "def test_quick(): pass\n"}
    planted["test_b.py"] = (
        "@pytest.mark.timeout(60)\ndef test_long(): time.sleep(5)\ndef test_after(): pass\n"
    )
    status, said = run(
        tmp_path, planted, "-n", "2", "--dist", "loadfile", QWF_TEST_CEILING_S="600", QWF_TEST_GRACE_S="0.5"
    )
    assert (status, counts(said)) == (0, "3 passed"), said
