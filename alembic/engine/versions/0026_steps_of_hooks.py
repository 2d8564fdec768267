"""Steps that pass at the end of first attempts, and the claim of hooks by host and apart from the background."""

from __future__ import annotations

from alembic import op

from queue_workflows.db.migrations.beside_writers.indexes import build_index, drop_index

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
    op.execute(
        "ALTER TABLE workflow_nodes ADD COLUMN IF NOT EXISTS jobs_attempted integer NOT NULL DEFAULT 0"
    )


def downgrade() -> None:
    drop_index("ix_workflow_node_jobs_hooks")
    op.execute("ALTER TABLE IF EXISTS workflow_nodes DROP COLUMN IF EXISTS jobs_attempted")
