"""Answers to programs are bounded, and say where they were cut."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from queue_workflows.web.mcp.answer_size import MOST_CHARACTERS, AnswerTooLong, sized


def test_what_fits_is_left_as_it_is() -> None:
    """As plain JSON: times in ISO 8601, as commands print them."""
    at = datetime(2026, 7, 1, 12, tzinfo=UTC)
    assert sized({"at": at, "jobs": [{"id": 7, "error": None}]}) == (
        {"at": "2026-07-01T12:00:00+00:00", "jobs": [{"id": 7, "error": None}]},
        (),
    )


def test_a_long_list_and_a_long_text_are_cut_and_named() -> None:
    """A program can ask for the rest of what it sees is missing."""
    told, cut = sized({"nodes": list(range(250)), "error": {"message": "x" * 5_000}})
    assert told == {"nodes": list(range(200)), "error": {"message": "x" * 4_000 + "…"}}
    assert cut == (".nodes: the first 200 of 250", ".error.message: 4,000 of 5,000 characters")


def test_many_long_texts_leave_less_of_each() -> None:
    """The whole is what a program can take, whatever its parts."""
    told, cut = sized([{"error": "x" * 3_900} for _ in range(200)])
    assert len(json.dumps(told)) <= MOST_CHARACTERS
    assert len(told) == 60
    assert cut[0] == "the answer: the first 60 of 200"
    assert cut[-1] == "and 41 more places"


def test_an_object_of_very_many_names_is_cut_as_well() -> None:
    """Names of fields may be a host app's own."""
    told, cut = sized({"result": {f"n{n}": n for n in range(100_000)}})
    assert len(told["result"]) == 200
    assert cut == (".result: the first 200 of 100,000",)


def test_what_is_too_long_however_it_is_cut_is_refused() -> None:
    """As names that are themselves too long."""
    with pytest.raises(AnswerTooLong):
        sized({"n" * MOST_CHARACTERS: 1})


def test_half_a_character_is_none() -> None:
    """No message could carry it."""
    assert sized({"text": "a\ud800b"}).value == {"text": "a?b"}


def test_deep_nesting_ends() -> None:
    """What a stored value may have in it is no way to end the program."""
    deep: object = "x"
    for _ in range(400):
        deep = [deep]
    assert sized(deep).cut == ()
