"""Node jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("CREATE SEQUENCE workflow_node_jobs_position_seq")
    op.create_table(
        "workflow_node_jobs",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("map_index", sa.Integer(), server_default=sa.text("-1"), nullable=False),
        sa.Column("kind", sa.Text(), server_default="task", nullable=False),
        sa.Column("node_module", sa.Text(), nullable=True),
        sa.Column("plugin", sa.Text(), nullable=True),
        sa.Column(
            "position",
            sa.BigInteger(),
            server_default=sa.text("nextval('workflow_node_jobs_position_seq')"),
            nullable=False,
        ),
        sa.Column("host_priority", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("required_model", sa.Text(), nullable=True),
        sa.Column("inputs", JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("context_delta", JSONB(), nullable=True),
        sa.Column("step", sa.SmallInteger(), nullable=True),
        sa.Column("background", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), server_default="queued", nullable=False),
        sa.Column("hold_reason", sa.Text(), nullable=True),
        sa.Column("hold_key", sa.Text(), nullable=True),
        sa.Column("priority", sa.SmallInteger(), server_default=sa.text("5"), nullable=False),
        sa.Column("run_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("failures", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("max_attempts", sa.SmallInteger(), server_default=sa.text("3"), nullable=False),
        sa.Column("backoff_s", sa.Float(precision=53), nullable=True),
        sa.Column("timeout_s", sa.Float(precision=53), nullable=True),
        sa.Column("stall_timeout_s", sa.Float(precision=53), nullable=True),
        sa.Column("host_lock", sa.Text(), nullable=True),
        sa.Column("limit_key", sa.Text(), nullable=True),
        sa.Column("progress", JSONB(), nullable=True),
        sa.Column("errors", JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.Column("traceparent", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(status IN ('cancelled', 'completed', 'failed', 'skipped')) = (finished_at IS NOT NULL)",
            name=op.f("ck_workflow_node_jobs_terminal_is_finished"),
        ),
        sa.CheckConstraint(
            "hold_reason IS NULL OR status = 'scheduled'",
            name=op.f("ck_workflow_node_jobs_hold_is_scheduled"),
        ),
        sa.CheckConstraint(
            "status IN ('scheduled', 'queued', 'running', 'awaiting_input', 'completed', 'skipped', 'failed', 'cancelled')",
            name=op.f("ck_workflow_node_jobs_status"),
        ),
        sa.CheckConstraint(
            "hold_key IS NULL OR hold_reason IS NOT NULL",
            name=op.f("ck_workflow_node_jobs_hold_key_has_reason"),
        ),
        sa.CheckConstraint("map_index >= -1", name=op.f("ck_workflow_node_jobs_map_index")),
        sa.CheckConstraint("priority BETWEEN 0 AND 9", name=op.f("ck_workflow_node_jobs_priority")),
        sa.ForeignKeyConstraint(
            ["run_id"], ["workflow_runs.id"], name="fk_workflow_node_jobs_run_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_workflow_node_jobs"),
        sa.UniqueConstraint("run_id", "node_id", "map_index", name="uq_workflow_node_jobs_node"),
    )
    op.create_index(
        "ix_workflow_node_jobs_claim",
        "workflow_node_jobs",
        ["queue", sa.literal_column("priority DESC"), "position"],
        unique=False,
        postgresql_where=sa.text("status = 'queued'"),
    )
    op.create_index(
        "ix_workflow_node_jobs_due",
        "workflow_node_jobs",
        ["run_at"],
        unique=False,
        postgresql_where=sa.text("status = 'scheduled'"),
    )
    op.create_index(
        "ix_workflow_node_jobs_finished",
        "workflow_node_jobs",
        ["finished_at"],
        unique=False,
        postgresql_where=sa.text("finished_at IS NOT NULL"),
    )
    op.create_index(
        "ix_workflow_node_jobs_hold",
        "workflow_node_jobs",
        ["hold_reason", "hold_key"],
        unique=False,
        postgresql_where=sa.text("status = 'scheduled' AND hold_reason IS NOT NULL"),
    )
    op.execute(
        "ALTER TABLE workflow_node_jobs "
        "SET (autovacuum_analyze_scale_factor = 0.05, "
        "autovacuum_vacuum_cost_delay = 1, "
        "autovacuum_vacuum_insert_scale_factor = 0.05, "
        "autovacuum_vacuum_scale_factor = 0.02, "
        "autovacuum_vacuum_threshold = 1000, "
        "fillfactor = 85)"
    )


def downgrade() -> None:
    op.drop_table("workflow_node_jobs", if_exists=True)
    op.execute("DROP SEQUENCE IF EXISTS workflow_node_jobs_position_seq")
