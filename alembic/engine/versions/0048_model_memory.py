"""What models really took of a device's memory, so that a worker need not believe what they say of themselves."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0048"
down_revision = "0047"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "model_memory",
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("load_mb", JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.Column("peak_mb", JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.Column("loads", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("declared_mb", sa.Float(53), nullable=True),
        sa.Column("first_seen", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("last_seen", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.PrimaryKeyConstraint("model", "device", name=op.f("pk_model_memory")),
        if_not_exists=True,
    )


def downgrade() -> None:
    op.execute("DROP TABLE IF EXISTS model_memory")
