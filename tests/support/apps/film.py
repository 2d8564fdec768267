"""A film, whose scenes are runs of their own; `film_app` is the host app that knows them."""

from __future__ import annotations

from typing import Any


def task(node_id: str, module: str, **more: Any) -> dict[str, Any]:
    """A node that is told its name, and where to write what it does."""
    told = {"directory": {"$from": "inputs.directory"}, "name": node_id}
    return {"id": node_id, "module": module, "inputs": told, **more}


SCENE: dict[str, Any] = {
    "name": "scene",
    "inputs": {"directory": {"type": "string"}},
    "nodes": [
        task("shoot", "polite"),
        task("colour", "echo", queue="gpu"),
        task("sound", "echo", depends_on=["shoot"]),
    ],
}
FILM: dict[str, Any] = {
    "name": "film",
    "inputs": {"directory": {"type": "string"}},
    "nodes": [
        task("write", "polite"),
        task("build", "deaf"),
        {
            "id": "scene",
            "type": "workflow",
            "workflow": "scene",
            "inputs": {"directory": {"$from": "inputs.directory"}},
        },
        task("draw", "echo", queue="gpu", for_each=[1, 2, 3]),
        {"id": "approve", "type": "input"},
        {"id": "nap", "type": "wait", "seconds": 3600},
        task("print", "echo", depends_on=["write"]),
        task("tidy", "echo", depends_on=["build"], when="all_done"),
    ],
}

FLOP: dict[str, Any] = {
    "name": "flop",
    "nodes": [
        {
            "id": "try",
            "module": "picky",
            "inputs": {"ok": {"$from": "inputs.ok"}},
            "retry": {"max_attempts": 1},
        }
    ],
}
