"""The first version of a host app: it has a task and a node module that the second one dropped."""

from __future__ import annotations

from typing import Any

from queue_workflows import configure, ingest_task, set_node_module_package

VERSION = "1.8"
configure(app_version=VERSION)
set_node_module_package("support.versions.nodes_one")


@ingest_task("both")
def both(reason: str | None) -> dict[str, Any]:
    return {"app": VERSION}


@ingest_task("dropped")
def dropped(reason: str | None) -> dict[str, Any]:
    return {"app": VERSION}
