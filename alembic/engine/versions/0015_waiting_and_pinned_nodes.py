"""Node jobs that wait for an answer until a certain time, and those that only one host may run."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workflow_node_jobs", sa.Column("pinned_host", sa.Text(), nullable=True))
    op.add_column("workflow_node_jobs", sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True))
    op.create_index(
        "ix_workflow_node_jobs_awaiting",
        "workflow_node_jobs",
        ["expires_at"],
        unique=False,
        postgresql_where=sa.text("status = 'awaiting_input'"),
    )


def downgrade() -> None:
    op.drop_index("ix_workflow_node_jobs_awaiting", "workflow_node_jobs", if_exists=True)
    op.execute("""
        ALTER TABLE IF EXISTS workflow_node_jobs
          DROP COLUMN IF EXISTS expires_at,
          DROP COLUMN IF EXISTS pinned_host
    """)
