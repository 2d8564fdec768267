"""References: what they yield, and what is said where they yield nothing."""

from __future__ import annotations

from typing import Any

import pytest

from queue_workflows.config import EveryRef
from queue_workflows.errors import RefError
from queue_workflows.workflow.references.references import (
    ABSENT,
    paths_in,
    resolve,
    resolve_condition,
    resolve_elements,
    resolve_ref,
)

SCOPE: dict[str, Any] = {
    "inputs": {"brief": "short", "a key": {"x.y": 1}},
    "run": {"id": "r1", "labels": {}},
    "item": {"n": 2},
    "index": 0,
    "plan": {"scenes": [{"kind": "day", "n": 1}, {"kind": "night", "n": 2}], "none": None},
    "draw": [{"url": "a"}, ABSENT, {"url": "c"}],
    "gone": ABSENT,
}


def ref(path: str) -> dict[str, str]:
    return {"$from": path}


def only(path: str, where: Any) -> dict[str, Any]:
    return {"$filter": {"in": ref(path), "where": where}}


@pytest.mark.parametrize(
    ("value", "result"),
    [
        (ref("inputs.brief"), "short"),
        (ref("inputs"), SCOPE["inputs"]),
        (ref('inputs["a key"]["x.y"]'), 1),
        (ref("item.n"), 2),
        (ref("index"), 0),
        (ref("plan.scenes[1].kind"), "night"),
        (ref("plan.scenes[-1].n"), 2),
        (ref("plan.scenes.0.n"), 1),
        (ref("plan.none"), None),
        (ref("draw"), [{"url": "a"}, None, {"url": "c"}]),
        (ref("draw[0].url"), "a"),
        (ref("draw[1].url"), None),
        (ref("gone"), None),
        (ref("gone.however[3].deep"), None),
        ({"$value": {"$from": "inputs.brief"}}, {"$from": "inputs.brief"}),
        ({"$eq": [ref("item.n"), 2]}, True),
        ({"$eq": [ref("item.n"), 2.0]}, True),
        ({"$eq": [1, True]}, False),
        ({"$eq": [[0], [False]]}, False),
        ({"$eq": [{"a": [1]}, {"a": [1]}]}, True),
        ({"$ne": [ref("inputs.brief"), "long"]}, True),
        (only("plan.scenes", {"$eq": [ref("it.kind"), "day"]}), [{"kind": "day", "n": 1}]),
        (only("plan.scenes", {"$eq": [ref("it.n"), ref("item.n")]}), [{"kind": "night", "n": 2}]),
        (only("gone", True), []),
        ({"$gt": [ref("item.n"), 1.5]}, True),
        ({"$gt": [ref("item.n"), 2]}, False),
        ({"$lt": ["a", "b"]}, True),
        ({"$lt": [ref("gone"), 1]}, False),
        ({"$gt": [ref("gone"), 1]}, False),
        ({"$in": [ref("item.n"), [1, 2.0]]}, True),
        ({"$in": [True, [1]]}, False),
        ({"$in": [ref("inputs.brief"), ref("gone")]}, False),
        ({"$not": ref("gone")}, True),
        ({"$not": {"$eq": [ref("index"), 0]}}, False),
        ({"$and": [True, {"$gt": [ref("item.n"), 1]}]}, True),
        ({"$and": [ref("gone"), ref("no.such.thing")]}, False),
        ({"$or": [ref("gone"), {"$in": [1, [1]]}, ref("no.such.thing")]}, True),
        ({"$or": [False, None]}, False),
        (
            only("plan.scenes", {"$and": [{"$not": {"$eq": [ref("it.n"), 1]}}, True]}),
            SCOPE["plan"]["scenes"][1:],
        ),
        ({"a": [1, {"b": ref("index")}]}, {"a": [1, {"b": 0}]}),
    ],
)
def test_what_references_yield(value: Any, result: Any):
    """Each operator, nested anywhere."""
    assert resolve(value, SCOPE, where="draw.inputs") == result


def test_what_a_node_returned_is_data():
    """Nothing that looks like a reference is followed when it comes out of one."""
    scope = {"plan": {"x": {"$from": "inputs.secret"}}, "inputs": {"secret": 1}}
    assert resolve(ref("plan.x"), scope, where="a.inputs") == {"$from": "inputs.secret"}


