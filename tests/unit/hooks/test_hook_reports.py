"""What a worker knows of its hooks beside their rows: whom a seal ends, and which programs it has read."""

from __future__ import annotations

import hashlib
from pathlib import Path

from queue_workflows.hooks.attempt.at_seal import SEALED, AtSeal
from queue_workflows.hooks.output.machine_records import Checksums
from queue_workflows.hooks.script.process import HookStop


def test_a_seal_ends_the_listeners_that_run_and_nobody_else() -> None:
    """Whose hook has ended is not looked at any more, however it ended."""
    at_seal, first, second = AtSeal(), HookStop(), HookStop()
    graces: list[float | None] = []
    second._listen(graces.append)
    with at_seal.ends(2, second, grace_s=7.5):
        with at_seal.ends(1, first):
            assert sorted(at_seal.jobs()) == [1, 2]
        assert at_seal.jobs() == [2]
        at_seal.end([1, 2, 3])
    assert (first.reason, second.reason, at_seal.jobs(), graces) == (None, SEALED, [], [7.5])


def test_of_all_programs_of_an_output_so_much_is_read(tmp_path: Path) -> None:
    """What goes beyond has no checksum, and what is smaller still has one."""
    paths = {name: tmp_path / name for name in ("first", "large", "small")}
    for name, size in (("first", 60), ("large", 50), ("small", 40)):
        paths[name].write_bytes(b"x" * size)
    sums = Checksums(most=100)
    for path in (*paths.values(), *paths.values()):
        sums.add({"abspath": str(path)})
    assert {name: sums.of(str(path)) for name, path in paths.items()} == {
        "first": hashlib.sha256(b"x" * 60).hexdigest(),
        "large": None,
        "small": hashlib.sha256(b"x" * 40).hexdigest(),
    }
