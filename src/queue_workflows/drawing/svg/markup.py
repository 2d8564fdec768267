"""Elements of SVG as text: the one place where what a user wrote is made harmless."""

from __future__ import annotations

import re
from typing import Final
from xml.sax.saxutils import escape

from queue_workflows.drawing.terminal import wide

# A name longer than that is told by its beginning; the page that it leads to shows it whole.
LONGEST_TEXT: Final = 400
# Controls, what turns the direction of writing, invisible marks, surrogates and what XML has no room for.
_UNFIT: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff0-\uffff\ud800-\udfff\U000e0000-\U000e0fff]"
)
_QUOTED: Final = {'"': "&quot;", "'": "&#39;"}
# Pixels of a letter, about; where many are wider, the text is cut off where its room ends.
PLAIN: Final = 6.8
STRONG: Final = 7.6


def text_of(text: object, longest: int = LONGEST_TEXT) -> str:
    """What somebody wrote, on one line, cut, and as it may stand in an element or between quotes."""
    # Cut twice: what is megabytes long is not searched whole.
    line = _UNFIT.sub(" ", str(text)[: longest * 4])
    line = " ".join(line.split())
    return escape(line if len(line) <= longest else line[: max(1, longest - 1)].rstrip() + "…", _QUOTED)


def fitted(text: object, room: float, *, letter: float = PLAIN) -> str:
    """A text for so many pixels of room, about."""
    columns = max(2, int(room / letter))
    whole = " ".join(_UNFIT.sub(" ", str(text)[: columns * 4]).split())
    if wide(whole) <= columns:
        return text_of(whole)
    while whole and wide(whole) > columns - 1:
        whole = whole[:-1]
    return text_of(whole.rstrip() + "…")


def link_of(href: str) -> str:
    """An address of our own page; any other one leads nowhere."""
    plain = href.startswith(("/", "?", "#")) and not href.startswith(("//", "/\\"))
    return escape(_UNFIT.sub("", href), _QUOTED) if plain else "#"


def number_of(value: float) -> str:
    """A coordinate: two places at the most, so that a picture is equal wherever it is drawn."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if value % 1 else str(int(value))


def percent_of(share: float) -> str:
    """A share of the width."""
    return f"{number_of(100 * share)}%"


def picture(inner: str, *, label: str, css: str, size: str = "", links: bool = False) -> str:
    """One `<svg>`: an image called `label`, or with `links` a group of what can be visited one by one."""
    role = "group" if links else "img"
    return f'<svg class="{css}" role="{role}" aria-label="{text_of(label)}"{size}>{inner}</svg>'


def linked(inner: str, href: str | None) -> str:
    """The drawn thing, which leads somewhere if there is anywhere."""
    return inner if href is None else f'<a href="{link_of(href)}">{inner}</a>'


def titled(words: str) -> str:
    """What is shown on hover."""
    return f"<title>{text_of(words)}</title>"
