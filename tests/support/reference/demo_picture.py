"""What README shows of the demo, and whether it is what a demo printed."""

from __future__ import annotations

import re
from pathlib import Path

from support.processes.snippets import find_snippets, output_matches


def masked(line: str) -> str:
    """A line without what differs from run to run: how long, where, by which process, and how bars lie.

    Two workers draw, and either may begin a scene first.
    """
    for pattern, word in (
        (r"^draw\[\d\]", "draw[N]"),
        (r"\S+:(cpu|gpu|demo):[0-9a-f]{12}", "WORKER"),
        (r"[░█◇ ]+", " "),
        (r"\d+(\.\d+)?(ms|s|m|h)?( \d+(ms|s|m))*", "N"),
    ):
        line = re.sub(pattern, word, line)
    return line.strip()


def is_shown(picture: str, printed: str) -> bool:
    """Whether a picture's lines are what was printed, in that order, with more where `...` stands.

    A schedule ticks when the clock says so, and its ticks may stand before, between and behind all others.
    """
    wanted = ["..." if line == "..." else masked(line) for line in picture.splitlines()]
    others = [masked(line) for line in printed.splitlines() if not line.startswith("tick ")]
    return output_matches(("...", *wanted, "..."), "\n".join(others))


def readme_picture() -> str:
    """The block that README shows of the demo."""
    readme = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    (picture,) = (one.body for one in find_snippets(readme, "README.md") if one.language == "text")
    return picture
