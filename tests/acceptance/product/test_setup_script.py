"""scripts/setup: what it does when, and what it says when it cannot.

A stand-in Python records what it is asked to do, so that each case takes milliseconds.
In test_two_commands.py the script runs for real.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.processes.embedded_users import until
from support.processes.fifos import open_for_its_reader

PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
ROOT = Path(__file__).resolve().parents[3]
TOOLS = ["bash", "cat", "cmp", "cp", "dirname", "env", "flock", "grep", "id", "mkdir", "mv", "rm", "sleep"]

PYTHON = """#!/bin/bash
case "$*" in
  "-c import sys"*) echo "${STUB_VERSION:-3.11}" ;;
  "-c import ensurepip, venv") exit "${STUB_NO_ENSUREPIP:-0}" ;;
  "-c import runpy"*" venv --clear "*)
    echo venv >>"$STUB_LOG"
    rm -rf "${!#}"
    mkdir -p "${!#}/bin"
    cp "$0" "${!#}/bin/python"
    if [ -n "${STUB_VENV_GATE:-}" ]; then cat "$STUB_VENV_GATE"; fi
    exit "${STUB_VENV_STATUS:-0}" ;;
  "-m pip --version") exit 0 ;;
  "-c import runpy"*" pip install "*--require-hashes*)
    echo packages >>"$STUB_LOG"
    if [ -n "${STUB_GATE:-}" ]; then cat "$STUB_GATE"; fi
    exit "${STUB_PIP_STATUS:-0}" ;;
  "-c import runpy"*" pip install "*--editable*) echo ourselves >>"$STUB_LOG" ;;
  *) echo "unexpected: $*" >&2; exit 99 ;;
esac
"""


class Checkout:
    """A directory with the script and what it reads, and a PATH with exactly what the case needs."""

    def __init__(self, base: Path, tools: list[str]) -> None:
        self.root = base / "a checkout"
        (self.root / "scripts").mkdir(parents=True)
        shutil.copy(ROOT / "scripts" / "setup", self.root / "scripts")
        (self.root / "requirements.lock").write_text("click==8.2\n", encoding="utf-8")
        (self.root / "pyproject.toml").write_text("[project]\n", encoding="utf-8")
        self.bin = base / "bin"
        self.bin.mkdir()
        for tool in tools:
            found = shutil.which(tool)
            if found is None:
                pytest.skip(f"this machine has no {tool}")
            (self.bin / tool).symlink_to(found)
        self.log = base / "log"
        self.environ = {"PATH": str(self.bin), "STUB_LOG": str(self.log)}

    def add_python(self, name: str = "python3") -> Path:
        path = self.bin / name
        path.write_text(PYTHON, encoding="utf-8")
        path.chmod(0o755)
        return path

    def start(self, **environ: str) -> subprocess.Popen[str]:
        command = [self.root / "scripts" / "setup"]
        env = self.environ | environ
        return subprocess.Popen(command, env=env, text=True, stderr=subprocess.PIPE, start_new_session=True)

    def run(self, **environ: str) -> tuple[int, str]:
        process = self.start(**environ)
        _, said = process.communicate(timeout=150)
        return process.returncode, said

    def did(self) -> list[str]:
        """What the Python was asked to do since the last time this was asked."""
        steps = self.log.read_text(encoding="utf-8").split() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return steps


@pytest.fixture
def bare(tmp_path: Path) -> Checkout:
    """No Python at all."""
    return Checkout(tmp_path, TOOLS)


@pytest.fixture(params=["with flock", "without flock"])
def checkout(request: pytest.FixtureRequest, tmp_path: Path) -> Checkout:
    """A fitting Python; and once without flock(1), where a directory is the lock."""
    tools = TOOLS if request.param == "with flock" else [tool for tool in TOOLS if tool != "flock"]
    made = Checkout(tmp_path, tools)
    made.add_python()
    return made


def test_the_first_run_does_everything_and_the_second_nothing(checkout: Checkout) -> None:
    """Safe to run twice, and silent when there is nothing to do."""
    status, said = checkout.run()
    assert (status, checkout.did()) == (0, ["venv", "packages", "ourselves"])
    assert "setup: ready" in said
    assert checkout.run() == (0, "")
    assert checkout.did() == []
    assert sorted(path.name for path in checkout.root.iterdir() if path.name.startswith(".")) == [".venv"]


def move(checkout: Checkout) -> None:
    checkout.root = checkout.root.rename(checkout.root.with_name("moved"))


def touch(name: str) -> Callable[[Checkout], None]:
    def change(checkout: Checkout) -> None:
        with (checkout.root / name).open("a", encoding="utf-8") as file:
            file.write("# more\n")

    return change


def lose_python(checkout: Checkout) -> None:
    (checkout.root / ".venv/bin/python").unlink()


@pytest.mark.parametrize(
    ("change", "steps"),
    [
        (touch("requirements.lock"), ["packages", "ourselves"]),
        (touch("pyproject.toml"), ["ourselves"]),
        (move, ["venv", "packages", "ourselves"]),
        (lose_python, ["venv", "packages", "ourselves"]),
    ],
    ids=["the lock changed", "pyproject.toml changed", "the checkout moved", "its Python went away"],
)
def test_only_what_changed_is_done_again(
    checkout: Checkout, change: Callable[[Checkout], None], steps: list[str]
) -> None:
    """A changed pyproject.toml needs no network; a lost or moved environment is made anew."""
    checkout.run()
    checkout.did()
    change(checkout)
    assert checkout.run()[0] == 0
    assert checkout.did() == steps
    checkout.run()
    assert checkout.did() == []


def test_naming_another_python_makes_the_environment_anew(checkout: Checkout) -> None:
    """QWF_PYTHON decides each time it is set, and what it made stays when it is not."""
    checkout.run()
    checkout.did()
    other = str(checkout.add_python("other"))
    assert checkout.run(QWF_PYTHON=other)[0] == 0
    assert checkout.did() == []
    # The stand-in takes its version from the environment, so its copy in .venv has to be told apart.
    fixed = (checkout.root / ".venv/bin/python").read_text(encoding="utf-8")
    (checkout.root / ".venv/bin/python").write_text(
        fixed.replace("STUB_VERSION", "NO_SUCH"), encoding="utf-8"
    )
    assert checkout.run(QWF_PYTHON=other, STUB_VERSION="3.13")[0] == 0
    assert checkout.did() == ["venv", "packages", "ourselves"]


def test_two_at_once_do_the_work_once(checkout: Checkout) -> None:
    """The second one waits, says so, and finds everything done."""
    gate = checkout.root.parent / "gate"
    os.mkfifo(gate)
    first = checkout.start(STUB_GATE=str(gate))
    # It can be opened once the first one is inside its installation.
    with open_for_its_reader(gate):
        second = checkout.start(STUB_GATE=str(gate))
        assert second.stderr is not None
        assert second.stderr.readline() == "setup: waiting for another set-up of this checkout\n"
    assert "ready" in first.communicate(timeout=150)[1]
    assert second.communicate(timeout=150)[1] == ""
    assert (first.returncode, second.returncode) == (0, 0)
    assert checkout.did() == ["venv", "packages", "ourselves"]


def test_a_killed_set_up_is_completed_by_the_next(checkout: Checkout) -> None:
    """No lock outlives its owner, and half an installation does not pass for a whole one."""
    gate = checkout.root.parent / "gate"
    os.mkfifo(gate)
    victim = checkout.start(STUB_GATE=str(gate))
    with open_for_its_reader(gate):
        os.killpg(victim.pid, signal.SIGKILL)
        victim.communicate(timeout=150)
    checkout.did()
    assert checkout.run()[0] == 0
    assert checkout.did() == ["packages", "ourselves"]


def test_a_registry_that_does_not_answer_is_told_and_retried(checkout: Checkout) -> None:
    """Exit 69, one line of ours below pip's own, and the next run tries again."""
    status, said = checkout.run(STUB_PIP_STATUS="1")
    assert status == 69
    assert "setup: the packages could not be installed" in said.splitlines()[-1]
    checkout.did()
    assert checkout.run()[0] == 0
    assert checkout.did() == ["packages", "ourselves"]


