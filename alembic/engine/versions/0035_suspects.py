"""Suspects are claimed after all others, and found in an index of their own."""

from __future__ import annotations

from queue_workflows.db.migrations.beside_writers.indexes import build_index, drop_index

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None

TABLES = ("workflow_node_jobs", "ingest_jobs")
SUSPECTS = (
    "(queue, crash_count, priority DESC, position) WHERE COALESCE(status = 'queued' AND suspect, false)"
)


def upgrade() -> None:
    for table in TABLES:
        build_index(f"ix_{table}_suspect", table, SUSPECTS)


def downgrade() -> None:
    for table in TABLES:
        drop_index(f"ix_{table}_suspect")
