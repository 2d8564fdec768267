"""Trees of runs: what waits for those below, how many may be open at once, and what has set them up.

A downgrade lets all runs begin at once that are on hold under a cap, as it drops what holds them. Where that
is too much, cancel them before, or let them end.
"""

from __future__ import annotations

from queue_workflows.db.migrations.beside_writers.checks import add_checks, drop_checks
from queue_workflows.db.migrations.beside_writers.columns import add_columns, drop_columns
from queue_workflows.db.migrations.beside_writers.indexes import build_index, drop_index

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

TABLE = "workflow_runs"
COLUMNS = {
    "hold_reason": "text",
    "max_open_runs": "integer",
    "capped_by": "uuid",
    "awaits_descendants": "boolean NOT NULL DEFAULT false",
    "left_descendants": "boolean NOT NULL DEFAULT false",
    "set_up_by": "uuid",
}
CHECKS = {"max_open_runs": "max_open_runs > 0"}
INDEXES = {
    "ix_workflow_runs_to_begin": (
        "(priority DESC, id) WHERE status = 'queued' AND mode = 'node' AND hold_reason IS NULL"
    ),
    "ix_workflow_runs_below": (
        "(parent_run_id) WHERE parent_run_id IS NOT NULL AND (finished_at IS NULL OR left_descendants)"
    ),
    "ix_workflow_runs_capped_open": (
        "(capped_by) WHERE capped_by IS NOT NULL AND finished_at IS NULL AND hold_reason IS NULL"
        " AND NOT awaits_descendants"
    ),
    "ix_workflow_runs_capped_held": (
        "(capped_by, priority DESC, id) WHERE capped_by IS NOT NULL AND hold_reason IS NOT NULL"
    ),
    "ix_workflow_runs_set_up_open": "(set_up_by) WHERE set_up_by IS NOT NULL AND finished_at IS NULL",
}


def upgrade() -> None:
    add_columns(TABLE, COLUMNS)
    add_checks(TABLE, CHECKS, mend="UPDATE workflow_runs SET max_open_runs = NULL WHERE max_open_runs <= 0")
    for name, what in INDEXES.items():
        build_index(name, TABLE, what)


def downgrade() -> None:
    for name in INDEXES:
        drop_index(name)
    drop_checks(TABLE, CHECKS)
    drop_columns(TABLE, COLUMNS)
