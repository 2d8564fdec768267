"""How much an answer may be: what is longer is cut, and says where, so that a program can ask for less."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from queue_workflows.errors import QwfError
from queue_workflows.views.json_values import plain

MOST_CHARACTERS: Final = 120_000
MOST_NOTES: Final = 20


class _Bounds(NamedTuple):
    """How many entries a list or an object has at most, and how many characters a text."""

    entries: int
    characters: int


# The first that make it short enough.
_BOUNDS: Final = (_Bounds(200, 4_000), _Bounds(60, 1_000), _Bounds(20, 400), _Bounds(8, 200))


class AnswerTooLong(QwfError):
    """An answer is too long however much of it is left out."""

    def __init__(self) -> None:
        super().__init__("this answer is too long", advice="ask for less: one thing, or a narrower filter")


class Sized(NamedTuple):
    """An answer as plain JSON, and what of it was left out."""

    value: Any
    cut: tuple[str, ...]


def sized(value: Any) -> Sized:
    """The answer within bounds."""
    said = _dumped(value)
    whole = json.loads(said)
    for bounds in _BOUNDS:
        notes: list[str] = []
        told = _cut(whole, bounds, "", notes)
        if len(_dumped(told)) <= MOST_CHARACTERS:
            more = len(notes) - MOST_NOTES
            kept = notes[:MOST_NOTES] + ([f"and {more:,} more places"] if more > 0 else [])
            return Sized(told, tuple(kept))
    raise AnswerTooLong


def _dumped(value: Any) -> str:
    # A lone surrogate can be in no message.
    text = json.dumps(value, default=plain, ensure_ascii=False)
    return text.encode("utf-8", "replace").decode()


def _cut(value: Any, bounds: _Bounds, place: str, notes: list[str]) -> Any:
    if isinstance(value, str):
        return _cut_text(value, bounds, place, notes)
    if isinstance(value, Mapping):
        kept = dict(list(value.items())[: bounds.entries])
        _note(len(value), bounds.entries, f"{place or 'the answer'}", notes)
        return {name: _cut(inner, bounds, f"{place}.{name}"[-200:], notes) for name, inner in kept.items()}
    if isinstance(value, list):
        _note(len(value), bounds.entries, f"{place or 'the answer'}", notes)
        return [
            _cut(inner, bounds, f"{place}[{number}]", notes)
            for number, inner in enumerate(value[: bounds.entries])
        ]
    return value


def _cut_text(value: str, bounds: _Bounds, place: str, notes: list[str]) -> str:
    if len(value) <= bounds.characters:
        return value
    notes.append(f"{place}: {bounds.characters:,} of {len(value):,} characters")
    return f"{value[: bounds.characters]}…"


def _note(there: int, most: int, place: str, notes: list[str]) -> None:
    if there > most:
        notes.append(f"{place}: the first {most:,} of {there:,}")
