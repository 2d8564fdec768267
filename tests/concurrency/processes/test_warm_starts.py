"""Processes of `qwf` that the tests fork are what a new interpreter would be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.processes.programs import linux_only
from support.suite import warm_starts

pytestmark = linux_only

# Says what it is, and that there is nothing to be wired: status 78.
WIRING = """
import json, os, sys
print(json.dumps({
    "ours": [os.getpid(), os.getppid(), os.getsid(0)],
    "words": [sys.argv[1:], sys.orig_argv[1:]],
    "environment": sorted(map(list, dict(os.environ).items())),
    "place": [os.getcwd(), sys.path],
    "descriptors": sorted(map(int, os.listdir("/proc/self/fd")))[:3],
    "threads": len(os.listdir("/proc/self/task")),
    "signals": [line for line in open("/proc/self/status") if line[:6] in ("SigBlk", "SigIgn", "SigCgt")],
}))
print(sys.modules.get("queue_workflows.roles.scheduler.process") is not None, file=sys.stderr)
sys.exit("not wired")
"""


def said(directory: Path, **changes: str) -> tuple[dict[str, Any], bool, int]:
    """What a process said of itself, whether it had imported more than it had to, and its status."""
    (directory / "wiring.py").write_text(WIRING)
    process = warm_starts.start(
        [*warm_starts.MODULE, "--app", "wiring", "job", "list"],
        {**os.environ, "WORD": "two words", **changes},
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = process.communicate(timeout=150)
    told = json.loads(out.splitlines()[0])
    assert told["ours"] == [process.pid, os.getpid(), process.pid]
    return {**told, "ours": None}, err.splitlines()[0] == "True", process.returncode


def test_a_forked_process_is_as_a_new_interpreter_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is our child, leads a session, and has the words, environment, place and signals of the other."""
    warm = said(tmp_path)
    monkeypatch.setenv(warm_starts.COLD, "1")
    cold = said(tmp_path, **{warm_starts.COLD: ""})
    monkeypatch.delenv(warm_starts.COLD)
    cold[0]["environment"].remove([warm_starts.COLD, ""])
    assert (warm[1], cold[1]) == (True, False)
    assert [name for name in warm[0] if warm[0][name] != cold[0][name]] == []
    assert (warm[2], cold[2]) == (78, 78)


def test_what_an_interpreter_looks_at_as_it_starts_takes_a_new_one(tmp_path: Path) -> None:
    """A module that is to come first, a time zone, or another allocator."""
    assert not said(tmp_path, PYTHONPATH=str(tmp_path))[1]
    assert not said(tmp_path, TZ="Asia/Tokyo")[1]
    assert said(tmp_path)[1]


