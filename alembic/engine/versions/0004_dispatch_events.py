"""The durable outbox of node ends."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "workflow_dispatch_events",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("node_job_id", sa.BigInteger(), nullable=True),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("payload", JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("tries", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("next_try_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("poisoned_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["node_job_id"],
            ["workflow_node_jobs.id"],
            name="fk_workflow_dispatch_events_node_job_id",
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["workflow_runs.id"], name="fk_workflow_dispatch_events_run_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_workflow_dispatch_events"),
        sa.UniqueConstraint(
            "node_job_id", "generation", "attempt", "kind", name="uq_workflow_dispatch_events_end"
        ),
    )
    op.create_index(
        "ix_workflow_dispatch_events_poisoned",
        "workflow_dispatch_events",
        ["poisoned_at"],
        unique=False,
        postgresql_where=sa.text("poisoned_at IS NOT NULL"),
    )
    op.create_index(
        "ix_workflow_dispatch_events_run", "workflow_dispatch_events", ["run_id", "id"], unique=False
    )
    op.execute(
        "ALTER TABLE workflow_dispatch_events "
        "SET (autovacuum_vacuum_cost_delay = 0, "
        "autovacuum_vacuum_scale_factor = 0, "
        "autovacuum_vacuum_threshold = 1000)"
    )


def downgrade() -> None:
    op.drop_table("workflow_dispatch_events", if_exists=True)
