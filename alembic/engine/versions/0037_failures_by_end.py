"""Failed jobs by when they ended: what failed lately is found beside any number that ended well or long ago."""

from __future__ import annotations

from queue_workflows.db.migrations.beside_writers.indexes import build_index, drop_index

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None

TABLES = ("workflow_node_jobs", "ingest_jobs")
FAILED = "(finished_at, id) WHERE status = 'failed'"


def upgrade() -> None:
    for table in TABLES:
        build_index(f"ix_{table}_failed_at", table, FAILED)


def downgrade() -> None:
    for table in TABLES:
        drop_index(f"ix_{table}_failed_at")
