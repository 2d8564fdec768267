"""References, tried with everything: nested anywhere, beside literals of any kind, into any data."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.reference.examples import PATIENT, examples
from support.reference.json_values import documents

from queue_workflows.errors import RefError
from queue_workflows.workflow.references.paths import Path
from queue_workflows.workflow.references.references import ABSENT, paths_in, references_in, resolve, same

KEYS = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]))
ROOTS = st.sampled_from(["inputs", "run", "item", "plan", "draw-2", "_x"])


def is_plain(value: Any) -> bool:
    """Whether no mapping in it wants to be an operator."""
    if isinstance(value, dict):
        return all(not key.startswith("$") and is_plain(child) for key, child in value.items())
    return all(map(is_plain, value)) if isinstance(value, list) else True


def walk_into(data: st.DataObject, scope: dict[str, Any]) -> tuple[Path, Any]:
    """A path that leads somewhere in the scope, and what is there."""
    root = data.draw(st.sampled_from(sorted(scope)))
    value, steps = scope[root], []
    while isinstance(value, dict | list) and value and data.draw(st.booleans()):
        if isinstance(value, dict):
            step = data.draw(st.sampled_from(sorted(value)))
        else:
            step = data.draw(st.integers(-len(value), len(value) - 1))
        steps.append(step)
        value = value[step]
    return Path(root, tuple(steps)), value


def leaf(data: st.DataObject, scope: dict[str, Any], paths: list[Path]) -> tuple[Any, Any]:
    """A reference, a literal in `$value`, or plain data."""
    kind = data.draw(st.sampled_from(["ref", "ref", "value", "plain"]))
    if kind == "ref":
        path, there = walk_into(data, scope)
        paths.append(path)
        return {"$from": str(path)}, there
    if kind == "value":
        literal = data.draw(documents)
        return {"$value": literal}, literal
    literal = data.draw(documents.filter(is_plain))
    return literal, literal


def template(
    data: st.DataObject, scope: dict[str, Any], paths: list[Path], depth: int = 3
) -> tuple[Any, Any]:
    """A value with references in it, and what must become of it; its paths are added to the list."""
    kind = (
        data.draw(st.sampled_from(["leaf", "list", "dict", "eq", "ne", "filter", "in", "not"]))
        if depth
        else "leaf"
    )
    if kind == "leaf":
        return leaf(data, scope, paths)
    if kind == "dict":
        keys = data.draw(st.lists(KEYS.filter(lambda key: not key.startswith("$")), max_size=3, unique=True))
        parts = {key: template(data, scope, paths, depth - 1) for key in keys}
        return {k: v for k, (v, _) in parts.items()}, {k: r for k, (_, r) in parts.items()}
    if kind == "filter":
        elements = data.draw(st.lists(documents.filter(is_plain), max_size=3))
        wanted, there = template(data, scope, paths, depth - 1)
        where = {"$eq": [{"$from": "it"}, wanted]}
        return {"$filter": {"in": elements, "where": where}}, [one for one in elements if same(one, there)]
    sides = [template(data, scope, paths, depth - 1) for _ in range(2)]
    if kind == "list":
        return [side[0] for side in sides], [side[1] for side in sides]
    return condition(kind, *sides)


def condition(kind: str, left: tuple[Any, Any], right: tuple[Any, Any]) -> tuple[Any, bool]:
    """A condition on two values, and what it comes to."""
    (one, there), (other, beside) = left, right
    equal = same(there, beside)
    if kind == "in":
        return {"$in": [one, [other]]}, equal
    if kind == "not":
        return {"$not": {"$or": [False, {"$and": [True, {"$eq": [one, other]}]}]}}, not equal
    return {f"${kind}": [one, other]}, equal if kind == "eq" else not equal


@settings(PATIENT, max_examples=examples(150))
@given(data=st.data(), scope=st.dictionaries(ROOTS, documents, min_size=1))
def test_references_are_resolved_wherever_they_stand(data: st.DataObject, scope: dict[str, Any]):
    """The result is the template with each operator replaced, and exactly the paths in it were needed."""
    paths: list[Path] = []
    value, expected = template(data, scope, paths)
    assert same(resolve(value, scope, where="a.inputs"), expected)
    assert paths_in(value) == list(dict.fromkeys(paths))
    needed = {path.root: scope[path.root] for path in paths}
    assert same(resolve(value, needed, where="a.inputs"), expected)


@settings(PATIENT)
@given(value=documents.filter(is_plain))
def test_what_has_no_reference_is_the_very_same_object(value: Any):
    """Nothing is copied, and no scope is asked for."""
    assert resolve(value, {}, where="a.inputs") is value
    assert paths_in(value) == []


@settings(PATIENT)
@given(literal=documents)
def test_any_literal_can_be_written(literal: Any):
    """`$value` takes whatever stands in it, keys that begin with `$` among them."""
    assert resolve({"x": {"$value": literal}}, {}, where="a.inputs")["x"] is literal
    assert paths_in({"x": {"$value": literal}}) == []


@settings(PATIENT)
@given(root=ROOTS, steps=st.lists(KEYS | st.integers(-999_999_999, 999_999_999)))
def test_a_path_can_be_written_for_every_key(root: str, steps: list[str | int]):
    """Dots, blanks, quotes, brackets, other alphabets: what a path says is read back as it was meant."""
    path = Path(root, tuple(steps))
    assert Path.parse(str(path)) == path


@settings(PATIENT)
@given(text=st.text() | st.text("abc.[]\"'$0-1 \\"))
def test_any_text_is_a_path_or_refused(text: str):
    """Nothing but ValueError, and what is a path means one thing only."""
    try:
        path = Path.parse(text)
    except ValueError:
        return
    assert Path.parse(str(path)) == path


OPERATORS = ["$from", "$value", "$filter", "$eq", "$and", "$not", "$gt", "$in", "$x", "in", "where", "a"]
NEARLY_OPERATORS = st.recursive(
    st.sampled_from(["plan", "it.x", "", "a..b", None, 1, [], {}]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(OPERATORS), inner, max_size=2)
    ),
    max_leaves=12,
)


@settings(PATIENT, max_examples=examples(150))
@given(value=NEARLY_OPERATORS)
def test_malformed_operators_never_pass(value: Any):
    """What is unsound fails when it is resolved, but where nobody looks: behind what decides."""
    found = list(references_in(value))
    scope = {one.path.root: ABSENT for one in found if one.path is not None}
    try:
        resolve(value, scope, where="a.inputs")
    except RefError:
        return
    assert all(one.wrong is None for one in found) or any(word in str(value) for word in ("$filter", "$and"))


@settings(PATIENT)
@given(left=documents, right=documents)
def test_equality_is_that_of_json(left: Any, right: Any):
    """Everything equals itself; it is symmetric; and true is not 1."""
    assert same(left, left)
    assert same(left, right) == same(right, left)
    assert not same(True, 1)
    assert not same([0], [False])


@pytest.mark.parametrize("depth", [99])
def test_deep_values_are_resolved(depth: int):
    """As deep as a payload may be."""
    value: Any = {"$from": "inputs.x"}
    for _ in range(depth):
        value = [value]
    result = resolve(value, {"inputs": {"x": 1}}, where="a.inputs")
    for _ in range(depth):
        result = result[0]
    assert result == 1
