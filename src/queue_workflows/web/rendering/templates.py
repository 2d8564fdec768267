"""Templates: everything that is put into one is escaped, and what came from a row is made harmless before."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from queue_workflows.drawing.words import number_of, say_span, say_time
from queue_workflows.states import JOB_TERMINAL
from queue_workflows.web.access.redaction import Kind, Redaction
from queue_workflows.web.page import href
from queue_workflows.web.rendering import marks, texts
from queue_workflows.web.rendering.hostile_text import block, in_line
from queue_workflows.web.rendering.texts import SECTIONS

_DIRECTORY: Final = Path(__file__).resolve().parent.parent / "templates"
# Of a queue.
_REASONS_SHOWN: Final = 4
# The states of jobs, nodes and runs in which nothing is left to explain.
_OVER: Final = frozenset(status.value for status in JOB_TERMINAL)
NOTHING_REDACTED: Final = Redaction()


@dataclass(frozen=True)
class Nav:
    """An entry of the menu as it stands on one page."""

    letter: str
    href: str
    label: str
    is_current: bool


@dataclass(frozen=True)
class Frame:
    """What stands around every page's content."""

    title: str
    path: str
    command: str
    user: str | None
    prefix: str
    section: str = ""
    live_topic: str | None = None
    read_only: bool = False
    has_json: bool = True
    notice: str | None = None
    come_back_s: int | None = None
    static: Callable[[str], str] = str
    may: Callable[[str], bool] = lambda _verb: False
    # A host app's own value as text, redacted; by its kind, as "error".
    shown: Callable[[Kind, Any], str] = NOTHING_REDACTED.shown
    labels: Callable[[Mapping[str, Any]], list[str]] = NOTHING_REDACTED.labels

    @property
    def nav(self) -> list[Nav]:
        """The menu."""
        return [
            Nav(one.letter, self.prefix + one.path, one.label, one.name == self.section) for one in SECTIONS
        ]

    @property
    def json_path(self) -> str:
        """Where this page's JSON is."""
        path, _, words = self.path.partition("?")
        return f"{path.rstrip('/') or '/overview'}.json" + (f"?{words}" if words else "")


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The one environment of templates."""
    made = Environment(
        loader=FileSystemLoader(_DIRECTORY),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "line": in_line,
        "block": block,
        "span": _span,
        "took": say_time,
        "moment": _moment,
        "iso": _iso,
        "count": lambda number: f"{number:,}",
        "number_of": lambda number, thing: number_of(thing, number),
        "pretty": _pretty,
        "on_hold": _on_hold,
        "holds_first": _holds_first,
        "part": lambda text: quote(str(text), safe=":@"),
    }
    made.globals |= {"href": href, "texts": texts, "over": _OVER, **marks.GLOBALS}
    return made


def render(template: str, frame: Frame, data: Mapping[str, Any]) -> str:
    """A whole page."""
    return environment().get_template(template).render(page=frame, m=_macros(frame), **data)


def render_live(template: str, frame: Frame, data: Mapping[str, Any]) -> str:
    """The part of a page that changes, as it is sent to those that watch it."""
    return environment().get_template(template).render(page=frame, m=_macros(frame), fragment=True, **data)


def _macros(frame: Frame) -> Any:
    """The macros, which know where the app is mounted."""
    return environment().get_template("_macros.html").make_module({"page": frame})


def _span(seconds: float | None) -> str:
    return "" if seconds is None else say_span(seconds)


def _iso(at: datetime | None) -> str:
    return "" if at is None else at.astimezone(UTC).isoformat(timespec="seconds")


def _moment(at: datetime | None) -> str:
    """As it stands before a script puts it into the reader's zone, and for readers without one."""
    return "" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def _on_hold(reason: str, key: str | None) -> str:
    """What a row says of its hold; a durable function that waits is not held up by anything."""
    if reason in texts.WAITS:
        return texts.WAITS[reason].format(key=key or "")
    return f"{texts.HELD} {reason.replace('_', ' ')} {key or ''}".rstrip()


def _holds_first(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """The most frequent reasons; those for which durable functions wait after what holds jobs up."""
    return sorted(counts.items(), key=lambda one: (one[0] in texts.WAITS, -one[1], one[0]))[:_REASONS_SHOWN]


def _pretty(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False, default=str)
