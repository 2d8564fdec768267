"""The nodes of a run with their counters, and the wakes of who advances, answers and watches runs.

All these wakes ask before they notify, as those of the workers do: an orchestrator that idles advertises
`qwf:dispatch`, and who watches a run `run:<its id>`.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


# Once per statement on the outbox; one that wrote no event wakes for nothing, which is rare and cheap.
WAKE_DISPATCH = """
CREATE FUNCTION qwf_wake_dispatch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('dispatch_ready', 'qwf:dispatch')
    WHERE CASE
        WHEN pg_try_advisory_lock(qwf_wake_class(), qwf_wake_key('qwf:dispatch'))
        THEN NOT pg_advisory_unlock(qwf_wake_class(), qwf_wake_key('qwf:dispatch'))
        ELSE true
    END;
    RETURN NULL;
END
$$
"""
WAKE_WATCHER = """
CREATE FUNCTION qwf_wake_watcher() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    run text;
BEGIN
    IF TG_TABLE_NAME = 'workflow_runs' THEN
        run := NEW.id;
    ELSE
        run := NEW.run_id;
    END IF;
    PERFORM pg_notify('run_changed', run)
    WHERE CASE
        WHEN pg_try_advisory_lock(qwf_wake_class(), qwf_wake_key('run:' || run))
        THEN NOT pg_advisory_unlock(qwf_wake_class(), qwf_wake_key('run:' || run))
        ELSE true
    END;
    RETURN NULL;
END
$$
"""
# Who may answer a parked node need not be allowed to write to the outbox, so this runs with its owner's rights.
ANNOUNCE_SUBMISSION = """
CREATE FUNCTION qwf_announce_submission() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO workflow_dispatch_events (run_id, generation, attempt, kind, payload)
    SELECT id, 1, 0, 'input_submitted',
        jsonb_build_object('submission_id', NEW.id, 'node_id', NEW.node_id)
    FROM workflow_runs WHERE id = NEW.run_id AND mode = 'node';
    RETURN NULL;
END
$$
"""
# The functions find their helpers in the schema they were made in, whatever the caller's search_path.
PIN_SEARCH_PATH = """
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION qwf_wake_dispatch() SET search_path = %I, pg_temp', current_schema());
    EXECUTE format('ALTER FUNCTION qwf_wake_watcher() SET search_path = %I, pg_temp', current_schema());
    EXECUTE format('ALTER FUNCTION qwf_announce_submission() SET search_path = %I, pg_temp', current_schema());
