"""A workflow with a child, for tests of traces."""

from __future__ import annotations

from typing import Any, Final

FILMS: Final[dict[str, dict[str, Any]]] = {
    "film": {
        "name": "film",
        "nodes": [
            {"id": "plan", "module": "note", "queue": "cpu"},
            {"id": "part", "type": "workflow", "workflow": "part", "depends_on": ["plan"]},
        ],
    },
    "part": {"name": "part", "nodes": [{"id": "draw", "module": "note", "queue": "cpu"}]},
}
