"""Documents of any shape whose nodes do what a script in them says."""

from __future__ import annotations

from random import Random
from typing import Any

MODULE = "scripted"
_DOES = ("complete",) * 6 + ("fail", "fail", "skip", "fail once")


def random_workflow(chance: Random, name: str) -> dict[str, Any]:
    """Up to a dozen nodes of every type: lists, conditions, every `when`, both ways to fail."""
    nodes: list[dict[str, Any]] = []
    for number in range(chance.randint(1, 12)):
        nodes.append(_node(chance, f"n{number}", nodes))
    return {
        "name": name,
        "on_failure": chance.choice(("continue", "fail_fast")),
        "nodes": nodes,
        "outputs": {"last": {"$from": nodes[-1]["id"]}},
    }


def child(does: str) -> dict[str, Any]:
    """A workflow of two nodes that ends so."""
    script = {"does": does, "number": 0, "s": 0.01}
    nodes = [
        {"id": "first", "module": "scripted", "inputs": {"script": script | {"does": "complete"}}},
        {
            "id": "last",
            "module": "scripted",
            "inputs": {"script": script, "above": {"$from": "first.value"}},
            "retry": {"max_attempts": 1},
        },
    ]
    return {"name": f"child-{does}", "nodes": nodes, "outputs": {"value": {"$from": "last.value"}}}


def _node(chance: Random, node_id: str, above: list[dict[str, Any]]) -> dict[str, Any]:
    parents = chance.sample(above, min(len(above), chance.randint(0, 3)))
    node: dict[str, Any] = {"id": node_id, "when": chance.choice(("all_success", "all_done", "any_success"))}
    if chance.random() < 0.3:
        node["on_failure"] = chance.choice(("continue", "fail_fast"))
    tasks = [parent for parent in parents if "module" in parent and "for_each" not in parent]
    if chance.random() < 0.2:
        return node | {"depends_on": _ids(parents)} | _without_worker(chance)
    if tasks and chance.random() < 0.2:
        node["skip_if"] = _is_null(chance, {"$from": f"{tasks[0]['id']}.value"})
    node |= {
        "module": MODULE,
        "retry": {"max_attempts": 2, "backoff_s": 0},
        "inputs": {
            "script": _script(chance, 0),
            "above": [{"$from": parent["id"]} for parent in parents if parent.get("type") != "wait"],
        },
        "depends_on": _ids(parents),
    }
    if chance.random() < 0.3:
        _as_list(chance, node, tasks)
    return node


def _without_worker(chance: Random) -> dict[str, Any]:
    return chance.choice(
        (
            {"type": "wait", "seconds": chance.choice((0, 0.2))},
            {"type": "input", "schema": {"by": {"type": "string"}}},
            {"type": "workflow", "workflow": chance.choice(("child-complete", "child-fail"))},
        )
    )


def _as_list(chance: Random, node: dict[str, Any], tasks: list[dict[str, Any]]) -> None:
    """Of its own elements, or of those that a node above it yields; some elements are skipped unseen."""
    if tasks and chance.random() < 0.5:
        node["for_each"] = {"$from": f"{tasks[-1]['id']}.list"}
    else:
        node["for_each"] = {
            "$value": [_script(chance, number) for number in range(chance.choice((0, 1, 3, 6)))]
        }
    node["inputs"] |= {"script": {"$from": "item"}, "index": {"$from": "index"}}
    node.pop("skip_if", None)
    if chance.random() < 0.5:
        node["skip_if"] = {"$eq": [{"$from": "item.does"}, "skip"]}


def _is_null(chance: Random, ref: dict[str, Any]) -> dict[str, Any]:
    """One of the ways to ask whether there is nothing; each names its reference first."""
    equal = {"$eq": [ref, None]}
    return chance.choice(
        [
            equal,
            {"$in": [ref, [None]]},
            {"$and": [equal, {"$not": {"$ne": [ref, None]}}]},
            {"$or": [False, equal]},
        ]
    )


def _script(chance: Random, number: int) -> dict[str, Any]:
    script = {"does": chance.choice(_DOES), "number": number, "s": round(chance.uniform(0, 0.03), 3)}
    if number == 0:
        elements = range(1, chance.choice((1, 2, 5)))
        script["list"] = [_script(chance, element) for element in elements]
    return script


def _ids(nodes: list[dict[str, Any]]) -> list[str]:
    return [node["id"] for node in nodes]
