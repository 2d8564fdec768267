"""From a document's text to plain data: YAML 1.2's JSON-like part, built from events with everything bounded.

The parser's own constructors are left out: they import what tags name, take `yes` and `on` for booleans and
dates for objects, let a later key win over its twin, and follow aliases wherever they lead.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from queue_workflows.errors import PayloadError
from queue_workflows.payload import MAX_DEPTH, MAX_DIGITS, check_payload

MAX_BYTES: Final = 64 * 1024 * 1024
# Of a YAML text, with every alias followed.
MAX_VALUES: Final = 4_000_000
Place: TypeAlias = tuple[str | int, ...]

_UNFINISHED: Final = object()
_TAG: Final = "tag:yaml.org,2002:"
_INT: Final = re.compile(r"[-+]?[0-9]+")
_BASED: Final = re.compile(r"0o[0-7]{1,4000}|0x[0-9a-fA-F]{1,4000}")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS: Final = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


class Unreadable(Exception):
    """A text that is no document; `line` is where reading it ended, if it got so far."""

    def __init__(self, said: str, line: int | None = None, place: str | None = None) -> None:
        super().__init__(said)
        self.said, self.line, self.place = said, line, place


def read_text(text: str) -> Any:
    """The data that a YAML or JSON text says, or `Unreadable`."""
    if len(text) > MAX_BYTES:
        raise Unreadable(f"is larger than {MAX_BYTES:,} bytes")
    if text.lstrip()[:1] == "{":
        try:
            return json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            pass  # a YAML mapping in braces, or an error that the other parser words with its line
    return _Builder().build(text)


def checked_data(data: Any) -> Any:
    """A copy of the data as plain JSON; refused is what JSON cannot hold, or only as far too much of it."""
    try:
        return json.loads(check_payload(data, max_bytes=MAX_BYTES, max_depth=MAX_DEPTH))
    except PayloadError as refused:
        said = refused.message.partition(": ")[2] or refused.message
        advice = "" if refused.advice is None or "QWF_" in refused.advice else f"; {refused.advice}"
        raise Unreadable(f"{said}{advice}", place=refused.path) from None


def lines_of(text: str) -> dict[Place, int]:
    """The line on which each part of a document begins; empty for a text that cannot be read."""
    builder = _Builder(lines={})
    with contextlib.suppress(Unreadable):
        builder.build(text)
    return builder.lines or {}


@dataclass
class _Open:
    """A mapping or list that is being read: what it holds so far, and the key that waits for its value."""

    value: dict[str, Any] | list[Any]
    line: int
    anchor: str | None
    key: str | None = None
    awaits_value: bool = False
    merged: list[dict[str, Any]] = field(default_factory=list)
    values: int = 1


class _Builder:
    """Builds plain data from the parser's events, without recursion."""

    def __init__(self, lines: dict[Place, int] | None = None) -> None:
        self.lines = lines
        self._open: list[_Open] = []
        # What each stands for, and of how many values that is.
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._root: list[Any] = []

    def build(self, text: str) -> Any:
        import yaml

        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            for event in yaml.parse(text, Loader=loader):
                self._take(type(event).__name__, event)
        except yaml.MarkedYAMLError as wrong:
            mark = wrong.problem_mark or wrong.context_mark
            said = " ".join(filter(None, (wrong.context, wrong.problem)))
            if mark is None:
                raise Unreadable(f"is no YAML: {said}") from None
            raise Unreadable(f"is no YAML: {said}{_hint(text, mark.line)}", mark.line + 1) from None
        except (yaml.YAMLError, RecursionError) as wrong:
            raise Unreadable(f"is no YAML: {str(wrong).splitlines()[0] or type(wrong).__name__}") from None
        return self._root[0] if self._root else None

    def _take(self, kind: str, event: Any) -> None:
        line = event.start_mark.line + 1
        if kind == "DocumentStartEvent" and self._root:
            raise Unreadable("holds more than one document; give each a file of its own", line)
        if kind == "ScalarEvent":
            self._add(_scalar(event, line, is_key=self._awaits_key()), line, event.anchor)
        elif kind == "AliasEvent":
            value, values = self._aliased(event.anchor, line)
            self._add(value, line, None, values)
        elif kind in {"MappingStartEvent", "SequenceStartEvent"}:
            self._begin({} if kind == "MappingStartEvent" else [], event, line)
        elif kind in {"MappingEndEvent", "SequenceEndEvent"}:
            self._end()

    def _awaits_key(self) -> bool:
        holder = self._open[-1] if self._open else None
        return holder is not None and isinstance(holder.value, dict) and not holder.awaits_value

    def _begin(self, value: dict[str, Any] | list[Any], event: Any, line: int) -> None:
        standard = {f"{_TAG}map", f"{_TAG}seq", "!", None}
        if event.tag not in standard:
            raise Unreadable(f"has the tag {event.tag!r}, and only plain data is read", line)
        if len(self._open) > MAX_DEPTH:
            raise Unreadable(f"is nested deeper than {MAX_DEPTH} levels", line)
        if self._awaits_key():
            raise Unreadable("has a key that is no text", line)
        if event.anchor is not None:
            self._anchors[event.anchor] = (_UNFINISHED, 0)
        self._note(line)
        self._open.append(_Open(value, line, event.anchor))

    def _end(self) -> None:
        done = self._open.pop()
        value = done.value
        for merged in done.merged:
            for key, child in merged.items():
                value.setdefault(key, child)  # type: ignore[union-attr]
        self._add(value, done.line, done.anchor, done.values)

    def _add(self, value: Any, line: int, anchor: str | None, values: int = 1) -> None:
        """Put a value where it belongs, and count it and what it holds."""
        if anchor is not None:
            self._anchors[anchor] = (value, values)
        if not self._open:
            self._root.append(value)
            return
        holder = self._open[-1]
        holder.values += values
        if holder.values > MAX_VALUES:
            raise Unreadable(f"has more than {MAX_VALUES:,} values, with aliases followed", line)
        if isinstance(holder.value, list):
            self._note(line)
            holder.value.append(value)
        elif not holder.awaits_value:
            self._take_key(holder, value, line)
        else:
            self._note(line)
            holder.awaits_value = False
            if holder.key == "<<":
                _merge(holder, value, line)
            else:
                holder.value[holder.key or ""] = value

    def _take_key(self, holder: _Open, key: Any, line: int) -> None:
        if not isinstance(key, str):
            raise Unreadable(f'has a key that is no text; write it in quotes, as in "{key}"', line)
        if key in holder.value:
            raise Unreadable(f"has the key {key!r} twice in one mapping", line)
        holder.key, holder.awaits_value = key, True

    def _aliased(self, anchor: str, line: int) -> tuple[Any, int]:
        if anchor not in self._anchors:
            raise Unreadable(f"has an alias *{anchor} without an anchor &{anchor} before it", line)
        if self._anchors[anchor][0] is _UNFINISHED:
            raise Unreadable(f"has an alias *{anchor} within what it stands for", line)
        return self._anchors[anchor]

    def _note(self, line: int) -> None:
        if self.lines is not None:
            place = tuple(one.key if isinstance(one.value, dict) else len(one.value) for one in self._open)
            self.lines.setdefault(tuple("" if step is None else step for step in place), line)


