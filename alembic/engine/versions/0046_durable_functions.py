"""Durable functions: a row for each step, events, and children that tell when they have ended."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from queue_workflows.db.migrations.beside_writers.columns import add_columns, drop_columns
from queue_workflows.db.migrations.beside_writers.indexes import (
    beside_others,
    build_index,
    drop_index,
    is_there,
)

revision = "0046"
down_revision = "0045"
branch_labels = None
depends_on = None

CHILDREN = "ix_ingest_jobs_spawned_by"
# With the rights of its owner: whoever may end a job, or cancel one, need not be able to emit events.
CHILD_ENDED = """
CREATE OR REPLACE FUNCTION qwf_child_ended() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO durable_events (name) VALUES ('qwf:children:' || NEW.spawned_by);
    RETURN NULL;
END
$$
"""
# For every sweep, also one with rights from before this revision, which would do nothing else any more.
HAS_NEWS = """
CREATE OR REPLACE FUNCTION qwf_has_news() RETURNS boolean LANGUAGE plpgsql STABLE SECURITY DEFINER AS $$
BEGIN
    RETURN (SELECT true FROM durable_events WHERE is_news ORDER BY id LIMIT 1) IS NOT NULL;
END
$$
"""
PIN_SEARCH_PATH = """
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION qwf_child_ended() SET search_path = %I, pg_temp', current_schema());
    EXECUTE format('ALTER FUNCTION qwf_has_news() SET search_path = %I, pg_temp', current_schema());
END
$$
"""
# Claims and renewals do not write that column; of ends those of children alone call anything.
ON_CHILD_END = """
CREATE OR REPLACE TRIGGER qwf_child_ended AFTER UPDATE OF finished_at ON ingest_jobs
FOR EACH ROW WHEN (NEW.spawned_by IS NOT NULL AND NEW.finished_at IS NOT NULL)
EXECUTE FUNCTION qwf_child_ended()
"""
KINDS = ("step", "sleep", "event", "child", "children", "now", "round")
STATUSES = ("done", "failed", "waiting")


def upgrade() -> None:
    op.create_table(
        "durable_steps",
        sa.Column("job_family", sa.Text(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("call", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("beside", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("result", postgresql.JSONB(), nullable=True),
        sa.Column("error", postgresql.JSONB(), nullable=True),
        sa.Column("tries", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("version", sa.Text(), nullable=True),
        sa.Column("child_id", sa.BigInteger(), nullable=True),
        sa.Column("waits_for", sa.Text(), nullable=True),
        sa.Column("wake_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("job_family IN ('node', 'ingest')", name=op.f("ck_durable_steps_job_family")),
        sa.CheckConstraint(_one_of("kind", KINDS), name=op.f("ck_durable_steps_kind")),
        sa.CheckConstraint(_one_of("status", STATUSES), name=op.f("ck_durable_steps_status")),
        sa.CheckConstraint(
            "(status = 'waiting') = (finished_at IS NULL)",
            name=op.f("ck_durable_steps_waiting_is_unfinished"),
        ),
        sa.PrimaryKeyConstraint("job_family", "job_id", "name", "call", name=op.f("pk_durable_steps")),
        if_not_exists=True,
    )
    op.create_index(
        "ix_durable_steps_waits_for",
        "durable_steps",
        ["waits_for"],
        postgresql_where=sa.text("status = 'waiting' AND waits_for IS NOT NULL"),
        if_not_exists=True,
    )
    op.create_index(
        "ix_durable_steps_child_id",
        "durable_steps",
        ["child_id"],
        postgresql_where=sa.text("child_id IS NOT NULL"),
        if_not_exists=True,
    )
    op.create_table(
        "durable_events",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("payload", postgresql.JSONB(), nullable=True),
        sa.Column("is_news", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column(
            "emitted_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.CheckConstraint(
            "NOT (octet_length(name) NOT BETWEEN 1 AND 512)", name=op.f("ck_durable_events_name")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_durable_events")),
        if_not_exists=True,
    )
    # Each end of a child is a row that comes and goes, and every sweep looks at the oldest that is left.
    op.execute(
        "ALTER TABLE durable_events SET (autovacuum_vacuum_cost_delay = 0, "
        "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)"
    )
    op.create_index("ix_durable_events_name", "durable_events", ["name", "id"], if_not_exists=True)
    op.create_index(
        "ix_durable_events_news",
        "durable_events",
        ["id"],
        postgresql_where=sa.text("is_news"),
        if_not_exists=True,
    )
    op.create_index("ix_durable_events_emitted_at", "durable_events", ["emitted_at"], if_not_exists=True)
    add_columns("ingest_jobs", {"spawned_by": "text"})
    build_index(CHILDREN, "ingest_jobs", "(spawned_by) WHERE spawned_by IS NOT NULL")
    op.execute(CHILD_ENDED)
    op.execute(HAS_NEWS)
    op.execute(PIN_SEARCH_PATH)
    op.execute("REVOKE ALL ON FUNCTION qwf_child_ended() FROM PUBLIC")
    if is_there("ingest_jobs"):
        with beside_others():
            op.execute(ON_CHILD_END)


def downgrade() -> None:
    if is_there("ingest_jobs"):
        with beside_others():
            op.execute("DROP TRIGGER IF EXISTS qwf_child_ended ON ingest_jobs")
    drop_index(CHILDREN)
    drop_columns("ingest_jobs", ["spawned_by"])
    op.execute("DROP FUNCTION IF EXISTS qwf_child_ended()")
    op.execute("DROP FUNCTION IF EXISTS qwf_has_news()")
    op.execute("DROP TABLE IF EXISTS durable_events")
    op.execute("DROP TABLE IF EXISTS durable_steps")


def _one_of(column: str, words: tuple[str, ...]) -> str:
    return f"{column} = ANY ('{{{','.join(words)}}}'::text[])"
