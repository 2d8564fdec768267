"""How far retention has come, so that a look for what is to be pruned begins there."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "retention_marks",
        sa.Column("family", sa.Text(), nullable=False),
        sa.Column("seen_before", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("family IN ('node', 'ingest')", name=op.f("ck_retention_marks_family")),
        sa.PrimaryKeyConstraint("family", name=op.f("pk_retention_marks")),
    )


def downgrade() -> None:
    op.execute("DROP TABLE IF EXISTS retention_marks")
