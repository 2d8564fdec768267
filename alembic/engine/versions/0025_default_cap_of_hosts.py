"""The cap that keys of hosts have until somebody sets another one."""

from __future__ import annotations

from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

# What an operator has set by himself, before or since, is his.
DEFAULT = """
INSERT INTO concurrency_limits (key_pattern, max_slots, reason, updated_by)
VALUES ('host:*', 4, 'the default', 'qwf')
ON CONFLICT (key_pattern) DO NOTHING
"""
# Also where the table was lost.
TAKE_BACK = """
DO $$
BEGIN
    IF to_regclass('concurrency_limits') IS NOT NULL THEN
        DELETE FROM concurrency_limits
        WHERE key_pattern = 'host:*' AND max_slots = 4 AND reason = 'the default' AND updated_by = 'qwf';
    END IF;
END
$$
"""


def upgrade() -> None:
    op.execute(DEFAULT)


def downgrade() -> None:
    op.execute(TAKE_BACK)
