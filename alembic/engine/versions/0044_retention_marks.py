"""How far retention has come, so that a look for what is to be pruned begins there; failures by when they ended.

The index of these is in words that no other index serves: the planner read all that ever failed, or all that ended.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from queue_workflows.db.migrations.beside_writers.indexes import replace_index

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None

TABLES = ("workflow_node_jobs", "ingest_jobs")
FAILED = "((finished_at AT TIME ZONE 'UTC'), id) WHERE status IN ('failed', '')"
FAILED_BEFORE = "(finished_at, id) WHERE status = 'failed'"


def upgrade() -> None:
    for table in TABLES:
        replace_index(f"ix_{table}_failed_at", table, FAILED)
    op.create_table(
        "retention_marks",
        sa.Column("family", sa.Text(), nullable=False),
        sa.Column("seen_before", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("family IN ('node', 'ingest')", name=op.f("ck_retention_marks_family")),
        sa.PrimaryKeyConstraint("family", name=op.f("pk_retention_marks")),
        if_not_exists=True,
    )


def downgrade() -> None:
    for table in TABLES:
        replace_index(f"ix_{table}_failed_at", table, FAILED_BEFORE)
    op.execute("DROP TABLE IF EXISTS retention_marks")
