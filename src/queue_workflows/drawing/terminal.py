"""What the terminal, or whatever stands in its place, can show: colours, characters, columns."""

from __future__ import annotations

import os
import shutil
import sys
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TextIO

import click

_PLAIN: Final = frozenset({"C", "POSIX"})
# What Python makes of LC_CTYPE by itself, where nobody set it.
_COERCED: Final = frozenset({"", "C.UTF-8", "C.utf8", "UTF-8"})
_NARROWEST: Final = 40
_IN_ASCII: Final = str.maketrans("│▕▏─├┤┼╭╮╰╯┬┴█░…·●◐◌○✗◇⊘⊗▁▂▃▄▅▆▇", "|||-+++++++++#.~-*>.oX?~-_.:-=+*")


@dataclass(frozen=True)
class Terminal:
    """How to write; `columns` is None where nothing has to fit."""

    colour: bool = False
    unicode: bool = True
    columns: int | None = None

    @classmethod
    def of(cls, stream: TextIO, environ: Mapping[str, str], *, ascii_only: bool = False) -> Terminal:
        """Colours and a width for a terminal alone; ASCII where the locale or the encoding asks for it."""
        is_terminal = stream.isatty()
        return cls(
            colour=is_terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb",
            unicode=not ascii_only and _speaks_unicode(stream.encoding, environ),
            columns=max(_NARROWEST, shutil.get_terminal_size().columns) if is_terminal else None,
        )

    def paint(self, text: str, **style: Any) -> str:
        """With a colour, where there are any; keywords of `click.style`."""
        return click.style(text, **style) if self.colour and style and text else text

    def glyphs(self, text: str) -> str:
        """The text in the characters that can be shown."""
        return text if self.unicode else text.translate(_IN_ASCII).encode("ascii", "replace").decode("ascii")

    def cut(self, text: str, columns: int | None) -> str:
        """No more than fits into so many columns; plain text only, as colours take no room."""
        if columns is None or wide(text) <= columns:
            return text
        room, kept = columns - 1, []
        for char in text:
            room -= wide(char)
            if room < 0:
                break
            kept.append(char)
        return "".join(kept) + self.glyphs("…")


def stdout_terminal(*, ascii_only: bool = False) -> Terminal:
    """Where this command's output goes."""
    return Terminal.of(sys.stdout, os.environ, ascii_only=ascii_only)


def _speaks_unicode(encoding: str | None, environ: Mapping[str, str]) -> bool:
    if (encoding or "ascii").lower().replace("-", "") != "utf8":
        return False
    every, kind, usual = (environ.get(name, "") for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    if every:
        return every not in _PLAIN
    return kind not in _PLAIN and not (usual in _PLAIN and kind in _COERCED)


def wide(text: str) -> int:
    """How many columns a text takes."""
    if text.isascii():
        return len(text)
    return sum(_columns(char) for char in text)


def _columns(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def padded(text: str, columns: int) -> str:
    """With blanks behind it."""
    return text + " " * max(0, columns - wide(text))
