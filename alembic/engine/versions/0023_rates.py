"""Who set a rate and why, and an index of the patterns alone."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

TABLE = "rate_limits"


def upgrade() -> None:
    op.add_column(TABLE, sa.Column("updated_by", sa.Text(), nullable=True))
    op.add_column(TABLE, sa.Column("reason", sa.Text(), nullable=True))
    op.add_column(
        TABLE,
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
    )
    op.create_index(
        "ix_rate_limits_patterns",
        TABLE,
        ["rate_key"],
        unique=False,
        postgresql_where=sa.text("right(rate_key, 1) = '*'"),
    )


def downgrade() -> None:
    op.drop_index("ix_rate_limits_patterns", TABLE, if_exists=True)
    for column in ("updated_at", "reason", "updated_by"):
        op.execute(f"ALTER TABLE IF EXISTS {TABLE} DROP COLUMN IF EXISTS {column}")
