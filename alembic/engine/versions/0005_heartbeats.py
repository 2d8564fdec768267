"""Worker heartbeats."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "worker_heartbeats",
        sa.Column("worker_id", sa.Text(), nullable=False),
        sa.Column("host_label", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), server_default="starting", nullable=False),
        sa.Column("state_reason", sa.Text(), nullable=True),
        sa.Column("current_job_id", sa.BigInteger(), nullable=True),
        sa.Column("jobs_held", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("current_model", sa.Text(), nullable=True),
        sa.Column("cached_models", JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.Column("versions", JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("load", JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False),
        sa.Column("control_version", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("last_seen", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "state IN ('starting', 'idle', 'busy', 'paused', 'parked', 'stopping', 'quarantined')",
            name=op.f("ck_worker_heartbeats_state"),
        ),
        sa.PrimaryKeyConstraint("worker_id", name="pk_worker_heartbeats"),
    )
    op.create_index("ix_worker_heartbeats_host", "worker_heartbeats", ["host_label", "queue"], unique=False)
    op.execute(
        "ALTER TABLE worker_heartbeats "
        "SET (autovacuum_vacuum_scale_factor = 0, "
        "autovacuum_vacuum_threshold = 500, "
        "fillfactor = 50)"
    )


def downgrade() -> None:
    op.drop_table("worker_heartbeats", if_exists=True)
