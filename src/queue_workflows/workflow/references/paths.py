"""Paths into what a node can see: `plan.scenes[0].title`, `inputs["a key with.dots"]`, `item`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Final

_ROOT: Final = re.compile(r"""[^\s.\[\]"'$]+""")
_STEP: Final = re.compile(
    r"""\.(?P<name>[^\s.\[\]"']+)|\[(?P<index>-?(?:0|[1-9][0-9]{0,8}))\]|\[(?P<quoted>"(?:[^"\\]|\\.)*")\]"""
)
_LONGEST: Final = 1024
SHAPE: Final = (
    'write it as in plan.scenes[0].title; quote a key that has dots or blanks, as in plan["a key"].title'
)


@dataclass(frozen=True, slots=True)
class Path:
    """A root (`inputs`, `run`, `item`, a node's id …) and the keys and indexes that lead on from it."""

    root: str
    steps: tuple[str | int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Path:
        """The path that a text says, or `ValueError` that says what is wrong with it."""
        if len(text) > _LONGEST:
            raise ValueError(f"a path has at most {_LONGEST} characters")
        root = _ROOT.match(text)
        if root is None:
            raise ValueError(f"{text!r} is no path")
        steps: list[str | int] = []
        at = root.end()
        while at < len(text):
            step = _STEP.match(text, at)
            if step is None:
                raise ValueError(f"{text!r} is no path: it makes no sense from {text[at:]!r} on")
            steps.append(_step_of(step))
            at = step.end()
        return cls(root[0], tuple(steps))

    def __str__(self) -> str:
        return self.root + "".join(map(written, self.steps))

    def up_to(self, number: int) -> str:
        """The text of the path with its first `number` steps."""
        return str(Path(self.root, self.steps[:number]))


def written(step: str | int) -> str:
    """A step as it stands in a path."""
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if _ROOT.fullmatch(step) else f"[{json.dumps(step, ensure_ascii=False)}]"


def _step_of(found: re.Match[str]) -> str | int:
    if found["index"] is not None:
        return int(found["index"])
    if found["quoted"] is not None:
        try:
            return str(json.loads(found["quoted"]))
        except ValueError:
            raise ValueError(f"{found['quoted']} is no quoted key") from None
    return found["name"]
