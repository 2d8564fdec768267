"""What the code of workers knows: the tasks or node modules of each version of a host app, and when it was seen last."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

from queue_workflows.db.migrations.beside_writers.indexes import beside_others

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "worker_code",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("app_version", sa.Text(), nullable=True),
        sa.Column("names", JSONB(none_as_null=True), nullable=False),
        sa.Column("is_open", sa.Boolean(), nullable=False),
        sa.Column("first_seen", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.Column("last_seen", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_worker_code"),
    )


def downgrade() -> None:
    with beside_others():
        op.execute("DROP TABLE IF EXISTS worker_code")
