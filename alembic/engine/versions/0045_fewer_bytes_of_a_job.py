"""Room beside a job for its next version, and triggers of inserts and of ends that do less for most of them."""

from __future__ import annotations

from alembic import op

from queue_workflows.db.migrations.beside_writers.indexes import beside_others, is_there
from queue_workflows.db.migrations.beside_writers.refusing_triggers import change_rules
from queue_workflows.models.insert_rules import OF_BEGINS, OF_TABLES, UNUSUAL_JOBS

revision = "0045"
down_revision = "0044"
branch_labels = None
depends_on = None

TABLES = ("workflow_node_jobs", "ingest_jobs")
# Pages that are full already stay so. Nobody who reads or writes waits for it.
ROOM = "ALTER TABLE {table} SET (fillfactor = {percent})"
FILLED_BEFORE, FILLED = 85, 50
# An expression alone, where PL/pgSQL would run a statement.
WAKE_WAITING = """
CREATE OR REPLACE FUNCTION qwf_wake_waiting() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (CASE
        WHEN pg_try_advisory_lock(qwf_wake_class(), qwf_wake_key('qwf:ended'))
        THEN NOT pg_advisory_unlock(qwf_wake_class(), qwf_wake_key('qwf:ended'))
        ELSE true
    END) THEN
        PERFORM pg_notify('something_ended', 'qwf:ended');
    END IF;
    RETURN NULL;
END
$$
"""
WAKE_WAITING_BEFORE = """
CREATE OR REPLACE FUNCTION qwf_wake_waiting() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('something_ended', 'qwf:ended')
    WHERE CASE
        WHEN pg_try_advisory_lock(qwf_wake_class(), qwf_wake_key('qwf:ended'))
        THEN NOT pg_advisory_unlock(qwf_wake_class(), qwf_wake_key('qwf:ended'))
        ELSE true
    END;
    RETURN NULL;
END
$$
"""
PIN_SEARCH_PATH = """
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION qwf_wake_waiting() SET search_path = %I, pg_temp', current_schema());
END
$$
"""


def upgrade() -> None:
    _leave_room(FILLED)
    for table in TABLES:
        change_rules(table, OF_TABLES[table] | OF_BEGINS, UNUSUAL_JOBS[table])
    op.execute(WAKE_WAITING)
    op.execute(PIN_SEARCH_PATH)


def downgrade() -> None:
    _leave_room(FILLED_BEFORE)
    for table in TABLES:
        change_rules(table, OF_TABLES[table] | OF_BEGINS)
    op.execute(WAKE_WAITING_BEFORE)
    op.execute(PIN_SEARCH_PATH)


def _leave_room(percent: int) -> None:
    for table in filter(is_there, TABLES):
        with beside_others():
            op.execute(ROOM.replace("{table}", table).replace("{percent}", str(percent)))