@pytest.mark.parametrize(
    ("path", "missing", "there"),
    [
        ("plan.scene[0]", ".scene", "plan is an object with 'scenes', 'none'; did you mean 'scenes'?"),
        ("plan.scenes[2].n", "[2]", "plan.scenes is a list of 2"),
        ("plan.none.x", ".x", "plan.none is null"),
        ("inputs.brief.x", ".x", "inputs.brief is a text"),
        ("run.labels.x", ".x", "run.labels is an empty object"),
    ],
)
def test_a_path_that_leads_nowhere_says_what_is_there(path: str, missing: str, there: str):
    """The place of the reference, the path, and what was found instead; never a value."""
    with pytest.raises(RefError) as wrong:
        resolve({"scene": [ref(path)]}, SCOPE, where="draw.inputs")
    assert str(wrong.value) == f"draw.inputs.scene[0]: `{path}`: nothing is there at {missing}; {there}"
    assert (wrong.value.where, wrong.value.path, wrong.value.there) == ("draw.inputs.scene[0]", path, there)


def test_a_root_that_is_not_there():
    """A misspelt node is met with the one that was probably meant."""
    with pytest.raises(RefError) as wrong:
        resolve(ref("paln.x"), {"plan": {}, "run": {}}, where="a.inputs")
    assert str(wrong.value) == (
        "a.inputs: `paln.x`: there is no 'paln'; there is 'plan', 'run'; did you mean 'plan'?"
    )


@pytest.mark.parametrize(
    "value",
    [
        {"$form": "inputs.brief"},
        {"$from": 3},
        {"$from": ""},
        {"$from": "a..b"},
        {"$from": "a[x]"},
        {"$from": 'a["x]'},
        {"$from": "a", "b": 1},
        {"$eq": [1]},
        {"$in": 3},
        {"$gt": [1, 2, 3]},
        {"$and": []},
        {"$or": {"$eq": [1, 1]}},
        {"$filter": {"in": []}},
        {"a": {"$filter": [], "where": True}},
    ],
)
def test_a_malformed_operator_is_an_error(value: Any):
    """What begins with `$` is never passed on as if it were data."""
    with pytest.raises(RefError):
        resolve(value, SCOPE, where="a")
    with pytest.raises(RefError):
        paths_in(value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            {"$gt": [1, "1"]},
            "a.$gt: two numbers or two texts can be compared, and these are a text and a number",
        ),
        (
            {"$lt": [True, 2]},
            "a.$lt: two numbers or two texts can be compared, and these are true and a number",
        ),
        ({"$in": [1, "123"]}, "a.$in[1]: a list is needed, and this is a text"),
        ({"$not": 0}, "a.$not: a condition is true or false, and this is a number"),
        (
            {"$and": [True, {"$or": [[]]}]},
            "a.$and[1].$or[0]: a condition is true or false, and this is a list",
        ),
    ],
)
def test_what_cannot_be_compared_or_joined_is_named(value: Any, said: str):
    """By its place, and never as its value."""
    with pytest.raises(RefError) as wrong:
        resolve(value, SCOPE, where="a")
    assert str(wrong.value).startswith(said)


def test_the_paths_that_a_value_needs():
    """Each once; what `it` stands for inside a filter is no path of its own."""
    value = {
        "a": [ref("plan.x"), {"$value": ref("not.this")}, ref("plan.x")],
        "b": {"$filter": {"in": ref("draw"), "where": {"$eq": [ref("it.n"), ref("item.n")]}}},
        "c": {"$and": [{"$not": ref("gone")}, {"$or": [{"$in": [1, ref("plan.y")]}]}]},
    }
    assert [str(path) for path in paths_in(value)] == ["plan.x", "draw", "item.n", "gone", "plan.y"]


def test_conditions_and_elements():
    """A condition is true or false and a list is a list; null is the empty one of each."""
    assert resolve_condition(ref("gone.ok"), SCOPE, where="a.skip_if") is False
    assert resolve_condition({"$eq": [1, 1]}, SCOPE, where="a.skip_if") is True
    assert resolve_elements(ref("gone"), SCOPE, where="a.for_each") == []
    with pytest.raises(RefError, match=r"a\.skip_if: a condition is true or false, and this is a text"):
        resolve_condition(ref("inputs.brief"), SCOPE, where="a.skip_if")
    with pytest.raises(RefError, match=r"a\.for_each: a list is needed, and this is an object"):
        resolve_elements(ref("inputs"), SCOPE, where="a.for_each")


def test_a_list_has_an_end():
    """What one node may go through is bounded, and what to do instead is said."""
    scope = {"plan": {"most": [0] * 100_000, "more": [0] * 100_001}}
    assert len(resolve_elements(ref("plan.most"), scope, where="a.for_each")) == 100_000
    with pytest.raises(RefError, match="a list of 100,001, and for_each takes at most 100,000"):
        resolve_elements(ref("plan.more"), scope, where="a.for_each")


