"""The text of a document: YAML without its traps, JSON, and whatever else somebody saves under that name."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.reference.examples import PATIENT, examples
from support.reference.json_values import documents

from queue_workflows.errors import DocumentError
from queue_workflows.workflow.document import reading
from queue_workflows.workflow.document.load import load_document
from queue_workflows.workflow.document.reading import Unreadable, read_text

WORDS = ["on", "off", "yes", "No", "y", "n", "NO"]
BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join(f'*{old}' for _ in range(10))}]\n" for old, new in pairwise("abcdefghi")
)
MERGE_BOMB = "a: &a {" + ", ".join(f"k{number}: 1" for number in range(1000)) + "}\n" + "".join(
    f"m{number}: {{<<: *a}}\n" for number in range(5000)
)  # fmt: skip


def refused(text: str) -> tuple[str, int | None]:
    with pytest.raises(Unreadable) as caught:
        read_text(text)
    return caught.value.said, caught.value.line


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[(word, word) for word in WORDS],
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("12", 12),
        ("010", 10),
        ("0o10", 8),
        ("0xff", 255),
        ("1_000", "1_000"),
        ("1.5e3", 1500.0),
        (".5", 0.5),
        ("12:30", "12:30"),
        ("2030-01-31", "2030-01-31"),
        ("2030-01-31T09:00:00Z", "2030-01-31T09:00:00Z"),
        ("'12'", "12"),
        ('"\\u00e9"', "é"),
        ("!!str 12", "12"),
        ("!!int '12'", 12),
        ("!!float 3", 3.0),
        ("= ", "="),
        ("|\n  two\n  lines\n", "two\nlines\n"),
    ],
)
def test_a_plain_word_is_what_it_looks_like(text: str, value: Any):
    """As in YAML 1.2: no words for true but true, no dates, no clocks, no octal by a leading zero."""
    found = read_text(f"x: {text}")
    assert found == {"x": value}
    assert type(found["x"]) is type(value)


def test_keys_are_texts():
    """`on:`, `1:` and `null:` are keys by these names, and not true, one and nothing."""
    assert read_text("on: 1\n1: 2\nnull: 3\ntrue: 4\n") == {"on": 1, "1": 2, "null": 3, "true": 4}


def test_anchors_aliases_and_merges():
    """What a mapping says itself wins over what it merges, wherever the merge stands."""
    text = (
        "x-d: &d {queue: gpu, timeout_s: 5}\na: {timeout_s: 6, <<: *d}\nb: [*d, {<<: [{queue: cpu}, *d]}]\n"
    )
    assert read_text(text) == {
        "x-d": {"queue": "gpu", "timeout_s": 5},
        "a": {"queue": "gpu", "timeout_s": 6},
        "b": [{"queue": "gpu", "timeout_s": 5}, {"queue": "cpu", "timeout_s": 5}],
    }


def test_an_anchor_may_be_used_again():
    """An alias stands for the nearest anchor before it."""
    assert read_text("a: &x {b: &x 1, c: *x}\nd: *x\n") == {"a": {"b": 1, "c": 1}, "d": {"b": 1, "c": 1}}


@pytest.mark.parametrize(
    ("text", "said", "line"),
    [
        ("a: 1\nb: 2\na: 3", "has the key 'a' twice in one mapping", 3),
        ("a:\n  b: 1\n  b: 2", "has the key 'b' twice in one mapping", 3),
        ('{"a": 1, "a": 2}', "has the key 'a' twice in one mapping", None),
        ("a: &a [*a]", "has an alias *a within what it stands for", 1),
        ("a: *b", "has an alias *b without an anchor &b before it", 1),
        ("a: 1\n---\nb: 2", "holds more than one document; give each a file of its own", 2),
        ("a: !!python/object/apply:os.system [ls]", "has the tag", 1),
        ("a: !!binary aGk=", "has the tag", 1),
        ("a: !!set {x}", "has the tag", 1),
        ("a: !mine x", "has the tag", 1),
        ("a: !!int x", "has 'x', which is no int", 1),
        ("? [a]\n: 1", "has a key that is no text", 1),
        ("? !!int 1\n: 1", "has a key that is no text; write it in quotes", 1),
        ("a: {<<: 3}", "has a merge key `<<` with something else than a mapping", 1),
        ("a: [", "is no YAML: while parsing a flow node", None),
        ("a: b: c", "is no YAML: mapping values are not allowed", 1),
        (
            "a: {$from: b.x[0].y}",
            "is no YAML: while parsing a flow mapping did not find expected ',' or '}'; in",
            1,
        ),
        ("\ta: 1", "is no YAML: while scanning for the next token", 1),
        ("a: \x07", "is no YAML: ", None),
        ("[" * 5000, "is nested deeper than 100 levels", 1),
        ('{"a":' * 5000, "is nested deeper than 100 levels", 1),
        ('{"a": NaN}', "has NaN, which is no JSON", None),
        ("x: " + "1" * 4301, "has an integer of more than 4300 digits", 1),
        ('{"x": ' + "1" * 4301 + "}", "has an integer of more than 4300 digits", 1),
        (MERGE_BOMB, "has more than 4,000,000 values, with aliases followed", None),
        (BOMB, "has more than 4,000,000 values, with aliases followed", 7),
    ],
)
def test_what_is_no_plain_data_is_refused(text: str, said: str, line: int | None):
    """With the line, where the parser knows it; nothing is executed, and aliases multiply within bounds."""
    words, at = refused(text)
    assert words.startswith(said)
    assert line is None or at == line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("# only a remark\n", "is empty"),
        ("---\n", "is empty"),
        ("- a\n- b\n", "must be a mapping, not a list"),
        ("film.yaml", "must be a mapping, not the single value 'film.yaml'"),
        ("x: .nan", "field x: nan is not JSON; use None, or a string"),
        ("x: [1, -.inf]", "field x[1]: -inf is not JSON; use None, or a string"),
        ('x: "\\0"', "field x: NUL (\\u0000) in a string; Postgres cannot store it: remove it"),
        ("x: 1e999", "field x: inf is not JSON; use None, or a string"),
    ],
)
def test_what_reads_well_and_is_no_document(text: str, said: str):
    """Told as what is wrong with the document rather than with its text."""
    with pytest.raises(DocumentError) as caught:
        load_document(text)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe\x00n", "is no text in UTF-8: byte 1 is 0xff"),
        (b"\x89PNG\r\n\x1a\n\x00", "is no text in UTF-8: byte 1 is 0x89"),
        (b"name: \x00", "is no YAML: "),
    ],
)
def test_a_file_that_is_no_text(tmp_path: Path, content: bytes, said: str):
    """A picture under the wrong name is told so."""
    path = tmp_path / "film.yaml"
    path.write_bytes(content)
    with pytest.raises(DocumentError) as caught:
        load_document(path)
    assert str(caught.value).startswith(f"{path}: {said}")


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Missing, a directory, too large: a line each, and nothing is read that is too large."""
    monkeypatch.setattr("queue_workflows.workflow.document.load.MAX_BYTES", 10)
    (tmp_path / "large.yaml").write_text("name: larger than that")
    said = []
    for name in ("missing.yaml", ".", "large.yaml"):
        with pytest.raises(DocumentError) as caught:
            load_document(tmp_path / name)
        said.append(caught.value.problems[0].said)
    assert said[0] == "cannot be read: No such file or directory"
    assert said[1:] == ["cannot be read: Is a directory", "is larger than 10 bytes"]


def test_a_file_with_a_byte_order_mark(tmp_path: Path):
    """Some editors write one."""
    path = tmp_path / "film.yaml"
    path.write_text("nodes: [{id: a, module: m}]", encoding="utf-8-sig")
    assert load_document(path).name == "film"


@settings(PATIENT, max_examples=examples(50))
@given(value=st.dictionaries(st.text(st.characters(max_codepoint=0xD7FF)), documents, min_size=1))
def test_json_is_read_as_what_it_says(value: dict[str, Any]):
    """Also by the YAML reader, which takes over where a JSON text turns out to be none."""
    text = json.dumps(value)
    assert read_text(text) == value
    if "\\ud8" not in text and "\\ud9" not in text and "\\uda" not in text and "\\udb" not in text:
        built = reading._Builder().build(text)
        assert built == json.loads(text)


@settings(PATIENT, max_examples=examples(500))
@given(text=st.text() | st.text("ab:-[]{}&*!<>|'\"#?,% \n\t1.~"))
def test_any_text_is_read_or_refused(text: str):
    """Nothing but Unreadable comes out of the reader."""
    with suppress(Unreadable):
        read_text(text)
