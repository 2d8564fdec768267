"""The inputs of a run are read once by a worker of hooks."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from queue_workflows.engine.node_inputs.resolved_inputs import KeptInputs
from queue_workflows.workflow.references.paths import Path

ALL = [Path("inputs")]


class Reading:
    def __init__(self, scope: Mapping[str, Any]) -> None:
        self.scope, self.times = scope, 0

    def __call__(self) -> Mapping[str, Any]:
        self.times += 1
        return self.scope


def reads(kept: KeptInputs, run: uuid.UUID, paths: list[Path], scope: Mapping[str, Any]) -> int:
    reading: Callable[[], Mapping[str, Any]] = (counting := Reading(scope))
    assert [kept.scope(run, paths, reading) for _ in range(3)] == [scope] * 3
    return counting.times


def test_they_are_read_once_for_each_run() -> None:
    """Of so many runs that others have not taken their place."""
    kept, runs = KeptInputs(), [uuid.uuid4() for _ in range(65)]
    for number, run in enumerate(runs):
        assert reads(kept, run, ALL, {"inputs": {"url": number}}) == 1
    assert reads(kept, runs[1], ALL, {"inputs": {"url": 1}}) == 0
    assert reads(kept, runs[0], ALL, {"inputs": {"url": 0}}) == 1


def test_what_may_change_or_is_large_is_read_each_time() -> None:
    """What other nodes have stored, above all."""
    kept, run = KeptInputs(), uuid.uuid4()
    assert reads(kept, run, [Path("inputs"), Path("plan")], {"inputs": {}, "plan": {}}) == 3
    assert reads(kept, run, [Path("plan")], {"plan": {}}) == 3
    assert reads(kept, run, ALL, {"inputs": {"text": "x" * 70_000}}) == 3
