"""Breaks the engine on purpose, in a copy, and sees that the tests that guard each promise notice.

    .venv/bin/python scripts/mutants.py [--only NAME] [--trust-the-tests]

Red proves nothing of a test that is red without the mutant, so the tests are first run on a whole copy. The
suite, which runs these tests itself, goes without that: it says --trust-the-tests.

Exit status 1 if a mutant survives, or no longer applies.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_LONGEST_S = 600


def main() -> int:
    """Try each mutant, and print what became of it."""
    from mutations import MUTANTS

    parser = argparse.ArgumentParser(description="Break the engine on purpose, and see the tests notice.")
    parser.add_argument("--only", action="append", choices=[mutant.name for mutant in MUTANTS])
    parser.add_argument(
        "--trust-the-tests", action="store_true", help="take them to be green without a mutant"
    )
    arguments = parser.parse_args()
    wanted = arguments.only
    chosen = [mutant for mutant in MUTANTS if not wanted or mutant.name in wanted]
    with tempfile.TemporaryDirectory(prefix="qwf-mutants-") as directory:
        tests = sorted({mutant.test for mutant in chosen})
        sound = dict.fromkeys(tests, True) if arguments.trust_the_tests else _sound(Path(directory), tests)
        survived = 0
        for mutant in chosen:
            copy = _copy(Path(directory) / mutant.name.replace(" ", "-"))
            mutant.apply(copy / "src" / "queue_workflows")
            # 1 is pytest's word for tests that failed; an error of its own is no proof.
            killed = sound[mutant.test] and _status(copy, mutant.test) == 1
            survived += not killed
            verdict = "killed" if killed else "SURVIVED" if sound[mutant.test] else "its test is red anyway"
            print(f"{verdict:9} {mutant.name}: {mutant.what}\n          {mutant.test}", flush=True)
    print(f"{len(chosen) - survived} of {len(chosen)} mutants killed")
    return int(survived > 0)


def _sound(directory: Path, tests: list[str]) -> dict[str, bool]:
    """Which of the tests are green without a mutant."""
    whole = _copy(directory / "whole")
    all_sound = _status(whole, *tests) == 0
    return {test: all_sound or _status(whole, test) == 0 for test in tests}


def _copy(target: Path) -> Path:
    """What a process imports: the package, and the chain beside it.

    Bytecode comes along, for a copy keeps the times by which Python knows that it is of its source. What some
    process writes at this moment has another name, and may be gone the next.
    """
    for part in ("src", "alembic"):
        shutil.copytree(ROOT / part, target / part, ignore=shutil.ignore_patterns("*.pyc.*"))
    return target


def _status(copy: Path, *tests: str) -> int:
    """The exit status of pytest with the package of this copy; the tests are the checkout's."""
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-n0", "-q", "-x", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(copy / "src")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=_LONGEST_S,
        check=False,
    )
    return ran.returncode


if __name__ == "__main__":
    sys.exit(main())
