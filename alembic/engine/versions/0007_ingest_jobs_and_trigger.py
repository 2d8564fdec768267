"""Ingest jobs, and the wake of their workers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


ON_INSERT = """
CREATE TRIGGER qwf_wake_inserted AFTER INSERT ON ingest_jobs
REFERENCING NEW TABLE AS inserted
FOR EACH STATEMENT EXECUTE FUNCTION qwf_wake_inserted('ingest_job_ready')
"""
ON_REQUEUE = """
CREATE TRIGGER qwf_wake_requeued AFTER UPDATE OF status ON ingest_jobs
FOR EACH ROW WHEN (NEW.status = 'queued' AND OLD.status <> 'queued')
EXECUTE FUNCTION qwf_wake_requeued('ingest_job_ready')
"""


def upgrade() -> None:
    op.execute("CREATE SEQUENCE ingest_jobs_position_seq")
    op.create_table(
        "ingest_jobs",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("task_name", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column(
            "position",
            sa.BigInteger(),
            server_default=sa.text("nextval('ingest_jobs_position_seq')"),
            nullable=False,
        ),
        sa.Column("result", JSONB(), nullable=True),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), server_default="queued", nullable=False),
        sa.Column("hold_reason", sa.Text(), nullable=True),
        sa.Column("hold_key", sa.Text(), nullable=True),
        sa.Column("priority", sa.SmallInteger(), server_default=sa.text("5"), nullable=False),
        sa.Column("run_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("generation", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("attempt", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("failures", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("max_attempts", sa.SmallInteger(), server_default=sa.text("3"), nullable=False),
        sa.Column("backoff_s", sa.Float(precision=53), nullable=True),
        sa.Column("crash_count", sa.SmallInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("suspect", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("claimed_by", sa.Text(), nullable=True),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("timeout_s", sa.Float(precision=53), nullable=True),
        sa.Column("stall_timeout_s", sa.Float(precision=53), nullable=True),
        sa.Column("host_lock", sa.Text(), nullable=True),
        sa.Column("progress", JSONB(), nullable=True),
        sa.Column("errors", JSONB(), server_default=sa.text("'[]'::jsonb"), nullable=False),
        sa.Column("cancel_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("traceparent", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(status IN ('cancelled', 'completed', 'failed', 'skipped')) = (finished_at IS NOT NULL)",
            name=op.f("ck_ingest_jobs_terminal_is_finished"),
        ),
        sa.CheckConstraint(
            "hold_reason IS NULL OR status = 'scheduled'", name=op.f("ck_ingest_jobs_hold_is_scheduled")
        ),
        sa.CheckConstraint(
            "status <> 'running' OR (claimed_by IS NOT NULL AND lease_expires_at IS NOT NULL AND attempt > 0)",
            name=op.f("ck_ingest_jobs_running_is_claimed"),
        ),
        sa.CheckConstraint(
            "status = 'running' OR lease_expires_at IS NULL", name=op.f("ck_ingest_jobs_lease_only_running")
        ),
        sa.CheckConstraint(
            "status IN ('scheduled', 'queued', 'running', 'completed', 'skipped', 'failed', 'cancelled')",
            name=op.f("ck_ingest_jobs_status"),
        ),
        sa.CheckConstraint(
            "status NOT IN ('queued', 'scheduled') OR claimed_by IS NULL",
            name=op.f("ck_ingest_jobs_waiting_is_unclaimed"),
        ),
        sa.CheckConstraint(
            "generation > 0 AND attempt >= 0 AND failures >= 0 AND crash_count >= 0 AND max_attempts > 0",
            name=op.f("ck_ingest_jobs_counts"),
        ),
        sa.CheckConstraint(
            "hold_key IS NULL OR hold_reason IS NOT NULL", name=op.f("ck_ingest_jobs_hold_key_has_reason")
        ),
        sa.CheckConstraint("priority BETWEEN 0 AND 9", name=op.f("ck_ingest_jobs_priority")),
        sa.PrimaryKeyConstraint("id", name="pk_ingest_jobs"),
    )
    op.create_index(
        "ix_ingest_jobs_claim",
        "ingest_jobs",
        ["queue", sa.literal_column("priority DESC"), "position"],
        unique=False,
        postgresql_where=sa.text("status = 'queued'"),
    )
    op.create_index(
        "ix_ingest_jobs_due",
        "ingest_jobs",
        ["run_at"],
        unique=False,
        postgresql_where=sa.text("status = 'scheduled'"),
    )
    op.create_index(
        "ix_ingest_jobs_finished",
        "ingest_jobs",
        ["finished_at"],
        unique=False,
        postgresql_where=sa.text("finished_at IS NOT NULL"),
    )
    op.create_index(
        "ix_ingest_jobs_hold",
        "ingest_jobs",
        ["hold_reason", "hold_key"],
        unique=False,
        postgresql_where=sa.text("status = 'scheduled' AND hold_reason IS NOT NULL"),
    )
    op.create_index(
        "ix_ingest_jobs_running",
        "ingest_jobs",
        ["claimed_by"],
        unique=False,
        postgresql_where=sa.text("status = 'running'"),
    )
    op.execute(
        "ALTER TABLE ingest_jobs "
        "SET (autovacuum_analyze_scale_factor = 0.05, "
        "autovacuum_vacuum_cost_delay = 1, "
        "autovacuum_vacuum_insert_scale_factor = 0.05, "
        "autovacuum_vacuum_scale_factor = 0.02, "
        "autovacuum_vacuum_threshold = 1000, "
        "fillfactor = 85)"
    )
    op.execute(ON_INSERT)
    op.execute(ON_REQUEUE)


def downgrade() -> None:
    op.drop_table("ingest_jobs", if_exists=True)
    op.execute("DROP SEQUENCE IF EXISTS ingest_jobs_position_seq")
