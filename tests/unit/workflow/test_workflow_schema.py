"""The JSON Schema of documents passes what we take, and refuses what an editor can see to be wrong."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from queue_workflows.workflow.document.json_schema import document_schema
from queue_workflows.workflow.document.load import load_document
from queue_workflows.workflow.document.nodes import TYPES

SCHEMA = document_schema()
EVERYTHING: dict[str, Any] = {
    "x-defaults": {"anything": 1},
    "name": "film",
    "description": "All fields at once.",
    "inputs": {"brief": {"type": "string"}, "size": {"type": "integer", "default": 3}},
    "nodes": [
        {
            "id": "plan",
            "module": "planner",
            "queue": "gpu",
            "model": "sdxl",
            "inputs": {"brief": {"$from": "inputs.brief"}},
            "for_each": [1, 2],
            "skip_if": {"$eq": [{"$from": "item"}, 2]},
            "retry": {"max_attempts": 3, "backoff_s": 0.5},
            "timeout_s": 600,
            "stall_timeout_s": 60.5,
            "survives_outage": True,
            "max_crashes": 2,
            "at_most_once": False,
            "priority": 9,
            "host_priority": -1,
            "limit_key": "host:example.org",
            "host_lock": "gpu0",
            "plugin": "p",
            "step": 1,
            "background": True,
            "sessions": ["a"],
            "when": "all_done",
            "on_failure": "continue",
        },
        {"id": "book", "module": "m", "exclusive": "ledger", "host_lock": {"name": {"$value": 1}}},
        {"id": "ask", "type": "input", "schema": {"ok": {"type": "boolean"}}, "expires_s": 60, "prompt": "?"},
        {"id": "nap", "type": "wait", "seconds": 0},
        {"id": "until", "type": "wait", "until": "2030-01-31T09:00:00Z", "depends_on": ["nap"]},
        {"id": "sub", "type": "workflow", "workflow": "short", "inputs": {}, "for_each": [], "priority": 0},
        {
            "id": "sealed",
            "type": "seal",
            "step": 2,
            "depends_on": ["plan"],
            "when": "all_done",
        },
        {"id": "below", "type": "descendants", "step": 3, "depends_on": ["sealed"], "always": True},
    ],
    "outputs": {"plan": {"$from": "plan"}},
    "on_failure": "continue",
    "pipeline": "p",
    "labels": {"team": "film", "year": 2026, "paid": True},
    "priority": 3,
    "max_open_runs": 4,
}


def test_the_schema_is_a_schema():
    """Any validator of the draft takes it."""
    Draft202012Validator.check_schema(SCHEMA)


def test_all_that_a_document_may_say_passes():
    """Every field of every type of node, in a document that we take too."""
    said = {node.get("type", "task"): set(node) for node in EVERYTHING["nodes"]}
    # Only one of `exclusive` and `limit_key`.
    said["task"] |= set(EVERYTHING["nodes"][0])
    said["wait"] = {"id", "type", "seconds", "until", "depends_on"}
    common = {"when", "on_failure", "skip_if", "depends_on", "type", "id"}
    for kind, model in TYPES.items():
        assert {field.alias or name for name, field in model.model_fields.items()} - common <= said[kind]
    load_document(EVERYTHING)
    Draft202012Validator(SCHEMA).validate(EVERYTHING)
    Draft202012Validator(SCHEMA).validate(load_document(EVERYTHING).snapshot())


@pytest.mark.parametrize(
    "wrong",
    [
        {"nodes": [{"id": "a", "modul": "m"}]},
        {"nodes": [{"module": "m"}]},
        {"nodes": [{"id": "a.b", "module": "m"}]},
        {"nodes": [{"id": "a", "type": "inptu"}]},
        {"nodes": [{"id": "a", "module": "m", "queue": "fetch"}]},
        {"nodes": [{"id": "a", "module": "m", "retry": {"max_attempts": 0}}]},
        {"nodes": [{"id": "a", "type": "input", "for_each": []}]},
        {"nodes": [{"id": "a", "type": "workflow"}]},
        {"nodes": {"a": {"module": "m"}}},
        {"nodes": [], "on_failure": "stop"},
        {"nodes": [], "input": {}},
        {"nodes": [], "inputs": {"a": {"type": "text"}}},
    ],
)
def test_what_is_wrong_is_seen_in_an_editor(wrong: dict[str, Any]):
    """Typos, missing fields and wrong values, before anything of ours has looked at it."""
    assert list(Draft202012Validator(SCHEMA).iter_errors({"name": "w", **wrong}))
