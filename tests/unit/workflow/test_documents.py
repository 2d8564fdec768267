"""A workflow's document: what it may say, what is refused and in which words, and what a run keeps of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from queue_workflows.errors import DocumentError, PayloadError
from queue_workflows.workflow.document.load import CompiledDocuments, OnFailure, When, load_document

FILM = """\
name: film
inputs: {brief: {type: string}}
nodes:
  - {id: plan, module: planner, queue: cpu, inputs: {brief: {$from: inputs.brief}}}
  - id: draw
    module: draw
    queue: gpu
    model: sdxl
    for_each: {$from: plan.scenes}
    inputs: {scene: {$from: item}}
    retry: {max_attempts: 3, backoff_s: 10}
    timeout_s: 600
    stall_timeout_s: 120
  - {id: approve, type: input, depends_on: [draw], schema: {ok: {type: boolean}}, expires_s: 86400}
  - {id: publish, module: publish, depends_on: [approve], skip_if: {$eq: [{$from: approve.ok}, false]}}
  - {id: tidy, module: tidy, depends_on: [publish], when: all_done}
outputs: {url: {$from: publish.url}}
"""


def refused(source: Any, **kwargs: Any) -> list[str]:
    """The problems of a document that must be refused."""
    with pytest.raises(DocumentError) as caught:
        load_document(source, **kwargs)
    return [str(problem).removeprefix("the document").removeprefix(": ") for problem in caught.value.problems]


def a_node(**fields: Any) -> dict[str, Any]:
    """A document of one task with these fields."""
    return {"name": "w", "nodes": [{"id": "a", "module": "m", **fields}]}


def test_the_document_of_the_design():
    """All of it is understood, and who waits for whom follows from depends_on and references."""
    document = load_document(FILM)
    assert dict(document.parents) == {
        "plan": (),
        "draw": ("plan",),
        "approve": ("draw",),
        "publish": ("approve",),
        "tidy": ("publish",),
    }
    assert [(node.id, node.type, node.when) for node in document.nodes] == [
        ("plan", "task", When.ALL_SUCCESS),
        ("draw", "task", When.ALL_SUCCESS),
        ("approve", "input", When.ALL_SUCCESS),
        ("publish", "task", When.ALL_SUCCESS),
        ("tidy", "task", When.ALL_DONE),
    ]
    assert document.on_failure_of(document.by_id["tidy"]) is OnFailure.FAIL_FAST


def test_a_dict_a_text_and_a_file_say_the_same(tmp_path: Path):
    """Whatever a document is read from, it is the same document, with the same hash."""
    path = tmp_path / "film.yaml"
    path.write_text(FILM)
    document = load_document(FILM)
    others = [path, document.snapshot(), json.dumps(document.snapshot())]
    assert [load_document(other) for other in others] == [document] * 3
    assert {load_document(other).hash for other in others} == {document.hash}


def test_every_problem_is_told_with_its_line_node_and_field():
    """A typo is met with what was probably meant, and no problem hides another."""
    wrong = (
        FILM.replace("queue: cpu", "quee: cpu")
        .replace("max_attempts: 3", 'max_attempts: "3"')
        .replace("type: input", "type: inptu")
        .replace("all_done", "all_dne")
    )
    assert refused(wrong) == [
        ", line 4: node 'plan', field quee: there is no such field; did you mean 'queue'?",
        ", line 11: node 'draw', field retry.max_attempts: must be a whole number, not '3'",
        ", line 14: node 'approve', field type: there is no type 'inptu'; did you mean 'input'?",
        ", line 16: node 'tidy', field when: must be all_success, all_done or any_success, not 'all_dne'",
    ]


def test_a_problem_names_the_file(tmp_path: Path):
    """As editors and shells understand it: file and line."""
    path = tmp_path / "film.yaml"
    path.write_text(FILM.replace("plan.scenes", "paln.scenes"))
    assert refused(path) == [
        f"{path}:9: node 'draw', field for_each: `paln.scenes`: there is no node 'paln'; did you mean 'plan'?"
    ]


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ({"a": ["a"]}, "node 'a', field depends_on: waits for itself: a → a"),
        ({"a": ["b"], "b": ["a"]}, "node 'a', field depends_on: waits for itself: a → b → a"),
        (
            {"x": ["a"], "a": ["b"], "b": ["c"], "c": ["a"]},
            "node 'a', field depends_on: waits for itself: a → b → c → a",
        ),
    ],
)
def test_circles_are_refused(nodes: dict[str, list[str]], said: str):
    """Nodes that wait for each other would wait for ever; the circle itself is shown."""
    listed = [{"id": name, "module": "m", "depends_on": above} for name, above in nodes.items()]
    assert refused({"name": "w", "nodes": listed}) == [said]


def test_a_run_keeps_what_loads_again_whatever_the_database_does_to_it():
    """A snapshot is small, survives reordered keys and other spellings of a number, and keeps its hash."""
    document = load_document(a_node(inputs={"x": 100.0, "y": 1e300, "z": [0.1, True, None]}))
    from_jsonb = {
        "nodes": [{"inputs": {"z": [0.1, True, None], "y": 10**300, "x": 100}, "module": "m", "id": "a"}],
        "name": "w",
    }
    assert document.snapshot() == a_node(inputs={"x": 100.0, "y": 1e300, "z": [0.1, True, None]})
    assert load_document(from_jsonb).hash == document.hash


def test_compiled_documents_are_parsed_once_and_bounded():
    """A run's events do not parse its snapshot again, and the memory for that has an end."""
    documents = [load_document(a_node() | {"name": f"w{number}"}) for number in range(4)]
    kept = CompiledDocuments(max_nodes=6)
    first = [kept.compiled(one.snapshot(), one.hash) for one in documents]
    assert first == documents
    assert kept.compiled({}, documents[3].hash) is first[3]
    assert [kept.find(one.hash) is not None for one in documents] == [False, True, True, True]


