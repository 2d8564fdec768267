"""How many crashes a job may cause, and jobs that begin at most once.

What has begun for good is not to wait again. The code of this revision sees to that in its statements; one
that does not, as those of the code before cannot, has the row ended as failed by a trigger, in its own write.
"""

from __future__ import annotations

from alembic import op

from queue_workflows.db.migrations.beside_writers.columns import add_columns, drop_columns
from queue_workflows.db.migrations.beside_writers.indexes import beside_others, is_there
from queue_workflows.db.migrations.beside_writers.refusing_triggers import change_rules
from queue_workflows.models.insert_rules import OF_BEGINS, OF_TABLES

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

TABLES = ("workflow_node_jobs", "ingest_jobs")
COLUMNS = {
    "max_crashes": "smallint",
    "at_most_once": "boolean NOT NULL DEFAULT false",
    "begun_generation": "integer",
}
# The row ends as a statement of this code would have ended it, with its event if it is a node's.
END_BEGUN = """
CREATE OR REPLACE FUNCTION qwf_end_begun() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    said CONSTANT jsonb := jsonb_build_object(
        'kind', 'at_most_once', 'message', 'it was to wait again, but it had begun, and it begins at most once',
        'at', statement_timestamp(), 'attempt', NEW.attempt, 'worker_id', OLD.claimed_by);
BEGIN
    IF NEW.begun_generation < NEW.generation OR NEW.status NOT IN ('queued', 'scheduled') THEN
        RETURN NULL;
    END IF;
    EXECUTE format(
        'UPDATE %I.%I SET status = ''failed'', claimed_by = $2, finished_at = statement_timestamp(),'
        ' hold_reason = NULL, hold_key = NULL,'
        ' errors = jsonb_path_query_array(errors, ''$[last - 8 to last]'') || $3 WHERE id = $1',
        TG_TABLE_SCHEMA, TG_TABLE_NAME
    ) USING NEW.id, OLD.claimed_by, said;
    IF TG_TABLE_NAME = 'workflow_node_jobs' THEN
        EXECUTE format(
            'INSERT INTO %I.workflow_dispatch_events (run_id, node_job_id, generation, attempt, kind, payload)'
            ' VALUES ($1, $2, $3, $4, ''failed'', $5) ON CONFLICT DO NOTHING', TG_TABLE_SCHEMA
        ) USING NEW.run_id, NEW.id, NEW.generation, NEW.attempt, jsonb_build_object('error', said);
    END IF;
    RETURN NULL;
END
$$
"""
# After the write and not before it, which would lock each row that any statement writes once more. The
# condition is prepared by every statement that writes a status, so it is no longer than it must be.
TRIGGER = """
CREATE OR REPLACE TRIGGER qwf_end_begun AFTER UPDATE OF status ON {table}
FOR EACH ROW WHEN (NEW.begun_generation IS NOT NULL) EXECUTE FUNCTION qwf_end_begun()
"""


def upgrade() -> None:
    for table in TABLES:
        add_columns(table, COLUMNS)
    with beside_others():
        op.execute(END_BEGUN)
        for table in filter(is_there, TABLES):
            op.execute(TRIGGER.replace("{table}", table))
    for table in TABLES:
        change_rules(table, OF_TABLES[table] | OF_BEGINS)


def downgrade() -> None:
    with beside_others():
        for table in TABLES:
            op.execute(f"DROP TRIGGER IF EXISTS qwf_end_begun ON {table}")
            change_rules(table, OF_TABLES[table])
        op.execute("DROP FUNCTION IF EXISTS qwf_end_begun()")
    for table in TABLES:
        drop_columns(table, COLUMNS)