def test_a_signal_ends_it_as_it_ends_any_child(tmp_path: Path) -> None:
    """Its status is the test's to wait for."""
    (tmp_path / "wiring.py").write_text("import time\nprint(1, flush=True)\ntime.sleep(1000)\n")
    command = [*warm_starts.MODULE, "--app", "wiring", "job", "list"]
    with warm_starts.start(command, os.environ, cwd=tmp_path, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        process.kill()
        assert process.wait(150) == -9


PROGRAM = """
import atexit, os, sys, threading, time
import neighbour
atexit.register(print, "at exit")
threading.Thread(target=lambda: (time.sleep(0.2), print("the thread", flush=True))).start()
print(sys.argv[1:], neighbour.NAME, __name__, os.getpgid(0) == os.getpid(), sys.stdin.read())
print("in the end", file=sys.stderr)
sys.exit(eval(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("left", "status", "told"), [("None", 0, ""), ("3", 3, ""), ("'why'", 1, "why\n"), ("256", 0, "")]
)
def test_a_program_in_a_file_is_forked_and_ends_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str, status: int, told: str
) -> None:
    """As an executed one: its neighbours are importable, and its threads and exit functions waited for."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "neighbour.py").write_text("import sys\nNAME = 'queue_workflows.cli.main' in sys.modules\n")
    command = [sys.executable, str(tmp_path / "program.py"), left, "two words"]
    said = []
    for is_forked in (True, False):
        monkeypatch.setenv(warm_starts.COLD, "" if is_forked else "1")
        with (tmp_path / "in").open("w+") as given:
            given.write("given")
            given.seek(0)
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            ended = warm_starts.run(command, os.environ, stdin=given, **pipes)
        first, *rest = ended.stdout.splitlines()
        assert (ended.returncode, ended.stderr, rest) == (
            status,
            f"in the end\n{told}",
            ["the thread", "at exit"],
        )
        said.append(first)
    assert said == [f"{[left, 'two words']} {is_forked} __main__ True given" for is_forked in (True, False)]


def test_an_exception_is_told_with_its_traceback(tmp_path: Path) -> None:
    """On the streams of the process, with the status of any interpreter."""
    (tmp_path / "program.py").write_text("1 / 0\n")
    command = [sys.executable, str(tmp_path / "program.py")]
    ended = warm_starts.run(command, os.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize(("unbuffered", "said"), [("", ""), ("1", "soon")])
def test_it_writes_as_its_environment_says(tmp_path: Path, unbuffered: str, said: str) -> None:
    """What is buffered is lost with a process that is killed."""
    (tmp_path / "program.py").write_text(
        "import os, signal\nprint('soon', end='')\nos.kill(os.getpid(), 9)\n"
    )
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, str(tmp_path / "program.py")]
    ended = warm_starts.run(command, environment, stdout=subprocess.PIPE)
    assert (ended.returncode, ended.stdout) == (-9, said)


def test_one_that_does_not_end_in_time_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And waited for, as its caller goes on with an exception."""
    started: list[subprocess.Popen[str]] = []
    start = warm_starts.start

    def remembered(*asked: Any, **options: Any) -> subprocess.Popen[str]:
        started.append(start(*asked, **options))
        return started[-1]

    monkeypatch.setattr(warm_starts, "start", remembered)
    (tmp_path / "program.py").write_text("import time\ntime.sleep(1000)\n")
    command = [sys.executable, str(tmp_path / "program.py")]
    with pytest.raises(subprocess.TimeoutExpired):
        warm_starts.run(command, os.environ, timeout_s=1, cwd=tmp_path, stdout=subprocess.PIPE)
    assert [process.returncode for process in started] == [-signal.SIGKILL]
    assert not psutil.pid_exists(started[0].pid)


def test_threads_that_start_at_once_get_each_its_own(tmp_path: Path) -> None:
    """Its pid, its streams and its end."""
    (tmp_path / "program.py").write_text("import os, sys\nprint(os.getpid(), sys.argv[1])\n")

    def says(word: int) -> tuple[str, str]:
        command = [sys.executable, str(tmp_path / "program.py"), str(word)]
        with warm_starts.start(command, os.environ, stdout=subprocess.PIPE) as process:
            return process.communicate(timeout=150)[0], f"{process.pid} {word}\n"

    says(0)
    with ThreadPoolExecutor(8) as threads:
        assert [said for said in threads.map(says, range(40)) if said[0] != said[1]] == []


def test_an_option_that_a_fork_does_not_heed_takes_a_new_interpreter(tmp_path: Path) -> None:
    """Rather than to be passed over in silence."""
    (tmp_path / "program.py").write_text(
        "import os, sys\nprint(os.umask(0), 'queue_workflows' in sys.modules)\n"
    )
    command = [sys.executable, str(tmp_path / "program.py")]
    assert warm_starts.run(command, os.environ, stdout=subprocess.PIPE, umask=0o70).stdout == "56 False\n"


def test_other_commands_are_executed(tmp_path: Path) -> None:
    """Only `qwf` and files are forked."""
    command = [sys.executable, "-c", "import sys; print('queue_workflows' in sys.modules)"]
    with warm_starts.start(command, os.environ, stdout=subprocess.PIPE) as process:
        assert process.communicate(timeout=150)[0] == "False\n"
