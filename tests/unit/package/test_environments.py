"""What tests hand to the processes that they start."""

from __future__ import annotations

import os
from pathlib import Path

from support.processes.environments import LINGER, LOCKS, environment_without

TESTS = Path(__file__).parents[2]
HELPER = TESTS / "support" / "processes" / "environments.py"


def test_no_process_of_a_test_takes_locks_where_the_programs_of_this_machine_meet() -> None:
    """Whatever is left out of its environment, and nobody leaves something out in another way."""
    assert environment_without("QWF_", "P")[LOCKS] == os.environ[LOCKS]
    assert environment_without("", locks=Path("/mine")) == {LOCKS: "/mine", LINGER: "0"}
    own_way = "environ" + ".items()"
    assert [path for path in TESTS.rglob("*.py") if own_way in path.read_text(encoding="utf-8")] == [HELPER]
