"""The order in which workers with loaded models claim: by the model, and for all models together.

`host_priority` is read from either end, which is an index each. Only rows of the queue `gpu` that may be
claimed are in them, so that other queues pay for none of this.
"""

from __future__ import annotations

from queue_workflows.db.migrations.beside_writers.indexes import build_index, drop_index

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

TABLE = "workflow_node_jobs"
HERE = "WHERE status = 'queued' AND queue = 'gpu'"
DIRECTIONS = {"high": "host_priority DESC", "low": "host_priority"}


def upgrade() -> None:
    for name, host_priority in DIRECTIONS.items():
        order = f"priority DESC, {host_priority}, position"
        build_index(f"ix_{TABLE}_any_{name}", TABLE, f"({order}) {HERE}")
        build_index(f"ix_{TABLE}_model_{name}", TABLE, f"(required_model, {order}) {HERE}")


def downgrade() -> None:
    for name in DIRECTIONS:
        drop_index(f"ix_{TABLE}_model_{name}")
        drop_index(f"ix_{TABLE}_any_{name}")
