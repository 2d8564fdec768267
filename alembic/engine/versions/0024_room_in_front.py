"""How many jobs of a limit's key a producer may still put into the queue, which it may not read itself."""

from __future__ import annotations

from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

# Planned once a session, and by index: a plan made while the table was small would stay as the table grows.
FRONT_ROOM = """
CREATE FUNCTION qwf_front_room(of_queue text, of_key text, most integer) RETURNS integer
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    IF EXISTS (
        SELECT FROM ingest_jobs
        WHERE status = 'scheduled' AND hold_reason = 'limit_full' AND hold_key = of_key AND queue = of_queue
    ) THEN
        RETURN 0;
    END IF;
    RETURN most - (
        SELECT count(*) FROM (
            SELECT FROM ingest_jobs
            WHERE status = 'queued' AND limit_key = of_key AND queue = of_queue
            LIMIT most
        ) AS front
    );
END
$$
"""
# Whoever calls it, it reads the table in the schema that it was made in.
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
    op.execute(FRONT_ROOM)
    op.execute(PIN_SEARCH_PATH)
    op.execute("REVOKE ALL ON FUNCTION qwf_front_room(text, text, integer) FROM PUBLIC")


def downgrade() -> None:
    op.execute("DROP FUNCTION IF EXISTS qwf_front_room(text, text, integer)")
