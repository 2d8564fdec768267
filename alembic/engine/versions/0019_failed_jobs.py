"""Failed jobs by id, so that a list of them never reads what has ended well."""

from __future__ import annotations

from queue_workflows.db.migrations.beside_writers.indexes import build_index, drop_index

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

TABLES = ("workflow_node_jobs", "ingest_jobs")


def upgrade() -> None:
    for table in TABLES:
        build_index(f"ix_{table}_failed", table, "(id) WHERE status = 'failed'")


def downgrade() -> None:
    for table in TABLES:
        drop_index(f"ix_{table}_failed")
