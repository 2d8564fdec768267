"""check_payload: what is accepted comes back equal, what is refused is named with its place."""

from __future__ import annotations

import datetime
import decimal
import enum
import inspect
import json
import sys
import uuid
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from pathlib import Path

import pytest
from hypothesis import given
from support.reference.json_values import anything, as_json, documents

from queue_workflows.errors import ExitCode, PayloadError
from queue_workflows.payload import check_payload
from queue_workflows.settings import Settings

Point = namedtuple("Point", "x y")


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 9


class Plain(enum.Enum):
    A = "a"


def refusal(value: object, **limits: int) -> PayloadError:
    with pytest.raises(PayloadError) as caught:
        check_payload(value, **limits)
    assert caught.value.exit_code == ExitCode.USAGE
    assert caught.value.advice
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    return caught.value


def nested(depth: int, kind: type = list) -> object:
    value: object = kind()
    for _ in range(depth - 1):
        value = [value] if kind is list else {"a": value}
    return value


@given(documents)
def test_json_documents_are_accepted_and_come_back_equal(value: object):
    """Whatever is JSON and has no NUL passes, and loads as what went in."""
    assert json.loads(check_payload(value)) == value


@given(anything)
def test_what_is_accepted_comes_back_equal_and_what_is_not_has_a_place(value: object):
    """Nothing slips through changed, and no other error comes out."""
    encoded, refused = None, None
    try:
        encoded = check_payload(value)
    except PayloadError as error:
        refused = error
    if encoded is None:
        assert refused.path.startswith("$")
    else:
        assert json.loads(encoded) == as_json(value)
        assert "\x00" not in json.dumps(json.loads(encoded), ensure_ascii=False)
        encoded.encode()


@pytest.mark.parametrize(
    ("value", "path", "says"),
    [
        ({"a": [0, 1, 2, {"b": "x\x00y"}]}, "$.a[3].b", "NUL (\\u0000) in a string"),
        ({"a": {"x\x00y": 1}}, '$.a["x\\u0000y"]', "NUL (\\u0000) in a key"),
        ("\x00", "$", "NUL"),
        ({"odd key": [float("nan")]}, '$["odd key"][0]', "nan is not JSON"),
        ([1.0, float("inf")], "$[1]", "inf is not JSON"),
        ({"a": float("-inf")}, "$.a", "-inf is not JSON"),
        ({"a": {1: "x"}}, "$.a", "key 1 of type int"),
        ({True: 1}, "$", "key True of type bool"),
        ({None: 1}, "$", "key None of type NoneType"),
        ({1.5: 1}, "$", "key 1.5 of type float"),
        ({(1, 2): 1}, "$", "key of type tuple"),
        ({"a": {b"x": 1}}, "$.a", "key of type bytes"),
        ({"a": "x\ud800"}, "$.a", "surrogate \\ud800 in a string"),
        ({"a": "\ud83d\ude00"}, "$.a", "surrogate \\ud83d in a string"),
        ({"\udc80": 1}, '$["\\udc80"]', "surrogate \\udc80 in a key"),
        ({"n": 10**4300}, "$.n", "integer of more than 4300 digits"),
        ({"n": -(10**9000)}, "$.n", "integer of more than 4300 digits"),
        ({"at": datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)}, "$.at", "use .isoformat()"),
        ({"at": datetime.timedelta(1)}, "$.at", "use .total_seconds()"),
        ([b"x"], "$[0]", "bytes is not JSON"),
        ([{1, 2}], "$[0]", "set is not JSON"),
        ([decimal.Decimal(1)], "$[0]", "Decimal is not JSON"),
        ([uuid.uuid4()], "$[0]", "UUID is not JSON — use str(…)"),
        ([Path("/x")], "$[0]", "use str(…)"),
        ([Plain.A], "$[0]", "Plain is not JSON — use its .value"),
        ([UserDict(a=1)], "$[0]", "UserDict is not JSON — use dict(…)"),
        ([object()], "$[0]", "object is not JSON — use dicts"),
        (int, "$", "type is not JSON"),
    ],
)
def test_refused_with_the_place_and_what_to_do(value: object, path: str, says: str):
    """The error has the JSON path and the reason."""
    error = refusal(value)
    assert error.path == path
    assert f"payload at {path}: " in str(error)
    assert says in str(error)


@pytest.mark.parametrize("depth", [101, 1_000, 10_000, 200_000])
@pytest.mark.parametrize("kind", [list, dict])
def test_deep_nesting_is_a_payload_error_and_no_crash(depth: int, kind: type):
    """10,000 levels exhaust neither Python's stack nor the message; the place is the first level too deep."""
    error = refusal(nested(depth, kind))
    assert "nested deeper than 100 levels" in str(error)
    assert error.path == "$" + ("[0]" if kind is list else ".a") * 100


