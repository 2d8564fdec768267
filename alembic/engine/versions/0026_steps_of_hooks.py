"""Steps that pass at the end of first attempts, and the claim of hooks by host and apart from the background."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "workflow_nodes",
        sa.Column("jobs_attempted", sa.Integer(), server_default=sa.text("0"), nullable=False),
    )
    op.execute("""
        CREATE INDEX ix_workflow_node_jobs_hooks
        ON workflow_node_jobs (COALESCE(pinned_host, ''), background, priority DESC, position)
        WHERE status = 'queued' AND queue = 'hooks'
    """)


def downgrade() -> None:
    op.execute("DROP INDEX IF EXISTS ix_workflow_node_jobs_hooks")
    op.execute("ALTER TABLE IF EXISTS workflow_nodes DROP COLUMN IF EXISTS jobs_attempted")
