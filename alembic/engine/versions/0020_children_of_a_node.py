"""Child runs by the node job that waits for them, so that each of a hundred thousand ends at the same cost."""

from __future__ import annotations

from queue_workflows.db.migrations.beside_writers.indexes import build_index, drop_index

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

TABLE = "workflow_runs"
IS_CHILD = "WHERE parent_run_id IS NOT NULL"


def upgrade() -> None:
    build_index("ix_workflow_runs_children", TABLE, f"(parent_run_id, parent_node_job_id) {IS_CHILD}")
    drop_index("ix_workflow_runs_parent")


def downgrade() -> None:
    build_index("ix_workflow_runs_parent", TABLE, f"(parent_run_id) {IS_CHILD}")
    drop_index("ix_workflow_runs_children")
