"""What lists that a filter finds have in common: its words, its statuses as chips, the way further back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from queue_workflows.views.filters.grammar import Word, quoted, words_of
from queue_workflows.web.page import Look, href


class Found(Protocol):
    """A page of lines; `cursor` is where the next one begins."""

    @property
    def cursor(self) -> str | None:
        """None at the end."""


def found_data(
    look: Look, path: str, found: Found, *, text: str, keys: Sequence[str], statuses: Sequence[str]
) -> dict[str, Any]:
    """What the template of such a list needs; `text` is the filter in its one way of writing."""
    place = look.prefix + path
    return {
        "found": found,
        "q": text,
        "keys": keys,
        "chips": status_chips(place, text, keys, statuses),
        "further": href(place, q=text, before=found.cursor, limit=look.word("limit")),
    }


def status_chips(
    path: str, text: str, keys: Sequence[str], statuses: Sequence[str]
) -> list[tuple[str, str, bool]]:
    """The statuses, each put into the filter or taken out of it by a click."""
    words, chips = words_of(text, keys), []
    for status in statuses:
        word = Word("status", status)
        others = [one for one in words if one != word]
        wanted = others if word in words else [*others, word]
        chips.append((status.replace("_", " "), href(path, q=quoted(wanted)), word in words))
    return chips
