"""JSON Schema properties of inputs and answers: what they let pass, and in which words they refuse."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.reference.examples import PATIENT, examples
from support.reference.json_values import documents

from queue_workflows.errors import PayloadError
from queue_workflows.workflow.document.schemas import filled, flaws_of_schema

VALUE_KEYWORDS = ["type", "enum", "const", "minimum", "maxLength", "pattern", "multipleOf", "default"]
PART_KEYWORDS = ["items", "prefixItems", "properties", "required", "additionalProperties", "dependentSchemas"]
LINK_KEYWORDS = ["$ref", "$dynamicRef", "$id", "$anchor", "$defs", "anyOf", "not", "if", "contains"]
KEYWORDS = st.sampled_from([*VALUE_KEYWORDS, *PART_KEYWORDS, *LINK_KEYWORDS])
WORDS = st.sampled_from(
    ["string", "integer", "object", "#", "#/x", "#/items/0", "#/items/x", "(", "^a", "http://[", "a"]
)
SCHEMAS: Any = st.recursive(
    st.booleans() | WORDS | st.integers(-3, 3) | st.none() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYWORDS, inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("schema", "value", "said"),
    [
        ({"type": "string"}, 1, " must be string"),
        ({"type": ["string", "null"]}, 1, " must be string or null"),
        ({"type": "integer"}, True, " must be integer"),
        ({"enum": ["a", None, True]}, "b", ' must be one of "a", null, true'),
        ({"const": "a"}, "b", ' must be "a"'),
        ({"minimum": 3}, 2, " must be at least 3"),
        ({"exclusiveMaximum": 3}, 3, " must be less than 3"),
        ({"maxLength": 3}, "abcd", " must have at most 3 characters"),
        ({"minItems": 1}, [], " must have at least 1 elements"),
        ({"pattern": "^a+$"}, "b", ' must match "^a+$"'),
        ({"items": {"type": "string"}}, ["a", 1], "[1] must be string"),
        ({"properties": {"a b": {"type": "string"}}}, {"a b": 1}, '["a b"] must be string'),
        ({"required": ["a"]}, {}, " 'a' is a required property"),
        (
            {"additionalProperties": False},
            {"a": 1},
            " Additional properties are not allowed ('a' was unexpected)",
        ),
        (False, 1, " is not allowed"),
        ({"format": "email"}, "no email", None),
        (True, object, None),
    ],
)
def test_what_is_said_of_a_value(schema: Any, value: Any, said: str | None):
    """What the schema asks for, without the value where it may be long or nobody's business."""
    if said is None:
        assert filled({"x": schema}, {"x": value}, what="inputs") == {"x": value}
        return
    with pytest.raises(PayloadError) as wrong:
        filled({"x": schema}, {"x": value}, what="inputs")
    assert str(wrong.value) == f"inputs.x{said}"


def test_what_is_missing_and_what_is_too_much():
    """The first few are told, the rest is counted; nothing is passed over."""
    given_ = {f"y{number}": 1 for number in range(100_000)}
    with pytest.raises(PayloadError) as wrong:
        filled({"x": {}, "yes": {}}, given_, what="the answer")
    assert str(wrong.value).startswith(
        "the answer.x is missing; the answer.yes is missing; the answer.y0 is not "
    )
    assert str(wrong.value).endswith("; and 99,997 more")


@pytest.mark.parametrize("value", [[], "x", 3, 0, False, ""])
def test_only_objects_are_looked_into(value: Any):
    """An empty list is no object either."""
    with pytest.raises(PayloadError, match="inputs must be an object, not "):
        filled({}, value, what="inputs")


def test_a_default_is_everybodys_own():
    """Who changes what was filled in changes no other run's."""
    properties = {"x": {"default": []}, "y": {"default": None, "type": "string"}}
    first = filled(properties, {}, what="inputs")
    first["x"].append(1)
    assert filled(properties, {}, what="inputs") == {"x": [], "y": None}


def test_nothing_is_fetched_from_anywhere(monkeypatch: pytest.MonkeyPatch):
    """A schema that names another one on the network is refused; nobody is asked for it."""
    asked: list[Any] = []
    monkeypatch.setattr("urllib.request.urlopen", lambda *args, **kwargs: asked.append(args))
    elsewhere = {"x": {"$ref": "https://example.org/schema"}}
    assert [place for place, _said in flaws_of_schema(elsewhere)] == [("x", "$ref")]
    with pytest.raises(PayloadError, match="leads nowhere"):
        filled(elsewhere, {"x": 1}, what="inputs")
    assert asked == []


def test_a_schema_that_leads_to_itself():
    """It ends, with an error that says why."""
    with pytest.raises(PayloadError, match="leads to itself"):
        filled({"x": {"$ref": "#"}}, {"x": 1}, what="inputs")


@settings(PATIENT, max_examples=examples(300))
@given(schema=SCHEMAS, value=documents)
def test_any_schema_is_sound_or_refused(schema: Any, value: Any):
    """What is found sound never breaks the check of a value, whatever the value is."""
    if not list(flaws_of_schema({"x": schema})):
        with suppress(PayloadError):
            filled({"x": schema}, {"x": value}, what="inputs")
