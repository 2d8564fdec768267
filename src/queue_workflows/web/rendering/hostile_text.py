"""Others' text on a page: it may be anything, and must neither break the page nor deceive its reader."""

from __future__ import annotations

import unicodedata
from typing import Any, Final

LONGEST_IN_LINE: Final = 300
LONGEST_BLOCK: Final = 65_536
_KEPT: Final = frozenset("\n\t")
_MARK: Final = "\N{SYMBOL FOR SUBSTITUTE FORM TWO}"


def in_line(value: Any, longest: int = LONGEST_IN_LINE) -> str:
    """On one line, and cut: for cells, titles, and links."""
    text = str(value)
    text = " ".join(visible(text[: 4 * longest]).split())
    return text if len(text) <= longest and len(str(value)) <= 4 * longest else f"{text[: longest - 1]}…"


def block(value: Any, longest: int = LONGEST_BLOCK) -> str:
    """With its lines, for what is shown whole."""
    text = str(value)
    cut = text[:longest]
    return visible(cut) + (
        f"\n… {len(text) - longest:,} characters more are not shown" if len(text) > longest else ""
    )


def visible(text: str) -> str:
    """What steers a terminal or turns the direction of writing becomes a mark that can be seen."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char in _KEPT or not _steers(char) else _MARK for char in text)


def _steers(char: str) -> bool:
    """Controls, formats (among them those of bidirectional writing), surrogates, and what is no character."""
    return unicodedata.category(char) in ("Cc", "Cf", "Cs", "Cn", "Zl", "Zp")