def test_the_host_app_answers_for_what_is_behind_host():
    """It gets the path and the run; a LookupError is a path that leads nowhere."""
    asked: list[Any] = []

    def host(path: str, run: Any) -> Any:
        asked.append((path, run["id"]))
        return {"bucket": {"name": "films"}}[path]

    assert resolve_ref("host.bucket", SCOPE, host=host) == {"name": "films"}
    with pytest.raises(RefError, match="the host app does not know it"):
        resolve_ref("host.buckte", SCOPE, host=host)
    with pytest.raises(RefError, match="nobody to ask"):
        resolve_ref("host.bucket", SCOPE)
    assert asked == [("bucket", "r1"), ("buckte", "r1")]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({1, 2}, "set is not JSON"),
        ([float("nan")], "nan is not JSON"),
        ("a\0b", "NUL"),
        ({1: 2}, "key 1 of type int"),
    ],
)
def test_what_the_host_app_answers_is_json(answer, said):
    """Anything else could be stored nowhere; a tuple is a list, as everywhere."""
    with pytest.raises(RefError, match=said) as refused:
        resolve_ref("host.x", SCOPE, where="draw.for_each", host=lambda path, run: answer)
    assert "draw.for_each" in str(refused.value)
    assert resolve_ref("host.x", SCOPE, host=lambda path, run: (1, 2)) == [1, 2]


def test_a_resolver_of_every_reference_may_wrap_what_is_found():
    """It gets the whole path, the run and what the engine finds there, which it cannot change for others."""
    asked: list[Any] = []
    scope = {"run": {"id": "r1"}, "plan": {"keys": ["a", "b"]}, "item": 3}

    def every(path: str, run: Any, found: Any) -> Any:
        value = found()
        asked.append((path, run["id"], value))
        if isinstance(value, list):
            value.append("c")
        return value

    given = {"keys": ref("plan.keys"), "one": ref("plan.keys[1]"), "item": ref("item"), "kept": 7}
    for _ in range(2):
        resolved = resolve(given, scope, where="n", host=EveryRef(every))
        assert resolved == {"keys": ["a", "b", "c"], "one": "b", "item": 3, "kept": 7}
    assert asked[:3] == [
        ("plan.keys", "r1", ["a", "b", "c"]),
        ("plan.keys[1]", "r1", "b"),
        ("item", "r1", 3),
    ]


def test_a_resolver_of_every_reference_may_replace_any():
    """Also one that leads nowhere, and `host.…`; what is not found is told as it is without a resolver."""

    def every(path: str, run: Any, found: Any) -> Any:
        return {"plan.secret": "opened", "host.bucket": "films"}[path] if "." in path else found()

    assert resolve_ref("plan.secret", {"plan": {}}, host=EveryRef(every)) == "opened"
    assert resolve_ref("host.bucket", {}, host=EveryRef(every)) == "films"
    with pytest.raises(RefError, match=r"`host\.buckte`: the host app does not know it"):
        resolve_ref("host.buckte", {}, host=EveryRef(every))
    with pytest.raises(RefError) as plain:
        resolve_ref("nowhere", SCOPE)
    with pytest.raises(RefError) as asked:
        resolve_ref("nowhere", SCOPE, host=EveryRef(every))
    assert str(asked.value) == str(plain.value)
    with pytest.raises(RefError, match=r"`host\.bucket`: the host app does not know it"):
        resolve_ref("host.bucket", {}, host=EveryRef(lambda _path, _run, found: found()))


@pytest.mark.parametrize("every", [True, False])
def test_a_resolver_cannot_change_what_later_references_yield(every: bool):
    """What it is given of the run is its own."""

    def change(_path: str, run: Any, *_: Any) -> int:
        run["labels"]["a"] = run["id"] = "changed"
        return 0

    scope = {"run": {"id": "r1", "labels": {}}}
    resolve([ref("host.a"), ref("host.b")], scope, where="n", host=EveryRef(change) if every else change)
    assert scope == {"run": {"id": "r1", "labels": {}}}


def test_an_element_of_a_filter_is_no_reference_to_be_asked_for():
    """There may be a hundred thousand of them, and they are what the resolver answered already."""
    asked: list[str] = []

    def every(path: str, run: Any, found: Any) -> Any:
        asked.append(path)
        return found()

    filtered = only("plan.keys", {"$eq": [ref("it"), "a"]})
    assert resolve(filtered, {"plan": {"keys": ["a", "b"]}}, where="n", host=EveryRef(every)) == ["a"]
    assert asked == ["plan.keys"]
