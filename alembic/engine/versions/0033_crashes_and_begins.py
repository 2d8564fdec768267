"""How many crashes a job may cause, and jobs that begin at most once."""

from __future__ import annotations

from alembic import op

from queue_workflows.db.migrations.checks import add_checks, drop_check

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

TABLES = ("workflow_node_jobs", "ingest_jobs")
COLUMNS = {
    "max_crashes": "smallint",
    "at_most_once": "boolean NOT NULL DEFAULT false",
    "begun_generation": "integer",
}
CHECKS = {
    "max_crashes": "max_crashes > 0",
    "at_most_once": "max_attempts = 1 OR NOT at_most_once",
    "begun_waits_no_more": "begun_generation < generation OR status NOT IN ('queued', 'scheduled')",
}


def upgrade() -> None:
    for table in TABLES:
        for name, kind in COLUMNS.items():
            op.execute(f"ALTER TABLE IF EXISTS {table} ADD COLUMN IF NOT EXISTS {name} {kind}")
    for table in TABLES:
        add_checks(table, CHECKS)


def downgrade() -> None:
    for table in TABLES:
        for name in CHECKS:
            drop_check(table, name)
        for name in COLUMNS:
            op.execute(f"ALTER TABLE IF EXISTS {table} DROP COLUMN IF EXISTS {name}")
