"""Failed jobs by id, so that a list of them never reads what has ended well."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

TABLES = ("workflow_node_jobs", "ingest_jobs")


def upgrade() -> None:
    for table in TABLES:
        op.create_index(
            f"ix_{table}_failed",
            table,
            ["id"],
            unique=False,
            postgresql_where=sa.text("status = 'failed'"),
        )


def downgrade() -> None:
    for table in TABLES:
        op.drop_index(f"ix_{table}_failed", table, if_exists=True)