def test_a_hash_that_is_not_the_snapshots_own_is_not_believed():
    """A host app that writes rows by itself cannot make one run follow the document of another."""
    kept = CompiledDocuments()
    one, other = load_document(a_node()), load_document(a_node(priority=1))
    kept.compiled(one.snapshot(), "same")
    assert kept.compiled(other.snapshot(), "same") == other


def test_inputs_are_checked_and_filled_in():
    """What a run is started with is as the document says: complete, of the right types, nothing else."""
    document = load_document(
        a_node() | {"inputs": {"brief": {"type": "string"}, "size": {"type": "integer", "default": 3}}}
    )
    assert document.checked_inputs({"brief": "x"}) == {"brief": "x", "size": 3}
    with pytest.raises(PayloadError) as wrong:
        document.checked_inputs({"breif": 1, "size": "x"})
    assert str(wrong.value) == (
        "inputs.brief is missing; inputs.size must be integer; "
        "inputs.breif is not asked for; did you mean 'brief'?"
    )
    assert load_document(a_node()).checked_inputs({"anything": 1}) == {"anything": 1}


def test_a_document_is_a_copy_of_what_it_was_made_from():
    """Who changes the dict afterwards changes no workflow; and a tuple is a list, references in it too."""
    inputs: dict[str, Any] = {"x": [1], "y": ({"$from": "b.z"},)}
    source = a_node(inputs=inputs)
    source["nodes"].append({"id": "b", "module": "m", "depends_on": ()})
    document = load_document(source)
    inputs["x"].append(2)
    assert document.snapshot()["nodes"][0]["inputs"] == {"x": [1], "y": [{"$from": "b.z"}]}
    assert document.parents["a"] == ("b",)
    assert load_document(document.snapshot()) == document


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([{"id": "a", "depends_on": ["b"]}], "there is no node 'b'"),
        ([{"id": "a"}, {"id": "a"}], "is taken by node #1"),
        ([{"id": "a", "depends_on": ["a"]}], "waits for itself: a → a"),
        ([{"id": "a", "modul": "m"}], "there is no such field"),
    ],
)
def test_a_snapshot_that_nobody_could_walk_through(nodes: list[dict[str, Any]], said: str):
    """A row that a host app wrote by itself is refused as such, and the planner never sees it."""
    with pytest.raises(DocumentError, match=f"the run's snapshot: .*{said}"):
        CompiledDocuments().compiled({"name": "w", "nodes": [{"module": "m"} | node for node in nodes]}, "x")


def test_a_snapshot_of_an_older_version_is_taken():
    """What a stricter version would refuse at load goes on where it runs already."""
    nodes = [{"id": "a", "module": "m", "inputs": {"x": {"$from": "inputs.gone"}}, "skip_if": "yes"}]
    snapshot = {"name": "w", "inputs": {}, "nodes": nodes}
    with pytest.raises(DocumentError):
        load_document(snapshot)
    assert CompiledDocuments().compiled(snapshot, "x").nodes[0].id == "a"
