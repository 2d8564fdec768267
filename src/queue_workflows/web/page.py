"""What a page is given, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode

import psycopg

from queue_workflows.engine.explain.job import Knowledge
from queue_workflows.errors import PayloadError
from queue_workflows.settings import Settings
from queue_workflows.views.filters.spans import seconds_of
from queue_workflows.web.access.redaction import Redaction
from queue_workflows.web.database.last_report import DatedReport

LONGEST_WORD: Final = 4096
MOST_ROWS: Final = 200
_MOST_DIGITS: Final = 19
ROWS: Final = 50


@dataclass(frozen=True)
class Look:
    """One look: a reader's connection at one moment, the parts of the address, and the words behind it."""

    conn: psycopg.Connection[Any]
    settings: Settings
    parts: Mapping[str, str]
    words: Mapping[str, str]
    prefix: str = ""
    doctor: Callable[[], DatedReport] | None = None
    schema_refusal: str | None = None
    redaction: Redaction = field(default_factory=Redaction)
    # Whether its data alone is wanted, for a program, or else the page alone; None where both may be.
    as_json: bool | None = None

    def word(self, name: str, default: str = "") -> str:
        """A word behind the address; an empty one is none."""
        value = self.words.get(name, "").strip()
        if len(value) > LONGEST_WORD:
            raise PayloadError(f"{name} is longer than {LONGEST_WORD:,} characters", path=name)
        return value or default

    def knowledge(self) -> Knowledge:
        """What an explanation needs beside the circumstances."""
        yields = 0.0 if self.settings.affinity_max_wait_s == 0 else self.settings.affinity_yield_s
        stale_s, poll_s = self.settings.stale_heartbeat_s, self.settings.poll_s
        return Knowledge(stale_s, poll_s, self.schema_refusal, yields)

    def number(self, name: str, default: int, *, least: int = 1, most: int = MOST_ROWS) -> int:
        """A whole number behind the address, within its bounds."""
        given = self.word(name)
        if not given:
            return default
        if (
            not given.isascii()
            or not given.isdigit()
            or len(given) > _MOST_DIGITS
            or not least <= int(given) <= most
        ):
            raise PayloadError(f"{name} takes a whole number from {least:,} to {most:,}", path=name)
        return int(given)

    def span(self, name: str, default: str) -> float:
        """A length of time behind the address, in seconds."""
        seconds = seconds_of(self.word(name, default))
        if seconds is None:
            raise PayloadError(f"{name} takes a length of time, as 90s, 2h or 7d", path=name)
        return seconds

    def is_set(self, name: str) -> bool:
        """Whether a switch is on."""
        return self.word(name) in ("1", "on", "true", "yes")


@dataclass(frozen=True)
class Shown:
    """What a page has to say: its data for a template, and as the command's `--json`."""

    title: str
    template: str
    command: str
    data: Mapping[str, Any] = field(default_factory=dict)
    json: Any = None
    # Whether what it shows goes on changing.
    is_live: bool = True
    # What its reader has to know of the whole database.
    notice: str | None = None
    # Of a list: the word `before` that shows what comes after it; None at its end.
    cursor: str | None = None


@dataclass(frozen=True)
class Address:
    """A page and where it is; `section` is the entry of the menu that it belongs to."""

    path: str
    show: Callable[[Look], Shown]
    section: str
    has_json: bool = True
    # Whether it reads on connections of its own, for longer than a reader may; then it has no `Look.conn`.
    is_alone: bool = False


def part(text: str) -> str:
    """A name as one part of an address."""
    return quote(text, safe=":@")


def href(path: str, **words: Any) -> str:
    """An address below the app, with words that are None or empty left out."""
    given = {name: str(value) for name, value in words.items() if value not in (None, "", False)}
    return f"{path}?{urlencode(given)}" if given else path
