"""Holds, and what stands in front of a key, are found in indexes that no other can be taken for."""

from __future__ import annotations

from alembic import op

from queue_workflows.db.migrations.indexes import replace_index

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

TABLES = ("workflow_node_jobs", "ingest_jobs")
HOLD = "(hold_reason, hold_key, queue, priority DESC, position)"
KEYED = "(limit_key, queue)"
# As before, but for the words of these indexes.
FRONT_ROOM = """
CREATE OR REPLACE FUNCTION qwf_front_room(of_queue text, of_key text, most integer) RETURNS integer
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    IF EXISTS (
        SELECT FROM ingest_jobs
        WHERE {held} = 'limit_full' AND hold_key = of_key AND queue = of_queue
    ) THEN
        RETURN 0;
    END IF;
    RETURN most - (
        SELECT count(*) FROM (
            SELECT FROM ingest_jobs
            WHERE {queued} AND limit_key = of_key AND queue = of_queue
            LIMIT most
        ) AS front
    );
END
$$
"""
PIN_SEARCH_PATH = """
DO $$
BEGIN
    EXECUTE format(
        'ALTER FUNCTION qwf_front_room(text, text, integer) SET search_path = %I, pg_temp', current_schema()
    );
END
$$
"""


def upgrade() -> None:
    replace("hold_reason", "COALESCE(status = 'queued', false)")


def downgrade() -> None:
    replace("status = 'scheduled' AND hold_reason", "status = 'queued'")


def replace(held: str, queued: str) -> None:
    """The indexes, and the function that looks by them; its rights stay as they are."""
    for table in TABLES:
        replace_index(f"ix_{table}_hold", table, f"{HOLD} WHERE {held} IS NOT NULL")
        replace_index(f"ix_{table}_keyed", table, f"{KEYED} WHERE {queued} AND limit_key IS NOT NULL")
    op.execute(FRONT_ROOM.replace("{held}", held).replace("{queued}", queued))
    op.execute(PIN_SEARCH_PATH)