def test_depth_is_counted_in_containers():
    """Exactly max_depth containers within each other are accepted, one more is not."""
    assert check_payload(nested(100)) == "[" * 100 + "]" * 100
    assert check_payload(nested(3, dict), max_depth=3) == '{"a":{"a":{}}}'
    assert check_payload("x", max_depth=1) == '"x"'
    assert refusal(nested(4, dict), max_depth=3).path == "$.a.a.a"
    assert json.loads(check_payload(nested(500), max_depth=500)) == nested(500)


@pytest.mark.parametrize("kind", [list, dict])
def test_a_value_that_contains_itself_is_refused(kind: type):
    """A cycle is called one; the same object twice side by side is fine."""
    value: dict | list = [0] if kind is list else {"a": 0}
    value[0 if kind is list else "a"] = [value]
    assert "contains itself" in str(refusal({"x": value}))
    shared = {"a": 1}
    assert check_payload([shared, shared]) == '[{"a":1},{"a":1}]'


def test_large_payloads_are_refused():
    """A 50 MB string is refused where it stands, many small parts as a whole; bytes count."""
    assert refusal({"a": ["x" * 50_000_000]}).path == "$.a[0]"
    error = refusal(["x" * 1000] * 20, max_bytes=10_000)
    assert error.path == "$"
    assert "larger than 10,000 bytes" in str(error)
    assert check_payload("x" * 98, max_bytes=100) == '"' + "x" * 98 + '"'
    refusal("x" * 99, max_bytes=100)
    assert check_payload("é" * 49, max_bytes=100)
    refusal("é" * 50, max_bytes=100)
    refusal({"x" * 200: 1}, max_bytes=100)
    refusal(['"' * 60], max_bytes=100)


def test_a_bomb_of_shared_references_is_refused():
    """Forty lists that each hold the one before twice are a terabyte of JSON; so is one string repeated."""
    bomb: list = []
    for _ in range(40):
        bomb = [bomb, bomb]
    assert "larger than" in str(refusal(bomb, max_bytes=1_000_000))
    assert "larger than" in str(refusal(["x" * 1_000_000] * 1_000_000))
    assert "larger than" in str(refusal([{"k" * 1_000_000: 0}] * 1_000_000))
    assert "larger than" in str(refusal([10**4000] * 1_000_000))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        ((1, (2, 3)), "[1,[2,3]]"),
        (Point(1, 2), "[1,2]"),
        (OrderedDict(b=1, a=2), '{"b":1,"a":2}'),
        (defaultdict(list, a=[1]), '{"a":[1]}'),
        ({Colour.RED: Colour.RED, "l": Level.HIGH}, '{"red":"red","l":9}'),
        ({"a": "ü €"}, '{"a":"ü €"}'),
        ("\\u0000 is only text", '"\\\\u0000 is only text"'),
        ("\x01\n\x7f", '"\\u0001\\n\x7f"'),
        (10**4300 - 1, "9" * 4300),
        (2**63, "9223372036854775808"),
        (1e308, "1e+308"),
        (True, "true"),
        (None, "null"),
        ({}, "{}"),
    ],
)
def test_accepted_as(value: object, encoded: str):
    """Tuples are lists, subclasses are what they extend, order and characters stay."""
    assert check_payload(value) == encoded


def test_no_value_is_shown_in_a_refusal():
    """A payload may hold a secret: the message has the place and the type only."""
    error = refusal({"token": "s3cret\x00"})
    assert "s3cret" not in str(error)


def test_long_paths_are_shortened_in_the_message_only():
    """The message stays one readable line; the error carries the whole path."""
    value: object = b""
    for _ in range(90):
        value = {"some_key": value}
    error = refusal(value)
    assert error.path == "$" + ".some_key" * 90
    assert "…" in str(error)
    assert len(refusal({"k" * 10_000: b""}).path) < 100


def test_a_host_that_lifts_python_s_digit_limit_gets_the_same_answer():
    """An integer that other readers could not parse is refused whatever this process allows itself."""
    before = sys.get_int_max_str_digits()
    try:
        for limit in (0, 100_000):
            sys.set_int_max_str_digits(limit)
            assert refusal([10**5000]).path == "$[0]"
        sys.set_int_max_str_digits(1000)
        assert refusal([10**2000]).path == "$[0]"
    finally:
        sys.set_int_max_str_digits(before)


def test_caps_are_those_of_the_settings():
    """The defaults stand in the table of settings; the two modules do not know each other."""
    parameters = inspect.signature(check_payload).parameters
    assert parameters["max_bytes"].default == Settings.model_fields["payload_max_bytes"].default
    assert parameters["max_depth"].default == Settings.model_fields["payload_max_depth"].default
