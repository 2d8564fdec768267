"""Whether a node may go on without its lease while the database is away."""

from __future__ import annotations

from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "ALTER TABLE IF EXISTS workflow_node_jobs"
        " ADD COLUMN IF NOT EXISTS survives_outage boolean NOT NULL DEFAULT false"
    )


def downgrade() -> None:
    op.execute("ALTER TABLE IF EXISTS workflow_node_jobs DROP COLUMN IF EXISTS survives_outage")
