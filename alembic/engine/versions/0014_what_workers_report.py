"""What a worker reports: the family of its job, and the operators' changes that it has seen."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


# Wishes of before count as changed up to here.
START = """
INSERT INTO worker_control_clock (version) SELECT last_value FROM worker_control_version_seq WHERE is_called
"""


def upgrade() -> None:
    op.add_column("worker_heartbeats", sa.Column("current_job_family", sa.Text(), nullable=True))
    op.create_check_constraint(
        op.f("ck_worker_heartbeats_current_job_family"),
        "worker_heartbeats",
        "current_job_family IN ('node', 'ingest')",
    )
    op.create_table(
        "worker_control_clock",
        sa.Column("singleton", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("singleton", name=op.f("ck_worker_control_clock_singleton")),
        sa.PrimaryKeyConstraint("singleton", name="pk_worker_control_clock"),
    )
    op.execute(START)


def downgrade() -> None:
    op.drop_table("worker_control_clock", if_exists=True)
    op.execute("""
        ALTER TABLE IF EXISTS worker_heartbeats
          DROP CONSTRAINT IF EXISTS ck_worker_heartbeats_current_job_family,
          DROP COLUMN IF EXISTS current_job_family
    """)