@pytest.mark.parametrize(
    ("gate", "status"), [("STUB_VENV_GATE", "STUB_VENV_STATUS"), ("STUB_GATE", "STUB_PIP_STATUS")]
)
def test_ctrl_c_is_130_and_quiet(checkout: Checkout, gate: str, status: str) -> None:
    """While the environment is made, or the packages are installed: no word about what then failed."""
    pipe = checkout.root.parent / "gate"
    os.mkfifo(pipe)
    process = checkout.start(**{gate: str(pipe), status: "1"})
    # It can be opened once the step is under way.
    with open_for_its_reader(pipe):
        os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=150)
    assert process.returncode == 130
    assert "could not" not in said
    checkout.did()
    assert checkout.run()[0] == 0
    assert checkout.did()[-1] == "ourselves"


def test_ctrl_c_shows_no_traceback_of_a_real_python(bare: Checkout) -> None:
    """In the middle of making the environment."""
    process = bare.start(QWF_PYTHON=sys.executable)
    cfg = bare.root / ".venv/pyvenv.cfg"
    until(lambda: cfg.exists() or process.poll() is not None, "the environment is being made")
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=150)
    assert process.returncode == 130
    assert said.splitlines() == [f"setup: making .venv with {sys.executable} (Python {PYTHON_VERSION})"]


@pytest.mark.parametrize(
    ("names", "environ", "words"),
    [
        ([], {}, "no Python 3.11, 3.12 or 3.13 on the PATH"),
        (["python3"], {"STUB_VERSION": "3.9"}, "no Python 3.11, 3.12 or 3.13 on the PATH"),
        (["python3"], {"STUB_VERSION": "3.12", "STUB_NO_ENSUREPIP": "1"}, "`apt install python3.12-venv`"),
        ([], {"QWF_PYTHON": "/no/such/python"}, "QWF_PYTHON=/no/such/python does not run"),
        (["old"], {"QWF_PYTHON": "old", "STUB_VERSION": "3.10"}, "is Python 3.10; 3.11 or newer is needed"),
        (["new"], {"QWF_PYTHON": "new", "STUB_NO_ENSUREPIP": "1"}, "`apt install python3.11-venv`"),
    ],
    ids=["none", "too old", "no ensurepip", "named: absent", "named: too old", "named: no ensurepip"],
)
def test_an_unfit_python_is_one_line_with_what_to_do(
    bare: Checkout, names: list[str], environ: dict[str, str], words: str
) -> None:
    """Exit 78, nothing made."""
    for name in names:
        bare.add_python(name)
    status, said = bare.run(**environ)
    assert status == 78
    assert words in said
    assert said.count("\n") == 1
    assert not (bare.root / ".venv").exists()


def test_a_python_that_cannot_make_environments_is_passed_over(bare: Checkout) -> None:
    """Where python3 lacks ensurepip and python3.12 has it, the latter is used."""
    lacking = bare.add_python("python3")
    lacking.write_text(
        lacking.read_text(encoding="utf-8").replace("STUB_NO_ENSUREPIP:-0", "X:-1"), encoding="utf-8"
    )
    bare.add_python("python3.12")
    status, said = bare.run()
    assert status == 0
    assert "with python3.12" in said
