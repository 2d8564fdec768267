"""The flag that a worker was found dead, so that its supervisor can bounce it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "worker_heartbeats", sa.Column("last_flagged_dead_at", sa.DateTime(timezone=True), nullable=True)
    )


def downgrade() -> None:
    op.execute("""
        ALTER TABLE IF EXISTS worker_heartbeats
          DROP COLUMN IF EXISTS last_flagged_dead_at
    """)