def _hint(text: str, line: int) -> str:
    """What is meant as the index of a path begins a list, in braces."""
    there = "".join(text.splitlines()[line : line + 1])
    return "; in braces, quote a path that has brackets" if re.search(r"\$from:[^\"']*\[", there) else ""


def _merge(holder: _Open, value: Any, line: int) -> None:
    """`<<: *defaults`: keys of the mapping itself win, then those of earlier mappings."""
    mappings = value if isinstance(value, list) else [value]
    if not all(isinstance(mapping, dict) for mapping in mappings):
        raise Unreadable("has a merge key `<<` with something else than a mapping", line)
    holder.merged += mappings


def _scalar(event: Any, line: int, *, is_key: bool) -> Any:
    """What a scalar says: by its tag, or by its looks where it is plain and has none."""
    text: str = event.value
    if len(text) > MAX_DIGITS and not is_key and _INT.fullmatch(text):
        raise Unreadable(f"has an integer of more than {MAX_DIGITS} digits", line)
    plain = event.implicit[0] and event.tag is None
    if event.tag is None or event.tag == "!":
        return text if is_key or not plain else _plain(text)
    readers: dict[str, Callable[[str], Any]] = {
        "str": str,
        "int": _plain,
        "float": lambda text: float(_plain(text)),
        "bool": _plain,
        "null": _plain,
    }
    name = event.tag.removeprefix(_TAG)
    if name not in readers:
        raise Unreadable(f"has the tag {event.tag!r}, and only plain data is read", line)
    try:
        value = readers[name](text)
    except (TypeError, ValueError):
        value = text
    if type(value).__name__ != name and not (name == "null" and value is None):
        raise Unreadable(f"has {text[:60]!r}, which is no {name}", line)
    return value


def _plain(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _NOT_FINITE.fullmatch(text):
        return float(text.replace(".", "", 1))
    return text


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise Unreadable(f"has the key {twice!r} twice in one mapping")
    return found


def _no_constant(name: str) -> Any:
    raise Unreadable(f"has {name}, which is no JSON")


def steps_of(place: str) -> Iterator[str | int]:
    """The keys and indexes of a place as `check_payload` names it, such as `$.nodes[3].inputs`."""
    for name, index, quoted in re.findall(r'\.([A-Za-z_]\w*)|\[(\d+)\]|\[("(?:[^"\\]|\\.)*")\]', place):
        yield int(index) if index else json.loads(quoted) if quoted else name
