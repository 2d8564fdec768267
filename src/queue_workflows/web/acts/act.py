"""The shape of an act: what is asked, what it would be, and how it is done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import psycopg

from queue_workflows.settings import Settings

MOST_TARGETS: Final = 500
LONGEST_TARGET: Final = 400
LONGEST_REASON: Final = 1000
SHOWN_FIRST: Final = 10


@dataclass(frozen=True)
class Asked:
    """What a form asks for: things by their names, or all that match a filter, and what else it says."""

    act: str
    targets: tuple[str, ...] = ()
    where: str | None = None
    words: Mapping[str, str] = field(default_factory=dict)

    def word(self, name: str) -> str:
        """Another field of the form; an empty one is none."""
        return self.words.get(name, "").strip()

    @property
    def authorized_targets(self) -> tuple[str, ...]:
        """What `authorize` is asked about, one by one."""
        return self.targets if self.where is None else (f"where {self.where}",)

    @property
    def is_bulk(self) -> bool:
        """Whether it is about more than one thing, so that a reason has to be given."""
        return self.where is not None or len(self.targets) > 1


@dataclass(frozen=True)
class By:
    """The account that an act is on, for the audit log."""

    actor: str
    reason: str | None


@dataclass(frozen=True)
class Field:
    """Something that a preview asks for before the act: its name in the form, and how it is asked."""

    name: str
    label: str
    kind: Literal["text", "long", "number", "choice", "json"] = "text"
    hint: str = ""
    value: str = ""
    choices: tuple[str, ...] = ()
    is_needed: bool = False
    # What is wrong with what it says now.
    flaw: str = ""


@dataclass(frozen=True)
class Line:
    """One of the things that an act is about: its name, what would become of it, and its page."""

    name: str
    said: str = ""
    href: str | None = None


@dataclass(frozen=True)
class Preview:
    """What an act would be: how many, the first of them, and what else there is to know before the button."""

    headline: str
    # None where counting would have taken too long.
    count: int | None = 1
    is_capped: bool = False
    # The question that somebody's answer is for.
    text: str = ""
    lines: tuple[Line, ...] = ()
    notes: tuple[str, ...] = ()
    command: str = ""
    fields: tuple[Field, ...] = ()
    back: str = "/"

    @property
    def is_ready(self) -> bool:
        """Whether the form says everything that the act needs, and there is something to do."""
        is_said = all((one.value or not one.is_needed) and not one.flaw for one in self.fields)
        return is_said and self.count != 0


@dataclass(frozen=True)
class Done:
    """A part of an act, which is committed: how many became what, and of named things what became of each."""

    became: Counter[str]
    lines: tuple[Line, ...] = ()
    # How many of them stayed as they were.
    left: int = 0


@dataclass(frozen=True)
class Act:
    """One thing that can be done; `name` is also what `authorize` is asked about.

    `target` gives the one way in which a thing is written, or `PayloadError`: `authorize` is asked about
    exactly what is acted on. `filter` does that for the text of a filter; without it the act takes none.
    """

    name: str
    label: str
    target: Callable[[str], str]
    preview: Callable[[psycopg.Connection[Any], Asked, Settings], Preview]
    perform: Callable[[psycopg.Connection[Any], Asked, By, Settings], Iterator[Done]]
    filter: Callable[[str], str] | None = None
    takes_many: bool = True
    # Whether it stores why; an answer to a question needs no reason.
    takes_reason: bool = True
    # The fields that say how it is done and not what: what was shown holds whatever they are filled with.
    free_words: frozenset[str] = frozenset()
    # Whether it stops or undoes something.
    is_grave: bool = False
