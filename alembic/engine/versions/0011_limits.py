"""Keyed limits and rates."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "concurrency_limits",
        sa.Column("key_pattern", sa.Text(), nullable=False),
        sa.Column("max_slots", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("updated_by", sa.Text(), nullable=True),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("max_slots >= 0", name=op.f("ck_concurrency_limits_max_slots")),
        sa.PrimaryKeyConstraint("key_pattern", name="pk_concurrency_limits"),
    )
    op.create_table(
        "limit_slots",
        sa.Column("limit_key", sa.Text(), nullable=False),
        sa.Column("slot", sa.Integer(), nullable=False),
        sa.Column("job_family", sa.Text(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("claimed_by", sa.Text(), nullable=False),
        sa.Column("acquired_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("job_family IN ('node', 'ingest')", name=op.f("ck_limit_slots_job_family")),
        sa.CheckConstraint("slot >= 0", name=op.f("ck_limit_slots_slot")),
        sa.PrimaryKeyConstraint("limit_key", "slot", name="pk_limit_slots"),
    )
    op.create_index("ix_limit_slots_job", "limit_slots", ["job_family", "job_id"], unique=False)
    op.create_table(
        "rate_limits",
        sa.Column("rate_key", sa.Text(), nullable=False),
        sa.Column("tokens_per_s", sa.Float(precision=53), nullable=False),
        sa.Column("burst", sa.Float(precision=53), nullable=False),
        sa.Column("tokens", sa.Float(precision=53), nullable=False),
        sa.Column("refilled_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("blocked_until", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("tokens <= burst", name=op.f("ck_rate_limits_tokens")),
        sa.CheckConstraint("tokens_per_s > 0 AND burst > 0", name=op.f("ck_rate_limits_positive")),
        sa.PrimaryKeyConstraint("rate_key", name="pk_rate_limits"),
    )
    op.execute(
        "ALTER TABLE limit_slots "
        "SET (autovacuum_vacuum_scale_factor = 0, "
        "autovacuum_vacuum_threshold = 1000, "
        "fillfactor = 60)"
    )
    op.execute(
        "ALTER TABLE rate_limits "
        "SET (autovacuum_vacuum_scale_factor = 0, "
        "autovacuum_vacuum_threshold = 500, "
        "fillfactor = 50)"
    )


def downgrade() -> None:
    op.drop_table("rate_limits", if_exists=True)
    op.drop_table("limit_slots", if_exists=True)
    op.drop_table("concurrency_limits", if_exists=True)
