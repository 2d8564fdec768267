"""Everything that a document may get wrong, and the words in which it is told."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.reference.examples import PATIENT, examples
from support.reference.json_values import documents

from queue_workflows.errors import DocumentError
from queue_workflows.workflow.document.load import load_document

REF = {"$from": "a.x"}
SEED: dict[str, Any] = {
    "name": "film",
    "inputs": {"brief": {"type": "string", "default": "x"}},
    "nodes": [
        {"id": "a", "module": "m", "inputs": {"b": {"$from": "inputs.brief"}}, "retry": {"max_attempts": 2}},
        {"id": "b", "module": "m", "for_each": REF, "inputs": {"x": [{"$from": "item"}]}, "labels": {}},
        {"id": "c", "type": "input", "schema": {"ok": {"type": "boolean"}}, "depends_on": ["b"]},
        {"id": "d", "type": "wait", "until": {"$from": "c.when"}},
        {"id": "e", "type": "workflow", "workflow": "w", "skip_if": {"$eq": [{"$from": "c.ok"}, False]}},
    ],
    "outputs": {"x": {"$filter": {"in": {"$from": "b"}, "where": {"$ne": [{"$from": "it.y"}, None]}}}},
}
del SEED["nodes"][1]["labels"]


def told(document: Any) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        load_document(document)
    return [str(problem).removeprefix("the document: ") for problem in caught.value.problems]


def with_node(**fields: Any) -> dict[str, Any]:
    """A sound document with a node `b` of these fields; it follows the task `a`."""
    node = {"id": "b", **({} if "type" in fields else {"module": "m"}), **fields}
    return {"name": "w", "inputs": {"brief": {}}, "nodes": [{"id": "a", "module": "m"}, node]}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"module": None}, "field module: is missing"),
        ({"module": ""}, "field module: must be a name, without blanks around it and control characters"),
        ({"module": 3}, "field module: must be a text, not 3"),
        ({"modul": "m"}, "field modul: there is no such field; did you mean 'module'?"),
        ({"foo": 1}, "field foo: there is no such field; there are id, depends_on, when, "),
        ({"type": "task", "seconds": 3, "module": "m"}, "field seconds: is not for nodes of type task,"),
        ({"type": "wait", "seconds": 3, "for_each": []},
         "field for_each: is not for nodes of type wait, only for task and workflow"),
        ({"type": "waite"}, "field type: there is no type 'waite'; did you mean 'wait'?"),
        ({"type": "zzz"}, "field type: there is no type 'zzz'; there are task, input, wait, workflow"),
        ({"type": None}, "field type: there is no type null; there are task, input, wait, workflow"),
        ({"type": ["task"]}, "field type: there is no type a list; there are task, input, wait, workflow"),
        ({"queue": "gpuu"}, "field queue: must be cpu, gpu or hooks, not 'gpuu'"),
        ({"queue": 3}, "field queue: must be cpu, gpu or hooks, not 3"),
        ({"depends_on": "a"}, "field depends_on: must be a list, not 'a'"),
        ({"depends_on": [3]}, "field depends_on[0]: must be a text, not 3"),
        ({"depends_on": ["aa"]}, "field depends_on[0]: there is no node 'aa'; did you mean 'a'?"),
        ({"depends_on": ["inputs"]},
         "field depends_on[0]: cannot be 'inputs', which references use for something else"),
        ({"when": "all_success_"}, "field when: must be all_success, all_done or any_success, not"),
        ({"on_failure": True}, "field on_failure: must be fail_fast or continue, not true"),
        ({"inputs": []}, "field inputs: must be a mapping, not a list"),
        ({"retry": 3}, "field retry: must be a mapping, not 3"),
        ({"retry": {"max_attempts": 0}}, "field retry.max_attempts: must be greater than or equal to 1,"),
        ({"retry": {"max_attempts": 2.5}}, "field retry.max_attempts: must be a whole number, not 2.5"),
        ({"retry": {"max_attempts": True}}, "field retry.max_attempts: must be a whole number, not true"),
        ({"retry": {"backof_s": 1}}, "field retry.backof_s: there is no such field; did you mean"),
        ({"retry": {"backoff_s": -1}}, "field retry.backoff_s: must be greater than or equal to 0, not -1"),
        ({"timeout_s": 0}, "field timeout_s: must be greater than 0, not 0"),
        ({"timeout_s": "600"}, "field timeout_s: must be a number, not '600'"),
        ({"stall_timeout_s": 1e12}, "field stall_timeout_s: must be less than or equal to 3153600000, not"),
        ({"priority": 10}, "field priority: must be less than or equal to 9, not 10"),
        ({"host_priority": 40_000}, "field host_priority: must be less than or equal to 32767, not 40000"),
        ({"limit_key": "host:*"}, "field limit_key: must name one key: `*` is for the patterns that"),
        ({"background": "yes"}, "field background: must be true or false, not 'yes'"),
        ({"step": -1}, "field step: must be greater than or equal to 0, not -1"),
        ({"skip_if": {"$and": [True, "yes"]}}, "field skip_if: must be a condition, as in {$eq: [{$from:"),
        ({"skip_if": {"$not": []}}, "field skip_if: must be a condition, as in {$eq: [{$from:"),
        ({"skip_if": {"$or": []}}, "field skip_if: $or joins a list of conditions, as in {$or: [{$eq: ["),
        ({"skip_if": {"$in": [1]}}, "field skip_if: $in compares a list of two, as in {$in: [{$from:"),
        ({"skip_if": "yes"}, "field skip_if: must be a condition, as in {$eq: [{$from: approve.ok}, false]}"),
        ({"for_each": 3}, "field for_each: must be a list or a reference to one"),
        ({"skip_if": {"ok": True}}, "field skip_if: must be a condition"),
        ({"skip_if": {"$filter": {"in": [], "where": True}}}, "field skip_if: must be a condition"),
        ({"skip_if": {"$value": "yes"}}, "field skip_if: must be a condition"),
        ({"for_each": {"items": []}}, "field for_each: must be a list or a reference to one"),
        ({"for_each": {"$eq": [1, 1]}}, "field for_each: must be a list or a reference to one"),
        ({"for_each": {"$value": 3}}, "field for_each: must be a list or a reference to one"),
        ({"type": "wait", "until": {"at": 3}}, "field until: must be a moment with its zone"),
        ({"type": "wait", "until": 3}, "field until: must be a moment with its zone"),
        ({"inputs": {"x": {"$from": "aa.x"}}}, "field inputs.x: `aa.x`: there is no node 'aa'; did you"),
        ({"inputs": {"x": {"$from": "inputs.breif"}}},
         "field inputs.x: `inputs.breif`: the workflow has no input 'breif'; did you mean 'brief'?"),
        ({"inputs": {"x": {"$from": "run.name"}}},
         "field inputs.x: `run.name`: a run has no 'name'; it has id, workflow, labels, parcel_id,"),
        ({"inputs": {"x": {"$from": "host"}}}, "field inputs.x: `host`: it must say what, as in host.name"),
        ({"inputs": {"x": {"$from": "it"}}}, "field inputs.x: `it`: 'it' is there only in the `where` of"),
        ({"inputs": {"x": {"$from": "item"}}},
         "field inputs.x: `item`: 'item' is there only in the inputs and skip_if of a node with for_each"),
        ({"for_each": {"$from": "item"}},
         "field for_each: `item`: 'item' is there only in the inputs and skip_if of a node with for_each"),
        ({"skip_if": {"$from": "index"}},
         "field skip_if: `index`: 'index' is there only in the inputs and skip_if of a node with for_each"),
        ({"inputs": {"x": [{"$form": "a"}]}},
         "field inputs.x[0]: there is no $form; did you mean '$from'? A literal key like this goes into"),
        ({"inputs": {"$schema": "x"}},
         "field inputs: there is no $schema. A literal key like this goes into $value"),
        ({"inputs": {"x": {"$from": "a.x", "default": 1}}},
         "field inputs.x: $from must be the only key, and beside it is 'default'"),
        ({"inputs": {"x": {"$from": ["a", "x"]}}},
         "field inputs.x: $from takes a path as text, not a list; write it as in plan.scenes[0].title"),
        ({"inputs": {"x": {"$from": "a..x"}}}, "field inputs.x: 'a..x' is no path: it makes no sense from"),
        ({"skip_if": {"$eq": [1]}}, "field skip_if: $eq compares a list of two, as in {$eq: [{$from:"),
        ({"for_each": {"$filter": {"in": []}}}, "field for_each: $filter has `in` and `where`, as in "),
        ({"id": "a"}, "field id: is taken by node #1"),
        ({"id": "a.b"}, "field id: must be a letter or `_`, then up to 127 letters, digits, `_` and `-`,"),
        ({"id": "run"}, "field id: cannot be 'run', which references use for something else"),
        ({"id": 3}, "field id: must be a text, not 3"),
        ({"type": "wait"}, "field seconds: give `seconds` or `until`, and not both"),
        ({"type": "wait", "seconds": 1, "until": REF}, "field seconds: give `seconds` or `until`, and not"),
        ({"type": "wait", "until": "tomorrow"},
         "field until: must be a moment with its zone, as in 2030-01-31T09:00:00Z, or a reference"),
        ({"type": "wait", "until": "9999-12-31T09:00Z"}, "field until: must be a moment with its zone"),
        ({"type": "wait", "until": "2030-01-31T09:00:00"},
         "field until: must be a moment with its zone, as in 2030-01-31T09:00:00Z, or a reference"),
        ({"type": "workflow"}, "field workflow: is missing"),
        ({"type": "input", "schema": {"ok": "boolean"}}, "field schema.ok: must be a JSON Schema such as"),
        ({"type": "input", "schema": {"type": "object"}},
         "field schema.type: must be a JSON Schema such as {type: string}; list the properties themselves"),
        ({"type": "input", "schema": {"ok": {"type": "bool"}}}, "field schema.ok.type: is no JSON Schema: "),
        ({"type": "input", "schema": {"n": {"pattern": "("}}}, "field schema.n.pattern: is no JSON Schema: "),
        ({"type": "input", "schema": {"n": {"$ref": "https://example.org/x"}}},
         'field schema.n["$ref"]: \'https://example.org/x\' leads nowhere; only the schema itself is known'),
        ({"type": "input", "schema": {"n": {"type": "integer", "default": "x"}}},
         "field schema.n.default: must be integer"),
        ({"type": "input", "expires_s": 0}, "field expires_s: must be greater than 0, not 0"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_node(fields: dict[str, Any], said: str):
    """One problem, told by node, field and what to do about it."""
    name = fields.get("id", "b") if isinstance(fields.get("id", "b"), str) else "#2"
    (problem,) = told(with_node(**fields))
    assert problem.startswith(f"node {name!r}, {said}")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": None}, "field name: must be a text, not null"),
        ({"name": " w"}, "field name: must be a name"),
        ({"nodes": []}, "field nodes: must have at least one node"),
        ({"nodes": {"a": {}}}, "field nodes: must be a list, not a mapping"),
        ({"nodes": ["a"]}, "node '#1': a node must be a mapping, not 'a'"),
        ({"nodes": [None]}, "node '#1': a node must be a mapping, not null"),
        ({"node": []}, "field node: there is no such field; did you mean 'nodes'?"),
        ({"inputs": ["brief"]}, "field inputs: must be a mapping, not a list"),
        ({"inputs": {"brief": "string"}}, "field inputs.brief: must be a JSON Schema such as {type: string}"),
        ({"inputs": {"a b": {"type": "text"}}}, 'field inputs["a b"].type: is no JSON Schema: '),
        (
            {"outputs": {"x": {"$from": "aa.x"}}},
            "field outputs.x: `aa.x`: there is no node 'aa'; did you mean 'a'?",
        ),
        ({"outputs": {"x": {"$from": "item"}}}, "field outputs.x: `item`: 'item' is there only in"),
        ({"on_failure": "ignore"}, "field on_failure: must be fail_fast or continue, not 'ignore'"),
        ({"labels": {"team": ["x"]}}, "field labels.team: must be a text, a number, true or false"),
        ({"priority": -1}, "field priority: must be greater than or equal to 0, not -1"),
        ({"pipeline": ""}, "field pipeline: must be a name"),
    ],
)
def test_what_is_wrong_with_the_document(changes: dict[str, Any], said: str):
    """As for nodes, without a node's name."""
    (problem,) = told({"name": "w", "nodes": [{"id": "a", "module": "m"}]} | changes)
    assert problem.startswith(said)


