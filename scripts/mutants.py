"""Breaks the engine on purpose, in a copy, and sees that the tests that guard each promise notice.

    .venv/bin/python scripts/mutants.py [--only NAME]

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
    wanted = parser.parse_args().only
    chosen = [mutant for mutant in MUTANTS if not wanted or mutant.name in wanted]
    with tempfile.TemporaryDirectory(prefix="qwf-mutants-") as directory:
        # Red proves nothing of a test that is red without the mutant.
        whole, tests = _copy(Path(directory) / "whole"), sorted({mutant.test for mutant in chosen})
        all_sound = _status(whole, *tests) == 0
        sound = {test: all_sound or _status(whole, test) == 0 for test in tests}
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
