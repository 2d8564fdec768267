"""Held jobs by key in the order of the queue, so that a freed key finds the next one among any number."""

from __future__ import annotations

from queue_workflows.db.migrations.beside_writers.indexes import replace_index

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

TABLES = ("workflow_node_jobs", "ingest_jobs")


def upgrade() -> None:
    for table in TABLES:
        replace_index(
            f"ix_{table}_hold",
            table,
            "(hold_reason, hold_key, priority DESC, position)"
            " WHERE status = 'scheduled' AND hold_reason IS NOT NULL",
        )


def downgrade() -> None:
    for table in TABLES:
        replace_index(
            f"ix_{table}_hold",
            table,
            "(hold_reason, hold_key) WHERE status = 'scheduled' AND hold_reason IS NOT NULL",
        )