def test_no_problem_hides_another():
    """A misspelt field, an unknown node and a wrong output are told at once, and nothing is told twice."""
    document = with_node(modul="m", depends_on=["c"]) | {"outputs": {"x": {"$from": "bb"}}}
    del document["nodes"][1]["module"]
    assert told(document) == [
        "node 'b', field modul: there is no such field; did you mean 'module'?",
        "node 'b', field depends_on[0]: there is no node 'c'",
        "field outputs.x: `bb`: there is no node 'bb'; did you mean 'b'?",
    ]


def places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a value, its own among them."""
    inner: Any = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    return [place, *(one for key, child in inner for one in places(child, (*place, key)))]


def changed(value: Any, place: tuple[Any, ...], change: Callable[[Any, Any], None]) -> Any:
    """A copy with something done to what holds the place."""
    value = holder = copy.deepcopy(value)
    for step in place[:-1]:
        holder = holder[step]
    change(holder, place[-1])
    return value


PLACES = places(SEED)[1:]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: ".".join(map(str, place)))
def test_any_part_of_a_document_may_be_missing(place: tuple[Any, ...]):
    """The rest is a document, or is refused as one."""
    with suppress(DocumentError):
        load_document(changed(SEED, place, lambda holder, key: holder.pop(key)))


@settings(PATIENT, max_examples=examples(300))
@given(place=st.sampled_from(PLACES), value=documents)
def test_any_part_of_a_document_may_be_anything(place: tuple[Any, ...], value: Any):
    """Whatever stands there, it is taken or refused; and what is taken survives its snapshot."""
    with suppress(DocumentError):
        document = load_document(changed(SEED, place, lambda holder, key: holder.__setitem__(key, value)))
        again = load_document(document.snapshot())
        assert (again, again.hash) == (document, document.hash)


def calls_to_load(document: dict[str, Any]) -> int:
    """How many functions are called while a document is loaded, or refused."""
    count = 0

    def count_call(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(count_call)
    try:
        with suppress(DocumentError):
            load_document(document)
    finally:
        sys.setprofile(before)
    return count


def a_task(number: int, *depends_on: str, **fields: Any) -> dict[str, Any]:
    return {"id": f"n{number}", "module": "m", "depends_on": list(depends_on), **fields}


SHAPES: dict[str, Callable[[int], list[dict[str, Any]]]] = {
    "chain": lambda size: [a_task(n, *([f"n{n - 1}"] if n else [])) for n in range(size)],
    "references": lambda size: [
        a_task(n, inputs={"x": {"$from": f"n{n // 2}.x"}} if n else {}) for n in range(size)
    ],
    "fan-in": lambda size: [*(a_task(n) for n in range(size)), a_task(size, *(f"n{n}" for n in range(size)))],
    "circle": lambda size: [a_task(n, f"n{(n + 1) % size}") for n in range(size)],
    "strangers": lambda size: [a_task(n, f"m{n}") for n in range(size)],
    "typos": lambda size: [a_task(n, quee="cpu") for n in range(size)],
    "namesakes": lambda size: [a_task(0) for n in range(size)],
    "unknown inputs": lambda size: [a_task(n, inputs={"x": {"$from": f"inputs.x{n}"}}) for n in range(size)],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_work_grows_with_the_size_and_no_faster(shape: str):
    """Four times the nodes cost four times the calls, whether the document is sound or not."""
    small, large = (
        calls_to_load({"name": "w", "inputs": {"brief": {}}, "nodes": SHAPES[shape](size)})
        for size in (400, 1600)
    )
    assert large < 4.5 * small


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_hundred_thousand_nodes():
    """As many as a run may have: loaded, stored, hashed and known again."""
    document = load_document({"name": "w", "nodes": SHAPES["references"](100_000)})
    again = load_document(document.snapshot())
    assert len(again.nodes) == 100_000
    assert (again.hash, again.parents["n99999"]) == (document.hash, ("n49999",))
