"""Keyed limits at the claim: slots that stay and are renewed HOT, patterns, and the lanes of full keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

TABLES = ("workflow_node_jobs", "ingest_jobs")


def upgrade() -> None:
    op.drop_index("ix_limit_slots_job", "limit_slots", if_exists=True)
    op.create_index(
        "ix_concurrency_limits_patterns",
        "concurrency_limits",
        ["key_pattern"],
        unique=False,
        postgresql_where=sa.text("\"right\"(key_pattern, 1) = '*'"),
    )
    for table in TABLES:
        op.execute(f"DROP INDEX ix_{table}_hold")
        op.execute(f"""
            CREATE INDEX ix_{table}_hold ON {table} (hold_reason, hold_key, queue, priority DESC, position)
            WHERE status = 'scheduled' AND hold_reason IS NOT NULL
        """)
        op.create_index(
            f"ix_{table}_keyed",
            table,
            ["limit_key", "queue"],
            unique=False,
            postgresql_where=sa.text("status = 'queued' AND limit_key IS NOT NULL"),
        )


def downgrade() -> None:
    for table in TABLES:
        op.drop_index(f"ix_{table}_keyed", table, if_exists=True)
        op.execute(f"DROP INDEX IF EXISTS ix_{table}_hold")
        op.execute(f"""
            DO $$
            BEGIN
                IF to_regclass('{table}') IS NOT NULL THEN
                    CREATE INDEX ix_{table}_hold ON {table} (hold_reason, hold_key, priority DESC, position)
                    WHERE status = 'scheduled' AND hold_reason IS NOT NULL;
                END IF;
            END
            $$
        """)
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
