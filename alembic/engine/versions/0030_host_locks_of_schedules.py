"""The lock of its machine that each job of a schedule holds while it runs."""

from __future__ import annotations

from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE schedules ADD COLUMN host_lock text")


def downgrade() -> None:
    op.execute("ALTER TABLE IF EXISTS schedules DROP COLUMN IF EXISTS host_lock")
