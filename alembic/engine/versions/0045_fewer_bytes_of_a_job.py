"""Room beside a job for its next version, and less to read as a job is written: rules, checks and wakes."""

from __future__ import annotations

from collections.abc import Callable

from alembic import op

from queue_workflows.db.migrations.beside_writers.checks import reword_checks
from queue_workflows.db.migrations.beside_writers.indexes import beside_others, is_there
from queue_workflows.db.migrations.beside_writers.refusing_triggers import change_rules
from queue_workflows.models.insert_rules import OF_BEGINS, OF_TABLES, UNUSUAL_JOBS

revision = "0045"
down_revision = "0044"
branch_labels = None
depends_on = None

TABLES = ("workflow_node_jobs", "ingest_jobs")
# Pages that are full already stay so. No reader or writer waits for it.
ROOM = "ALTER TABLE {table} SET (fillfactor = {percent})"
FILLED_BEFORE, FILLED = 85, 50
# What a CHECK says is read anew by each statement that writes the table: an array is one word of it, where a list
# is one for each of its values.
STATES = {
    "workflow_nodes": {"state": "waiting,active,completed,skipped,failed,cancelled"},
    "workflow_runs": {"status": "queued,running,completed,failed,cancelled", "stopping": "fail_fast,cancel"},
    "workflow_node_jobs": {
        "status": "scheduled,queued,running,awaiting_input,completed,skipped,failed,cancelled"
    },
    "ingest_jobs": {"status": "scheduled,queued,running,completed,skipped,failed,cancelled"},
}
WAITING = "claimed_by IS NULL OR status <> ALL ('{queued,scheduled}'::text[])"
WAITING_BEFORE = "status NOT IN ('queued', 'scheduled') OR claimed_by IS NULL"
OVER = {
    "workflow_runs": "cancelled,completed,failed",
    "workflow_node_jobs": "cancelled,completed,failed,skipped",
    "ingest_jobs": "cancelled,completed,failed,skipped",
}
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
    _say_checks(_as_array, WAITING)
    for table in TABLES:
        change_rules(table, OF_TABLES[table] | OF_BEGINS, UNUSUAL_JOBS[table])
    op.execute(WAKE_WAITING)
    op.execute(PIN_SEARCH_PATH)


def downgrade() -> None:
    _leave_room(FILLED_BEFORE)
    _say_checks(_as_list, WAITING_BEFORE)
    for table in TABLES:
        change_rules(table, OF_TABLES[table] | OF_BEGINS)
    op.execute(WAKE_WAITING_BEFORE)
    op.execute(PIN_SEARCH_PATH)


def _leave_room(percent: int) -> None:
    for table in filter(is_there, TABLES):
        with beside_others():
            op.execute(ROOM.replace("{table}", table).replace("{percent}", str(percent)))


def _say_checks(among: Callable[[str, str], str], waiting: str) -> None:
    for table, columns in STATES.items():
        checks = {column: among(column, words) for column, words in columns.items()}
        if table in OVER:
            checks["terminal_is_finished"] = f"({among('status', OVER[table])}) = (finished_at IS NOT NULL)"
        if table in TABLES:
            checks["waiting_is_unclaimed"] = waiting
        reword_checks(table, checks)


def _as_array(column: str, words: str) -> str:
    return f"{column} = ANY ('{{{words}}}'::text[])"


def _as_list(column: str, words: str) -> str:
    values = ", ".join(f"'{word}'" for word in words.split(","))
    return f"{column} IN ({values})"
