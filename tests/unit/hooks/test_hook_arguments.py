"""What becomes of a run's inputs on a script's command line."""

from __future__ import annotations

import csv
import io
import json
import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queue_workflows.errors import PayloadError
from queue_workflows.hooks.script.arguments import LONGEST_ARGUMENT, hook_arguments

_KEYS = st.from_regex(r"[A-Za-z][A-Za-z0-9]{0,20}", fullmatch=True)
_TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=50)
_PLAIN = st.one_of(_TEXTS, st.integers(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False))


@pytest.mark.parametrize(
    ("inputs", "arguments"),
    [
        ({"url": "https://example.org/?a=b&c"}, ["--url=https://example.org/?a=b&c"]),
        ({"snapshot_id": "x"}, ["--snapshot-id=x"]),
        ({"depth": 2, "ratio": 0.5}, ["--depth=2", "--ratio=0.5"]),
        ({"enable_js": True, "quiet": False, "nothing": None}, ["--enable-js"]),
        ({"tags": ["a", "b,c", 'say "x"']}, ['--tags=a,"b,c","say ""x"""']),
        ({"numbers": [1, 2.5, True, None]}, ["--numbers=1,2.5,true,null"]),
        ({"none": [], "blank": [""]}, ["--none=", '--blank=""']),
        ({"overrides": {"pip": ["a"]}}, ['--overrides={"pip":["a"]}']),
        ({"rows": [["a"], ["b"]]}, ['--rows=[["a"],["b"]]']),
        ({"empty": ""}, ["--empty="]),
        ({"note": "two\nlines; $(rm -rf /) -x"}, ["--note=two\nlines; $(rm -rf /) -x"]),
        ({"looks_like": "true"}, ["--looks-like=true"]),
        ({}, []),
    ],
)
def test_an_input_is_an_argument(inputs: dict[str, Any], arguments: list[str]) -> None:
    """Texts as they are, lists as one line of CSV, the rest as JSON, and true by its mere name."""
    assert hook_arguments(inputs) == arguments


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"": "x"}, "cannot be the name"),
        ({"-x": "x"}, "cannot be the name"),
        ({"a b": "x"}, "cannot be the name"),
        ({"a=b": "x"}, "cannot be the name"),
        ({"é": "x"}, "cannot be the name"),
        ({"a_b": 1, "a-b": 2}, "two inputs would both be --a-b"),
        ({"x": "a\0b"}, "NUL"),
        ({"x": "\ud800"}, "half a character"),
        ({"x": ["\ud800"]}, "half a character"),
        ({"x": float("nan")}, "not JSON"),
        ({"x": "a" * (LONGEST_ARGUMENT - len("--x=") + 1)}, "too long"),
    ],
)
def test_what_cannot_be_an_argument_is_refused(inputs: dict[str, Any], said: str) -> None:
    """Nothing odd reaches a command line, and the message says which input it was."""
    with pytest.raises(PayloadError, match=said):
        hook_arguments(inputs)


@given(st.dictionaries(_KEYS, st.one_of(_PLAIN, st.lists(_PLAIN, max_size=5)), max_size=6))
def test_every_argument_can_be_read_back(inputs: dict[str, Any]) -> None:
    """An argument splits at its first `=` into the name and what CSV and JSON give back."""
    expected = [(key, value) for key, value in inputs.items() if value is not None and value is not False]
    arguments = hook_arguments(inputs)
    assert len(arguments) == len(expected)
    for argument, (key, value) in zip(arguments, expected, strict=True):
        name, _, text = argument.partition("=")
        assert name == f"--{key}"
        if value is True:
            assert text == ""
        elif isinstance(value, str):
            assert text == value
        elif isinstance(value, list):
            read = next(csv.reader(io.StringIO(text, newline="")), [])
            assert read == [one if isinstance(one, str) else json.dumps(one) for one in value]
        else:
            assert json.loads(text) == value


def test_the_longest_argument_can_be_handed_over() -> None:
    """The kernel, whose limit it is, takes it."""
    (longest,) = hook_arguments({"x": "a" * (LONGEST_ARGUMENT - len("--x="))})
    assert subprocess.run(
        ["sh", "-c", 'printf %s "$1" | wc -c', "sh", longest], capture_output=True, check=True
    ).stdout.split() == [str(LONGEST_ARGUMENT).encode()]
