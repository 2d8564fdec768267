"""Child runs by the node job that waits for them, so that each of a hundred thousand ends at the same cost."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

TABLE = "workflow_runs"
IS_CHILD = sa.text("parent_run_id IS NOT NULL")


def upgrade() -> None:
    op.create_index(
        "ix_workflow_runs_children",
        TABLE,
        ["parent_run_id", "parent_node_job_id"],
        unique=False,
        postgresql_where=IS_CHILD,
    )
    op.drop_index("ix_workflow_runs_parent", TABLE, if_exists=True)


def downgrade() -> None:
    op.execute("""
        DO $$
        BEGIN
            IF to_regclass('workflow_runs') IS NOT NULL THEN
                CREATE INDEX ix_workflow_runs_parent ON workflow_runs (parent_run_id)
                WHERE parent_run_id IS NOT NULL;
            END IF;
        END
        $$
    """)
    op.drop_index("ix_workflow_runs_children", TABLE, if_exists=True)
