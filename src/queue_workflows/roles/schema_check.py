"""What a role needs of the schema before it begins: nearly always there, and then seen in one statement."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import psycopg

from queue_workflows import db
from queue_workflows.db.connections.engine import Database
from queue_workflows.db.shipped_chain import is_at_head
from queue_workflows.errors import QwfError
from queue_workflows.models.columns import TYPES


def is_as_shipped(connection: psycopg.Connection[Any]) -> bool:
    """Whether the engine's schema is at the head of this code's chain, with all its tables."""
    return is_at_head(connection, TYPES)


def is_ready(database: Database) -> bool:
    """Whether the schema of this database is as shipped; False as well where no server answers."""
    try:
        connection = database.connect(autocommit=True)
    except QwfError:
        return False
    with closing(connection):
        return is_as_shipped(connection)


def wait_for_schema(database: Database, min_version: int, within_s: float) -> None:
    """Wait until the engine's schema is at `min_version`; raises the error that says why it will not do."""
    if not is_ready(database):
        db.wait_for_schema(min_version, within_s, engine=database.engine)
