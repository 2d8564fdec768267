"""The second version of a host app: it has a task and a node module that the first one did not have.

The task reads a column that its revision added to the app's own table.
"""

from __future__ import annotations

import os
from typing import Any

import psycopg

from queue_workflows import configure, ingest_task, set_node_module_package

VERSION = "1.9"
configure(app_version=VERSION)
set_node_module_package("support.versions.nodes_two")


@ingest_task("both")
def both(reason: str | None) -> dict[str, Any]:
    return {"app": VERSION}


@ingest_task("added")
def added(reason: str | None) -> dict[str, Any]:
    if reason is None:
        return {"app": VERSION}
    with psycopg.connect(os.environ["QWF_DB_URL"], autocommit=True) as connection:
        row = connection.execute("SELECT colour FROM app_things WHERE name = %s", [reason]).fetchone()
    return {"app": VERSION, "colour": row and row[0]}
