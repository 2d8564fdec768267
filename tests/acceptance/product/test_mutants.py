"""The tests that guard the promises notice when one is broken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from queue_workflows.testing.servers import QwfServer

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
sys.path.append(str(SCRIPTS))

from mutations import MUTANTS  # noqa: E402


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_mutant_is_killed(qwf_server: QwfServer) -> None:
    """The test that guards a promise goes red when the promise is broken.

    That it is green otherwise, this run itself shows, for the test is part of it.
    """
    ran = subprocess.run(
        [sys.executable, str(SCRIPTS / "mutants.py"), "--trust-the-tests"],
        env={**os.environ, "QWF_TEST_DB_URL": qwf_server.dsn("mutants_test")},
        capture_output=True,
        text=True,
        check=False,
    )
    last = ran.stdout.splitlines()[-1:]
    assert (ran.returncode, last) == (0, [f"{len(MUTANTS)} of {len(MUTANTS)} mutants killed"]), ran


def test_every_mutant_applies() -> None:
    """The places that are broken on purpose are still there, each once, and the tests exist."""
    root = SCRIPTS.parent
    for mutant in MUTANTS:
        for edit in mutant.edits:
            assert (root / "src" / "queue_workflows" / edit.module).read_text().count(edit.old) == 1, mutant
        file, _, test = mutant.test.partition("::")
        assert f"def {test}" in (root / file).read_text(), mutant
