"""What machines and their GPUs were at over the last hours."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "host_hardware_history",
        sa.Column("host_label", sa.Text(), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.Column("sampled_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("cpu_percent", sa.Float(53), nullable=True),
        sa.Column("memory_used_mb", sa.Integer(), nullable=False),
        sa.Column("memory_total_mb", sa.Integer(), nullable=False),
        sa.Column("devices", JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("host_label", "slot", name="pk_host_hardware_history"),
    )
    op.execute("""
        ALTER TABLE host_hardware_history SET
          (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, fillfactor = 80)
    """)


def downgrade() -> None:
    op.execute("DROP TABLE IF EXISTS host_hardware_history")
