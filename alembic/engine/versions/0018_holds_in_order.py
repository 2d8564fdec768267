"""Held jobs by key in the order of the queue, so that a freed key finds the next one among any number."""

from __future__ import annotations

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

TABLES = ("workflow_node_jobs", "ingest_jobs")


def upgrade() -> None:
    for table in TABLES:
        op.execute(f"DROP INDEX ix_{table}_hold")
        op.execute(f"""
            CREATE INDEX ix_{table}_hold ON {table} (hold_reason, hold_key, priority DESC, position)
            WHERE status = 'scheduled' AND hold_reason IS NOT NULL
        """)


def downgrade() -> None:
    for table in TABLES:
        op.execute(f"DROP INDEX IF EXISTS ix_{table}_hold")
        op.execute(f"""
            DO $$
            BEGIN
                IF to_regclass('{table}') IS NOT NULL THEN
                    CREATE INDEX ix_{table}_hold ON {table} (hold_reason, hold_key)
                    WHERE status = 'scheduled' AND hold_reason IS NOT NULL;
                END IF;
            END
            $$
        """)
