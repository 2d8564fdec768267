"""Keyed limits at the claim: slots that stay and are renewed HOT, patterns, and the lanes of full keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from queue_workflows.db.migrations.beside_writers.indexes import build_index, drop_index, replace_index

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

TABLES = ("workflow_node_jobs", "ingest_jobs")


def upgrade() -> None:
    for table in TABLES:
        replace_index(
            f"ix_{table}_hold",
            table,
            "(hold_reason, hold_key, queue, priority DESC, position)"
            " WHERE status = 'scheduled' AND hold_reason IS NOT NULL",
        )
        build_index(
            f"ix_{table}_keyed", table, "(limit_key, queue) WHERE status = 'queued' AND limit_key IS NOT NULL"
        )
    # Last, so that it is one transaction with the revision.
    op.drop_index("ix_limit_slots_job", "limit_slots", if_exists=True)
    op.create_index(
        "ix_concurrency_limits_patterns",
        "concurrency_limits",
        ["key_pattern"],
        unique=False,
        postgresql_where=sa.text("\"right\"(key_pattern, 1) = '*'"),
    )


def downgrade() -> None:
    for table in TABLES:
        drop_index(f"ix_{table}_keyed")
        replace_index(
            f"ix_{table}_hold",
            table,
            "(hold_reason, hold_key, priority DESC, position)"
            " WHERE status = 'scheduled' AND hold_reason IS NOT NULL",
        )
    op.drop_index("ix_concurrency_limits_patterns", "concurrency_limits", if_exists=True)
    op.execute("""
        DO $$
        BEGIN
            IF to_regclass('limit_slots') IS NOT NULL THEN
                CREATE INDEX ix_limit_slots_job ON limit_slots (job_family, job_id);
            END IF;
        END
        $$
    """)
