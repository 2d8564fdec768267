"""A filter's text as words, `key:value`, and words as a text."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, Final, NamedTuple, TypeVar

from queue_workflows.errors import FilterRefused
from queue_workflows.views.filters import spans

F = TypeVar("F")
# More than anybody types; what is pasted or made up must not cost more than a look.
LONGEST_BYTES: Final = 4096
# A word ends at a space that no quotation marks hold; one that is never closed is found by what is left.
_WORD: Final = re.compile(r'\s*((?:[^\s"]|"(?:[^"\\]|\\.)*")+)', re.DOTALL)
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_NEEDS_QUOTES: Final = re.compile(r'[\s"]|^$')


class Word(NamedTuple):
    """One condition: what it is about, and what that has to be."""

    key: str
    value: str


def words_of(text: str, keys: Sequence[str]) -> list[Word]:
    """The words of a filter, each about one of `keys`, or `FilterRefused` with the word that is wrong."""
    size = len(text.encode(errors="surrogatepass"))
    if size > LONGEST_BYTES:
        raise FilterRefused(f"a filter has at most {LONGEST_BYTES:,} bytes, not {size:,}", word=text[:40])
    words, place, end = [], 0, len(text.rstrip())
    while place < end:
        found = _WORD.match(text, place, end)
        if found is None or (found.end() < end and not text[found.end()].isspace()):
            rest = text[place:end].strip()
            raise FilterRefused(f"the quotation mark in {rest!r:.80} is never closed", word=rest)
        words.append(_word(found[1], keys))
        place = found.end()
    return words


def _word(written: str, keys: Sequence[str]) -> Word:
    key, colon, value = written.partition(":")
    if not colon:
        said = f"{written!r:.80} is no filter: write key:value, the key"
        raise FilterRefused(said, word=written, possible=keys)
    if key not in keys:
        raise FilterRefused(f"no filter {key!r:.80}", word=written, possible=keys)
    value = _QUOTED.sub(lambda quoted: _ESCAPED.sub(r"\1", quoted[1]), value)
    if not value:
        raise FilterRefused(f"{key}: has no value: write {key}:value", word=written)
    return Word(key, value)


def quoted(words: Iterable[tuple[str, str]]) -> str:
    """Words as a text that `words_of` reads as exactly them."""
    return " ".join(f"{key}:{_quoted(value)}" for key, value in words)


def _quoted(value: str) -> str:
    if not _NEEDS_QUOTES.search(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def one_value(key: str, values: Sequence[str]) -> str | None:
    """The value of a key that is given at most once."""
    if len(set(values)) > 1:
        said = f"{key} is given twice, as {values[0]!r:.60} and as {values[1]!r:.60}"
        raise FilterRefused(said, word=f"{key}:{values[1]}")
    return values[0] if values else None


def one_of(key: str, values: Sequence[str], possible: Sequence[str]) -> tuple[str, ...] | None:
    """Values that are each one of these, each once; None where there is none."""
    for value in values:
        if value not in possible:
            raise FilterRefused(f"{key} {value!r:.80}", word=f"{key}:{value}", possible=possible)
    return tuple(dict.fromkeys(values)) or None


def one_span(key: str, values: Sequence[str]) -> float | None:
    """The length of time of a key that is given at most once."""
    value = one_value(key, values)
    seconds = None if value is None else spans.seconds_of(value)
    if value is not None and seconds is None:
        raise FilterRefused(f"{key} {value!r:.80} is no length of time: {spans.HOW}", word=f"{key}:{value}")
    return seconds


def one_run(key: str, values: Sequence[str]) -> uuid.UUID | None:
    """The run of a key that is given at most once."""
    value = one_value(key, values)
    if value is None:
        return None
    try:
        return uuid.UUID(value.removeprefix("run:"))
    except ValueError:
        said = f"{key} {value!r:.80} is no run's id: write all of it, as `qwf run list` shows it"
        raise FilterRefused(said, word=f"{key}:{value}") from None


def values_by_key(text: str, keys: Sequence[str]) -> Callable[[str], list[str]]:
    """What a text says of a key, in its order."""
    words = words_of(text, keys)
    return lambda key: [word.value for word in words if word.key == key]


def joined(one: F, other: F, names: dict[str, str]) -> F:
    """Two filters as one, or `FilterRefused` where they contradict; `names` are what fields are called."""
    both: dict[str, Any] = {}
    for each in fields(one):  # type: ignore[arg-type]
        mine, others = getattr(one, each.name), getattr(other, each.name)
        if mine is not None and others is not None and _as_set(mine) != _as_set(others):
            raise said_twice(names.get(each.name, each.name))
        both[each.name] = others if mine is None else mine
    return replace(one, **both)  # type: ignore[type-var]


def said_twice(name: str) -> FilterRefused:
    """The refusal of what options and a text say differently."""
    said = f"{name} is given as an option and, differently, in the filter's text: say it once"
    return FilterRefused(said, word=name)


def _as_set(value: Any) -> Any:
    """Statuses are the same ones in any order."""
    return frozenset(value) if isinstance(value, tuple) else value
