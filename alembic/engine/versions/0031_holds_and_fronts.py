"""Holds, and what stands in front of a key, are found in indexes that no other can be taken for."""

from __future__ import annotations

from alembic import op

from queue_workflows.db.migrations.beside_writers.indexes import replace_index

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

TABLES = ("workflow_node_jobs", "ingest_jobs")
HOLD = "(hold_reason, hold_key, queue, priority DESC, position)"
KEYED = "(limit_key, queue)"
# Of the nodes of one queue each.
QUEUES = {
    "hooks": ("hooks", "(COALESCE(pinned_host, ''), background, priority DESC, position)"),
    "any_high": ("gpu", "(priority DESC, host_priority DESC, position)"),
    "any_low": ("gpu", "(priority DESC, host_priority, position)"),
    "model_high": ("gpu", "(required_model, priority DESC, host_priority DESC, position)"),
    "model_low": ("gpu", "(required_model, priority DESC, host_priority, position)"),
}
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
    replace_queues("COALESCE(status = 'queued' AND queue = '{queue}', false)")


def downgrade() -> None:
    replace("status = 'scheduled' AND hold_reason", "status = 'queued'")
    replace_queues("status = 'queued' AND queue = '{queue}'")


def replace_queues(queued: str) -> None:
    """The indexes of what is claimed from queues in an order of their own."""
    table = "workflow_node_jobs"
    for name, (queue, columns) in QUEUES.items():
        where = queued.replace("{queue}", queue)
        replace_index(f"ix_{table}_{name}", table, f"{columns} WHERE {where}")


def replace(held: str, queued: str) -> None:
    """The indexes, and the function that looks by them; its rights stay as they are."""
    for table in TABLES:
        replace_index(f"ix_{table}_hold", table, f"{HOLD} WHERE {held} IS NOT NULL")
        replace_index(f"ix_{table}_keyed", table, f"{KEYED} WHERE {queued} AND limit_key IS NOT NULL")
    op.execute(FRONT_ROOM.replace("{held}", held).replace("{queued}", queued))
    op.execute(PIN_SEARCH_PATH)
