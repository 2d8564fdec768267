"""A history as plain data: what is set, what happens when, and nothing that depends on the machine."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class History:
    """`steps` are dicts with `at` (seconds from the start), `do`, and what that step takes; in order."""

    seed: int
    settings: dict[str, str]
    steps: list[dict[str, Any]]
    schedules: list[dict[str, Any]] = field(default_factory=list)

    def without(self, gone: set[int]) -> History:
        """The same without these steps."""
        return replace(self, steps=[step for number, step in enumerate(self.steps) if number not in gone])

    def jobs(self) -> dict[str, dict[str, Any]]:
        """The jobs that its producers enqueue, by the name that the history gives them."""
        return {job["name"]: job for step in self.steps if step["do"] == "enqueue" for job in step["jobs"]}

    def runs(self) -> dict[str, dict[str, Any]]:
        """The runs that it starts, by name."""
        return {step["name"]: step for step in self.steps if step["do"] == "run"}

    def does(self, *kinds: str) -> bool:
        """Whether it has a step of one of these kinds."""
        return any(step["do"] in kinds for step in self.steps)


def load(path: Path) -> History:
    """From a file that `save` wrote."""
    found = json.loads(path.read_text(encoding="utf-8"))
    return History(**{name: found[name] for name in ("seed", "settings", "steps", "schedules")})


def save(history: History, path: Path, violations: list[str]) -> None:
    """As JSON, a step a line, with what was wrong."""
    data = asdict(history)
    steps = ",\n  ".join(json.dumps(step, ensure_ascii=False) for step in data.pop("steps"))
    head = json.dumps({**data, "violations": violations}, ensure_ascii=False, indent=1)[:-2]
    path.write_text(f'{head},\n "steps": [\n  {steps}\n ]\n}}\n', encoding="utf-8")
