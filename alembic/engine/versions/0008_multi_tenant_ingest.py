"""Multi-tenant ingest: arguments, idempotent keys, limits and schedule ticks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "ingest_jobs", sa.Column("args", JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False)
    )
    op.add_column("ingest_jobs", sa.Column("dedupe_key", sa.Text(), nullable=True))
    op.add_column("ingest_jobs", sa.Column("limit_key", sa.Text(), nullable=True))
    op.add_column("ingest_jobs", sa.Column("schedule_name", sa.Text(), nullable=True))
    op.add_column("ingest_jobs", sa.Column("tick_at", sa.DateTime(timezone=True), nullable=True))
    op.create_check_constraint(
        op.f("ck_ingest_jobs_tick_has_schedule"), "ingest_jobs", "(schedule_name IS NULL) = (tick_at IS NULL)"
    )
    op.create_index(
        "uq_ingest_jobs_dedupe",
        "ingest_jobs",
        ["task_name", "dedupe_key"],
        unique=True,
        postgresql_where=sa.text("dedupe_key IS NOT NULL"),
    )
    op.create_index(
        "uq_ingest_jobs_tick",
        "ingest_jobs",
        ["schedule_name", "tick_at"],
        unique=True,
        postgresql_where=sa.text("schedule_name IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("uq_ingest_jobs_tick", "ingest_jobs", if_exists=True)
    op.drop_index("uq_ingest_jobs_dedupe", "ingest_jobs", if_exists=True)
    op.execute("""
        ALTER TABLE IF EXISTS ingest_jobs
          DROP CONSTRAINT IF EXISTS ck_ingest_jobs_tick_has_schedule,
          DROP COLUMN IF EXISTS tick_at,
          DROP COLUMN IF EXISTS schedule_name,
          DROP COLUMN IF EXISTS limit_key,
          DROP COLUMN IF EXISTS dedupe_key,
          DROP COLUMN IF EXISTS args
    """)
