"""Schedules."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "schedules",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("cron", sa.Text(), nullable=False),
        sa.Column("timezone", sa.Text(), server_default="UTC", nullable=False),
        sa.Column("catch_up", sa.Text(), server_default="latest", nullable=False),
        sa.Column("catch_up_cap", sa.Integer(), server_default=sa.text("100"), nullable=False),
        sa.Column("jitter_s", sa.Float(precision=53), server_default=sa.text("0"), nullable=False),
        sa.Column("task_name", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("args", JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("priority", sa.SmallInteger(), server_default=sa.text("5"), nullable=False),
        sa.Column("limit_key", sa.Text(), nullable=True),
        sa.Column("enabled", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("declared", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("last_tick_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("next_tick_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("catch_up IN ('none', 'latest', 'all')", name=op.f("ck_schedules_catch_up")),
        sa.CheckConstraint("catch_up_cap > 0", name=op.f("ck_schedules_catch_up_cap")),
        sa.CheckConstraint("jitter_s >= 0", name=op.f("ck_schedules_jitter_s")),
        sa.CheckConstraint("priority BETWEEN 0 AND 9", name=op.f("ck_schedules_priority")),
        sa.PrimaryKeyConstraint("name", name="pk_schedules"),
    )
    op.create_index(
        "ix_schedules_due", "schedules", ["next_tick_at"], unique=False, postgresql_where=sa.text("enabled")
    )


def downgrade() -> None:
    op.drop_table("schedules", if_exists=True)
