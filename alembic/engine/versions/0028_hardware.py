"""What machines and their GPUs are at."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "host_hardware",
        sa.Column("host_label", sa.Text(), nullable=False),
        sa.Column("reading", JSONB(), nullable=False),
        sa.Column("every_s", sa.Float(53), nullable=False),
        sa.Column("sampled_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.PrimaryKeyConstraint("host_label", name="pk_host_hardware"),
    )
    op.execute("""
        ALTER TABLE host_hardware SET
          (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, fillfactor = 50)
    """)


def downgrade() -> None:
    op.execute("DROP TABLE IF EXISTS host_hardware")
