"""Who installs a binary, under which lease, and when it is tried again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

CHECK = "(status = 'running') = (claimed_by IS NOT NULL AND lease_expires_at IS NOT NULL)"
COLUMNS = ("retry_at", "failures", "lease_expires_at", "claimed_by", "attempt", "bin_providers")


def upgrade() -> None:
    op.add_column("binaries", sa.Column("bin_providers", sa.Text(), nullable=True))
    op.add_column("binaries", sa.Column("attempt", sa.Integer(), server_default=sa.text("0"), nullable=False))
    op.add_column("binaries", sa.Column("claimed_by", sa.Text(), nullable=True))
    op.add_column("binaries", sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column(
        "binaries", sa.Column("failures", sa.Integer(), server_default=sa.text("0"), nullable=False)
    )
    op.add_column("binaries", sa.Column("retry_at", sa.DateTime(timezone=True), nullable=True))
    # Nobody has installed anything before this revision.
    op.execute("UPDATE binaries SET status = 'queued' WHERE status = 'running'")
    op.create_check_constraint(op.f("ck_binaries_running_is_claimed"), "binaries", CHECK)


def downgrade() -> None:
    op.execute("ALTER TABLE IF EXISTS binaries DROP CONSTRAINT IF EXISTS ck_binaries_running_is_claimed")
    for column in COLUMNS:
        op.execute(f"ALTER TABLE IF EXISTS binaries DROP COLUMN IF EXISTS {column}")
