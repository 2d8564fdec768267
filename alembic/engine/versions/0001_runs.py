"""Workflow runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "workflow_runs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("workflow_name", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), server_default="node", nullable=False),
        sa.Column("spec", JSONB(), nullable=False),
        sa.Column("spec_hash", sa.Text(), nullable=False),
        sa.Column("inputs", JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("outputs", JSONB(), nullable=True),
        sa.Column("status", sa.Text(), server_default="queued", nullable=False),
        sa.Column("priority", sa.SmallInteger(), server_default=sa.text("5"), nullable=False),
        sa.Column("parent_run_id", sa.Uuid(), nullable=True),
        sa.Column("parent_node_job_id", sa.BigInteger(), nullable=True),
        sa.Column("depth", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("current_step", sa.SmallInteger(), nullable=True),
        sa.Column("pinned_host", sa.Text(), nullable=True),
        sa.Column("seal_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("dedupe_key", sa.Text(), nullable=True),
        sa.Column("labels", JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("parcel_id", sa.Text(), nullable=True),
        sa.Column("error", JSONB(), nullable=True),
        sa.Column("cancel_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("cancel_reason", sa.Text(), nullable=True),
        sa.Column("traceparent", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(status IN ('cancelled', 'completed', 'failed')) = (finished_at IS NOT NULL)",
            name=op.f("ck_workflow_runs_terminal_is_finished"),
        ),
        sa.CheckConstraint(
            "status IN ('queued', 'running', 'completed', 'failed', 'cancelled')",
            name=op.f("ck_workflow_runs_status"),
        ),
        sa.CheckConstraint("depth >= 0", name=op.f("ck_workflow_runs_depth")),
        sa.CheckConstraint("priority BETWEEN 0 AND 9", name=op.f("ck_workflow_runs_priority")),
        sa.ForeignKeyConstraint(
            ["parent_run_id"], ["workflow_runs.id"], name="fk_workflow_runs_parent_run_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_workflow_runs"),
    )
    op.create_index(
        "ix_workflow_runs_finished",
        "workflow_runs",
        ["finished_at"],
        unique=False,
        postgresql_where=sa.text("finished_at IS NOT NULL"),
    )
    op.create_index(
        "ix_workflow_runs_labels", "workflow_runs", ["labels"], unique=False, postgresql_using="gin"
    )
    op.create_index(
        "ix_workflow_runs_parcel",
        "workflow_runs",
        ["parcel_id"],
        unique=False,
        postgresql_where=sa.text("parcel_id IS NOT NULL"),
    )
    op.create_index(
        "ix_workflow_runs_parent",
        "workflow_runs",
        ["parent_run_id"],
        unique=False,
        postgresql_where=sa.text("parent_run_id IS NOT NULL"),
    )
    op.create_index(
        "ix_workflow_runs_queued",
        "workflow_runs",
        [sa.literal_column("priority DESC"), "id"],
        unique=False,
        postgresql_where=sa.text("status = 'queued'"),
    )
    op.create_index(
        "ix_workflow_runs_running",
        "workflow_runs",
        ["id"],
        unique=False,
        postgresql_where=sa.text("status = 'running'"),
    )
    op.create_index(
        "uq_workflow_runs_dedupe",
        "workflow_runs",
        ["workflow_name", "dedupe_key"],
        unique=True,
        postgresql_where=sa.text("dedupe_key IS NOT NULL"),
    )
    op.execute(
        "ALTER TABLE workflow_runs "
        "SET (autovacuum_analyze_scale_factor = 0.05, "
        "autovacuum_vacuum_scale_factor = 0.05, "
        "fillfactor = 80)"
    )


def downgrade() -> None:
    op.drop_table("workflow_runs", if_exists=True)
