"""The shape of an act: what is asked, what it would be, and how it is done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import psycopg

from queue_workflows.settings import Settings

MOST_TARGETS: Final = 500
LONGEST_REASON: Final = 1000


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
    """Whose act it is, for the audit log."""

    actor: str
    reason: str | None


@dataclass(frozen=True)
class Field:
    """Something that a preview asks for before the act: its name in the form, and how it is asked."""

    name: str
    label: str
    kind: Literal["text", "number", "span", "json", "choice", "checkbox"] = "text"
    hint: str = ""
    choices: tuple[str, ...] = ()
    is_needed: bool = False


@dataclass(frozen=True)
class Preview:
    """What an act would be: how many, the first of them, and what else there is to know before the button."""

    count: int
    lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    command: str = ""
    is_capped: bool = False
    # What the form asks for, with what a drawn form needs; and where to go afterwards.
    fields: tuple[Field, ...] = ()
    back: str = "/"
    # A whole answer of `--dry-run`, for the preview's JSON.
    foretold: Any = None


@dataclass(frozen=True)
class Act:
    """One thing that can be done; `name` is also what `authorize` is asked about.

    `perform` gives, page by page, how many became what; each page is committed when it is told.
    """

    name: str
    label: str
    preview: Callable[[psycopg.Connection[Any], Asked, Settings], Preview]
    perform: Callable[[psycopg.Connection[Any], Asked, By, Settings], Iterator[Counter[str]]]
    takes_filter: bool = False
    fields: tuple[Field, ...] = ()
