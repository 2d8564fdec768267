"""The revision that a worker waits for is as new as what it reads."""

from __future__ import annotations

import psycopg
import pytest

from queue_workflows.db import migrations
from queue_workflows.db.migrations.chain.chains import engine_chain
from queue_workflows.repositories.sql.table import Table
from queue_workflows.roles.worker.single import MIN_SCHEMA


@pytest.mark.parametrize("name", ["ingest_jobs", "workflow_node_jobs", "workflow_runs", "worker_heartbeats"])
def test_a_worker_finds_every_column_where_it_starts(empty: str, name: str) -> None:
    """On the oldest schema that it accepts."""
    migrations.upgrade(empty, chains=[engine_chain()], revision=f"{MIN_SCHEMA:04d}")
    table = Table(name)
    with psycopg.connect(empty) as connection:
        assert connection.execute(f"SELECT {table.columns} FROM {table.name}").fetchall() == []
