"""Answers to parked nodes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "workflow_input_submissions",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("payload", JSONB(), nullable=False),
        sa.Column("submitted_by", sa.Text(), nullable=True),
        sa.Column("status", sa.Text(), server_default="pending", nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("processed_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(status = 'pending') = (processed_at IS NULL)",
            name=op.f("ck_workflow_input_submissions_pending_is_unprocessed"),
        ),
        sa.CheckConstraint(
            "status IN ('pending', 'accepted', 'rejected')", name=op.f("ck_workflow_input_submissions_status")
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["workflow_runs.id"], name="fk_workflow_input_submissions_run_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_workflow_input_submissions"),
    )
    op.create_index(
        "ix_workflow_input_submissions_pending",
        "workflow_input_submissions",
        ["id"],
        unique=False,
        postgresql_where=sa.text("status = 'pending'"),
    )
    op.create_index(
        "ix_workflow_input_submissions_run", "workflow_input_submissions", ["run_id", "node_id"], unique=False
    )


def downgrade() -> None:
    op.drop_table("workflow_input_submissions", if_exists=True)
