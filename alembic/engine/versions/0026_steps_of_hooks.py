"""Steps that pass at the end of first attempts, and the claim of hooks by host and apart from the background."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from queue_workflows.db.migrations.indexes import build_index, drop_index

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    build_index(
        "ix_workflow_node_jobs_hooks",
        "workflow_node_jobs",
        "(COALESCE(pinned_host, ''), background, priority DESC, position)"
        " WHERE status = 'queued' AND queue = 'hooks'",
    )
    op.add_column(
        "workflow_nodes",
        sa.Column("jobs_attempted", sa.Integer(), server_default=sa.text("0"), nullable=False),
    )


def downgrade() -> None:
    drop_index("ix_workflow_node_jobs_hooks")
    op.execute("ALTER TABLE IF EXISTS workflow_nodes DROP COLUMN IF EXISTS jobs_attempted")
