"""A host app with the second version of a durable function, as a task and as a node, and not the first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from queue_workflows import ingest_task, set_node_resolver


@ingest_task("both")
def both(reason: str | None) -> None:
    """No durable one."""


@ingest_task("long", durable=True, version="2")
def long(reason: str | None, args: dict[str, Any], *, ctx: Any) -> None:
    ctx.step("b", str)


def _node(inputs: dict[str, Any], *, ctx: Any = None) -> dict[str, Any]:
    return {}


set_node_resolver({"both": _node, "long": SimpleNamespace(run=_node, DURABLE=True, VERSION="2")}.get)
