"""scripts/test: what it runs beside what, and what it says of each step; and what scripts/fleet begins with.

Stand-ins for the tools say that they began, so that each case takes moments.
In test_two_commands.py the script runs for real.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
STEPS = ["== ruff check", "== ruff format", "== mypy", "== import-linter", "== pytest"]

# A tool ends once as many tools have begun as the case names; it gives up long before the test does.
TOOL = """#!/usr/bin/env bash
name="${0##*/} $*"
echo "$name" >>"$BEGAN"
for ((look = 0; look < 600; look++)); do
  if [ "$(grep -vc "^python" "$BEGAN")" -ge "${TOOLS:-0}" ]; then break; fi
  sleep 0.2
done
echo "began with $(wc -l <"$BEGAN") or more: $name"
echo "ends after: ${QWF_TEST_CEILING_S:-never}"
case "$name" in *"${FAILS:-nothing fails}"*) exit 1 ;; esac
"""


class Checkout:
    """A directory with the scripts, and an environment of stand-ins."""

    def __init__(self, base: Path) -> None:
        self.root = base / "a checkout"
        self.began = base / "began"
        tools = self.root / ".venv" / "bin"
        tools.mkdir(parents=True)
        (self.root / "scripts").mkdir()
        (self.root / "tests").mkdir()
        for name in ("test", "fleet"):
            shutil.copy(ROOT / "scripts" / name, self.root / "scripts")
        for path in (self.root / "scripts" / "setup", *(tools / name for name in TOOL_NAMES)):
            path.write_text("#!/bin/sh\n" if path.name == "setup" else TOOL, encoding="utf-8")
            path.chmod(0o755)

    def run(self, *arguments: str, script: str = "test", **environ: str) -> tuple[int, list[str]]:
        """The exit status, and the lines that it printed."""
        ran = subprocess.run(
            [self.root / "scripts" / script, *arguments],
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "BEGAN": str(self.began), **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=150,
        )
        return ran.returncode, ran.stdout.splitlines()

    def pytests(self) -> list[str]:
        """How pytest was begun, in order."""
        began = self.began.read_text(encoding="utf-8").splitlines()
        return [line for line in began if line.startswith("python ")]


TOOL_NAMES = ("ruff", "mypy", "lint-imports", "python")


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_the_checks_run_beside_each_other_and_are_told_of_in_order(checkout: Checkout) -> None:
    """Each waits here until all four have begun; what a check prints stands below its name."""
    status, printed = checkout.run(TOOLS="4")
    assert status == 0
    assert [line for line in printed if line.startswith("== ")] == STEPS
    said = {
        printed[at]: printed[at + 1].partition(": ")[2].split()[0]
        for at, line in enumerate(printed)
        if line in STEPS
    }
    assert list(said.values()) == ["ruff", "ruff", "mypy", "lint-imports", "python"]


@pytest.mark.parametrize(
    ("fails", "step"),
    [
        ("ruff check", "ruff check"),
        ("ruff format", "ruff format"),
        ("mypy", "mypy"),
        ("lint", "import-linter"),
    ],
)
def test_a_check_that_fails_is_named_and_the_tests_run_all_the_same(
    checkout: Checkout, fails: str, step: str
) -> None:
    """The exit status of a check is not lost because it ran beside others."""
    status, printed = checkout.run(FAILS=fails)
    assert (status, printed[-1]) == (1, f"test: failed: {step}")
    assert checkout.pytests()


def test_in_a_new_copy_one_process_compiles_the_tests_for_all(checkout: Checkout) -> None:
    """Only there, and only where all of them will run."""
    checkout.run()
    assert len(checkout.pytests()) == 2
    checkout.began.unlink()
    checkout.run("tests/unit")
    assert len(checkout.pytests()) == 1
    (checkout.root / "tests" / "__pycache__").mkdir()
    checkout.began.unlink()
    checkout.run()
    assert len(checkout.pytests()) == 1


@pytest.mark.parametrize("arguments", [(), ("--all",)])
def test_some_processes_for_each_processor_share_the_tests(
    checkout: Checkout, arguments: tuple[str, ...]
) -> None:
    """Of no more than four processors, unless QWF_TEST_WORKERS says another number."""
    processors = min(os.sysconf("SC_NPROCESSORS_ONLN"), 4)
    checkout.run("tests/unit", *arguments)
    checkout.run("tests/unit", *arguments, QWF_TEST_WORKERS="5")
    counted, said = checkout.pytests()
    assert f" -n {processors * 3} " in counted
    assert " -n 5 " in said


@pytest.mark.parametrize(
    ("arguments", "chosen", "ceiling_s"),
    [
        ("", "-m not slow and not nightly ", 2400),
        ("--all", "-m not nightly ", 4500),
        ("--nightly", "", 14400),
        ("--all --nightly", "", 14400),
        ("--nightly --all", "", 14400),
    ],
)
def test_what_is_slow_and_what_is_nightly_is_run_where_it_is_asked_for(
    checkout: Checkout, pytestconfig: pytest.Config, arguments: str, chosen: str, ceiling_s: int
) -> None:
    """And has as long as it needs; what is asked for by night is more than all."""
    _, printed = checkout.run("tests/unit", *arguments.split())
    (command,) = checkout.pytests()
    assert command.partition("--durations-min=5 ")[2] == f"{chosen}tests/unit"
    assert printed[-1] == f"ends after: {ceiling_s}"
    conftest: Any = pytestconfig.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))
    assert (chosen == f"-m {conftest.WITHOUT_SLOW} ") == (arguments == "")


@pytest.mark.parametrize("workflow", ["ci.yml", "nightly.yml"])
def test_a_job_of_ci_outlives_the_ceiling_of_its_suite(workflow: str) -> None:
    """By what comes before the tests, or nobody would see where they were; GitHub gives six hours at most."""
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / workflow).read_text(encoding="utf-8"))["jobs"]
    limits = {
        name: (int(job["env"]["QWF_TEST_CEILING_S"]), job["timeout-minutes"]) for name, job in jobs.items()
    }
    assert {name: minutes for name, (s, minutes) in limits.items() if not s / 60 + 15 <= minutes <= 360} == {}


def test_nothing_of_a_run_is_left_in_the_directory_for_temporary_files(
    checkout: Checkout, tmp_path: Path
) -> None:
    """What the checks printed is removed."""
    (tmp_path / "tmp").mkdir()
    checkout.run(TMPDIR=str(tmp_path / "tmp"))
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_fleet_needs_no_environment_before_and_has_a_ceiling(checkout: Checkout) -> None:
    """It makes the one, and the other may be told it."""
    made = checkout.root / "made"
    (checkout.root / ".venv").rename(made)
    setup = checkout.root / "scripts" / "setup"
    setup.write_text("#!/bin/sh\n[ -d .venv ] || mv made .venv\n", encoding="utf-8")
    assert checkout.run(script="fleet")[1][-1] == "ends after: 3600"
    assert checkout.run(script="fleet", QWF_TEST_CEILING_S="60")[1][-1] == "ends after: 60"
    assert checkout.pytests() == ["python -m pytest -p no:xdist tests/fleet"] * 2