END
$$
"""
ON_EVENT = """
CREATE TRIGGER qwf_wake_dispatch AFTER INSERT ON workflow_dispatch_events
FOR EACH STATEMENT EXECUTE FUNCTION qwf_wake_dispatch()
"""
ON_RUN = """
CREATE TRIGGER qwf_wake_dispatch AFTER INSERT ON workflow_runs
FOR EACH ROW WHEN (NEW.status = 'queued' AND NEW.mode = 'node') EXECUTE FUNCTION qwf_wake_dispatch()
"""
# The dispatcher sets these with every batch, so that a run's watchers hear of its nodes too.
ON_RUN_CHANGED = """
CREATE TRIGGER qwf_wake_watcher AFTER UPDATE OF status, nodes_left, nodes_active ON workflow_runs
FOR EACH ROW EXECUTE FUNCTION qwf_wake_watcher()
"""
# A claim clears the progress and an end keeps it, neither of which is news.
ON_PROGRESS = """
CREATE TRIGGER qwf_wake_watcher AFTER UPDATE OF progress ON workflow_node_jobs
FOR EACH ROW WHEN (NEW.progress IS NOT NULL AND NEW.progress IS DISTINCT FROM OLD.progress)
EXECUTE FUNCTION qwf_wake_watcher()
"""
ON_SUBMISSION = """
CREATE TRIGGER qwf_announce_submission AFTER INSERT ON workflow_input_submissions
FOR EACH ROW WHEN (NEW.status = 'pending') EXECUTE FUNCTION qwf_announce_submission()
"""
NODE_STATES = "'waiting', 'active', 'completed', 'skipped', 'failed', 'cancelled'"


def _count(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), server_default=sa.text("0"), nullable=False)


def upgrade() -> None:
    op.create_table(
        "workflow_nodes",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="waiting", nullable=False),
        sa.Column("mapped", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        _count("parents_left"),
        _count("parents_completed"),
        _count("parents_skipped"),
        _count("parents_bad"),
        _count("jobs_total"),
        _count("jobs_left"),
        _count("jobs_completed"),
        _count("jobs_skipped"),
        _count("jobs_failed"),
        _count("jobs_cancelled"),
        sa.Column("error", JSONB(), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(f"state IN ({NODE_STATES})", name=op.f("ck_workflow_nodes_state")),
        sa.ForeignKeyConstraint(
            ["run_id"], ["workflow_runs.id"], name="fk_workflow_nodes_run_id", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "node_id", name="pk_workflow_nodes"),
    )
    op.execute(
        "ALTER TABLE workflow_nodes SET (autovacuum_analyze_scale_factor = 0.05, "
        "autovacuum_vacuum_cost_delay = 1, autovacuum_vacuum_scale_factor = 0.05, fillfactor = 80)"
    )
    for name in ("nodes_left", "nodes_active", "nodes_failed"):
        op.add_column("workflow_runs", _count(name))
    op.add_column("workflow_runs", sa.Column("stopping", sa.Text(), nullable=True))
    op.create_check_constraint(
        op.f("ck_workflow_runs_stopping"), "workflow_runs", "stopping IN ('fail_fast', 'cancel')"
    )
    op.add_column("workflow_node_jobs", sa.Column("item", JSONB(), nullable=True))
    op.drop_index("ix_workflow_runs_queued", "workflow_runs")
    op.create_index(
        "ix_workflow_runs_queued",
        "workflow_runs",
        [sa.text("priority DESC"), "id"],
        unique=False,
        postgresql_where=sa.text("status = 'queued' AND mode = 'node'"),
    )
    op.create_index(
        "ix_workflow_dispatch_events_finished",
        "workflow_dispatch_events",
        ["next_try_at"],
        unique=False,
        postgresql_where=sa.text("kind = 'run_finished' AND poisoned_at IS NULL"),
    )
    for statement in (
        WAKE_DISPATCH,
        WAKE_WATCHER,
        ANNOUNCE_SUBMISSION,
        PIN_SEARCH_PATH,
        ON_EVENT,
        ON_RUN,
        ON_RUN_CHANGED,
        ON_PROGRESS,
        ON_SUBMISSION,
    ):
        op.execute(statement)


def downgrade() -> None:
    op.execute("DROP TRIGGER IF EXISTS qwf_announce_submission ON workflow_input_submissions")
    op.execute("DROP TRIGGER IF EXISTS qwf_wake_watcher ON workflow_node_jobs")
    op.execute("DROP TRIGGER IF EXISTS qwf_wake_watcher ON workflow_runs")
    op.execute("DROP TRIGGER IF EXISTS qwf_wake_dispatch ON workflow_runs")
    op.execute("DROP TRIGGER IF EXISTS qwf_wake_dispatch ON workflow_dispatch_events")
    op.execute("DROP FUNCTION IF EXISTS qwf_announce_submission()")
    op.execute("DROP FUNCTION IF EXISTS qwf_wake_watcher()")
    op.execute("DROP FUNCTION IF EXISTS qwf_wake_dispatch()")
    op.drop_index("ix_workflow_dispatch_events_finished", "workflow_dispatch_events", if_exists=True)
    op.drop_index("ix_workflow_runs_queued", "workflow_runs", if_exists=True)
    op.execute("""
        DO $$
        BEGIN
            IF to_regclass('workflow_runs') IS NOT NULL THEN
                CREATE INDEX ix_workflow_runs_queued ON workflow_runs (priority DESC, id) WHERE status = 'queued';
            END IF;
        END
        $$
    """)
    op.execute("ALTER TABLE IF EXISTS workflow_node_jobs DROP COLUMN IF EXISTS item")
    op.execute("""
        ALTER TABLE IF EXISTS workflow_runs
          DROP CONSTRAINT IF EXISTS ck_workflow_runs_stopping,
          DROP COLUMN IF EXISTS stopping,
          DROP COLUMN IF EXISTS nodes_failed,
          DROP COLUMN IF EXISTS nodes_active,
          DROP COLUMN IF EXISTS nodes_left
    """)
    op.drop_table("workflow_nodes", if_exists=True)
