"""The order in which workers with loaded models claim: by the model, and for all models together.

`host_priority` is read from either end, which is an index each. Only rows of the queue `gpu` that may be
claimed are in them, so that other queues pay for none of this.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

TABLE = "workflow_node_jobs"
HERE = "status = 'queued' AND queue = 'gpu'"
DIRECTIONS = {"high": "host_priority DESC", "low": "host_priority"}


def upgrade() -> None:
    for name, host_priority in DIRECTIONS.items():
        order = [sa.text("priority DESC"), sa.text(host_priority), "position"]
        op.create_index(f"ix_{TABLE}_any_{name}", TABLE, order, postgresql_where=sa.text(HERE))
        op.create_index(
            f"ix_{TABLE}_model_{name}", TABLE, ["required_model", *order], postgresql_where=sa.text(HERE)
        )


def downgrade() -> None:
    for name in DIRECTIONS:
        op.drop_index(f"ix_{TABLE}_model_{name}", TABLE, if_exists=True)
        op.drop_index(f"ix_{TABLE}_any_{name}", TABLE, if_exists=True)
