"""Whether a node may go on without its lease while the database is away."""

from __future__ import annotations

from queue_workflows.db.migrations.beside_writers.columns import add_columns, drop_columns

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

TABLE = "workflow_node_jobs"
COLUMNS = {"survives_outage": "boolean NOT NULL DEFAULT false"}


def upgrade() -> None:
    add_columns(TABLE, COLUMNS)


def downgrade() -> None:
    drop_columns(TABLE, COLUMNS)
