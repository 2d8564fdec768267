"""Whose code declares a schedule, in which version, and whether somebody who runs that code is alive."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("schedules", sa.Column("declared_by", sa.Text(), nullable=True))
    op.add_column("schedules", sa.Column("declaration", sa.Text(), nullable=True))
    op.add_column("schedules", sa.Column("declared_until", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    op.execute("""
        ALTER TABLE IF EXISTS schedules
          DROP COLUMN IF EXISTS declared_until,
          DROP COLUMN IF EXISTS declaration,
          DROP COLUMN IF EXISTS declared_by
    """)
