"""Leases and the fence on node jobs, and the wake of their workers.

The wake asks before it notifies: NOTIFY serialises all notifying commits of a database, and while every
worker is busy nobody needs it. An idle worker holds a shared advisory lock for its queue; the trigger tries
the exclusive one and lets go of it in the same expression, and only where that fails it notifies.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


# Both triggers serve both job families: the channel is the trigger's argument.
WAKE_CLASS = """
CREATE FUNCTION qwf_wake_class() RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT 7714 $$
"""
WAKE_KEY = """
CREATE FUNCTION qwf_wake_key(queue text) RETURNS integer
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$ SELECT hashtext(queue) $$
"""
# queues: each queue that the statement put claimable rows on, once; OFFSET 0 keeps the probe above the DISTINCT.
WAKE_INSERTED = """
CREATE FUNCTION qwf_wake_inserted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify(TG_ARGV[0], queues.queue)
    FROM (SELECT DISTINCT queue FROM inserted WHERE status = 'queued' OFFSET 0) AS queues
    WHERE CASE
        WHEN pg_try_advisory_lock(qwf_wake_class(), qwf_wake_key(queues.queue))
        THEN NOT pg_advisory_unlock(qwf_wake_class(), qwf_wake_key(queues.queue))
        ELSE true
    END;
    RETURN NULL;
END
$$
"""
WAKE_REQUEUED = """
CREATE FUNCTION qwf_wake_requeued() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify(TG_ARGV[0], NEW.queue)
    WHERE CASE
        WHEN pg_try_advisory_lock(qwf_wake_class(), qwf_wake_key(NEW.queue))
        THEN NOT pg_advisory_unlock(qwf_wake_class(), qwf_wake_key(NEW.queue))
        ELSE true
    END;
    RETURN NULL;
END
$$
"""
# The functions find their helpers in the schema they were made in, whatever the caller's search_path.
PIN_SEARCH_PATH = """
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION qwf_wake_inserted() SET search_path = %I, pg_temp', current_schema());
    EXECUTE format('ALTER FUNCTION qwf_wake_requeued() SET search_path = %I, pg_temp', current_schema());
END
$$
"""
ON_INSERT = """
CREATE TRIGGER qwf_wake_inserted AFTER INSERT ON workflow_node_jobs
REFERENCING NEW TABLE AS inserted
FOR EACH STATEMENT EXECUTE FUNCTION qwf_wake_inserted('node_job_ready')
"""
ON_REQUEUE = """
CREATE TRIGGER qwf_wake_requeued AFTER UPDATE OF status ON workflow_node_jobs
FOR EACH ROW WHEN (NEW.status = 'queued' AND OLD.status <> 'queued')
EXECUTE FUNCTION qwf_wake_requeued('node_job_ready')
"""


def upgrade() -> None:
    op.add_column(
        "workflow_node_jobs",
        sa.Column("generation", sa.Integer(), server_default=sa.text("1"), nullable=False),
    )
    op.add_column(
        "workflow_node_jobs", sa.Column("attempt", sa.Integer(), server_default=sa.text("0"), nullable=False)
    )
    op.add_column(
        "workflow_node_jobs",
        sa.Column("crash_count", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
    )
    op.add_column(
        "workflow_node_jobs",
        sa.Column("suspect", sa.Boolean(), server_default=sa.text("false"), nullable=False),
    )
    op.add_column("workflow_node_jobs", sa.Column("claimed_by", sa.Text(), nullable=True))
    op.add_column(
        "workflow_node_jobs", sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True)
    )
    op.add_column(
        "workflow_node_jobs", sa.Column("cancel_requested_at", sa.DateTime(timezone=True), nullable=True)
    )
    op.create_check_constraint(
        op.f("ck_workflow_node_jobs_running_is_claimed"),
        "workflow_node_jobs",
        "status <> 'running' OR (claimed_by IS NOT NULL AND lease_expires_at IS NOT NULL AND attempt > 0)",
    )
    op.create_check_constraint(
        op.f("ck_workflow_node_jobs_lease_only_running"),
        "workflow_node_jobs",
        "status = 'running' OR lease_expires_at IS NULL",
    )
    op.create_check_constraint(
        op.f("ck_workflow_node_jobs_waiting_is_unclaimed"),
        "workflow_node_jobs",
        "status NOT IN ('queued', 'scheduled') OR claimed_by IS NULL",
    )
    op.create_check_constraint(
        op.f("ck_workflow_node_jobs_counts"),
        "workflow_node_jobs",
        "generation > 0 AND attempt >= 0 AND failures >= 0 AND crash_count >= 0 AND max_attempts > 0",
    )
    op.create_index(
        "ix_workflow_node_jobs_running",
        "workflow_node_jobs",
        ["claimed_by"],
        unique=False,
        postgresql_where=sa.text("status = 'running'"),
    )
    for statement in (
        WAKE_CLASS,
        WAKE_KEY,
        WAKE_INSERTED,
        WAKE_REQUEUED,
        PIN_SEARCH_PATH,
        ON_INSERT,
        ON_REQUEUE,
    ):
        op.execute(statement)


def downgrade() -> None:
    op.execute("DROP TRIGGER IF EXISTS qwf_wake_requeued ON workflow_node_jobs")
    op.execute("DROP TRIGGER IF EXISTS qwf_wake_inserted ON workflow_node_jobs")
    op.execute("DROP FUNCTION IF EXISTS qwf_wake_requeued()")
    op.execute("DROP FUNCTION IF EXISTS qwf_wake_inserted()")
    op.execute("DROP FUNCTION IF EXISTS qwf_wake_key(text)")
    op.execute("DROP FUNCTION IF EXISTS qwf_wake_class()")
    op.drop_index("ix_workflow_node_jobs_running", "workflow_node_jobs", if_exists=True)
    op.execute("""
        ALTER TABLE IF EXISTS workflow_node_jobs
          DROP CONSTRAINT IF EXISTS ck_workflow_node_jobs_counts,
          DROP CONSTRAINT IF EXISTS ck_workflow_node_jobs_waiting_is_unclaimed,
          DROP CONSTRAINT IF EXISTS ck_workflow_node_jobs_lease_only_running,
          DROP CONSTRAINT IF EXISTS ck_workflow_node_jobs_running_is_claimed,
          DROP COLUMN IF EXISTS cancel_requested_at,
          DROP COLUMN IF EXISTS lease_expires_at,
          DROP COLUMN IF EXISTS claimed_by,
          DROP COLUMN IF EXISTS suspect,
          DROP COLUMN IF EXISTS crash_count,
          DROP COLUMN IF EXISTS attempt,
          DROP COLUMN IF EXISTS generation
    """)
