"""Limits and tasks as host apps declare them, what became of limits that adapt, and keys for jobs enqueued by name."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from queue_workflows.db.migrations.beside_writers.indexes import beside_others, is_there
from queue_workflows.models import rules
from queue_workflows.models.limits import UNUSABLE_ADAPTED, UNUSABLE_APP, UNUSABLE_DECLARED, UNUSABLE_TASK

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None

# How many may hold a key at once, NULL for any number: what an operator set, what is declared, what the longest
# pattern has of these, with the default of the tables after both; what is exclusive has one. A cap that adapts
# has been lowered at some moment, and has grown by time alone since. By index: a plan made while the tables
# were small would stay as they grow.
CAP = """
CREATE FUNCTION qwf_cap(of_key text) RETURNS integer LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    cap integer;
BEGIN
    SELECT max_slots INTO cap FROM concurrency_limits
    WHERE key_pattern = of_key AND (updated_by = 'qwf' AND reason = 'the default') IS NOT TRUE;
    IF cap IS NULL THEN
        SELECT min(max_slots) INTO cap FROM limit_declarations WHERE key_pattern = of_key;
    END IF;
    IF cap IS NULL THEN
        SELECT max_slots INTO cap FROM (
            SELECT key_pattern, max_slots,
                CASE WHEN updated_by = 'qwf' AND reason = 'the default' THEN 2 ELSE 0 END AS rank
            FROM concurrency_limits
            WHERE right(key_pattern, 1) = '*' AND starts_with(of_key, left(key_pattern, -1))
            UNION ALL
            SELECT key_pattern, max_slots, 1 FROM limit_declarations
            WHERE right(key_pattern, 1) = '*' AND starts_with(of_key, left(key_pattern, -1))
                AND max_slots IS NOT NULL
        ) AS pattern
        ORDER BY length(key_pattern) DESC, rank, max_slots
        LIMIT 1;
    END IF;
    IF starts_with(of_key, 'exclusive:') THEN
        RETURN LEAST(1, cap);
    END IF;
    IF cap > 1 THEN
        SELECT LEAST(cap, floor(value * power(2, LEAST(30, GREATEST(0,
            extract(epoch FROM statement_timestamp() - lowered_at) / doubles_s))::float8)))
        INTO cap
        FROM (SELECT) AS always LEFT JOIN adapted_limits ON limit_key = of_key AND kind = 'cap';
    END IF;
    RETURN cap;
END
$$
"""
# Of the jobs of one statement those whose task says a key or a lock that they do not: it becomes theirs. As
# many as find room stay in the queue, the others go into their key's lane, as those of a producer that knows
# the task do. With the rights of the owner, so that no producer has to read what is declared. A producer at
# SERIALIZABLE would come to depend on it: its jobs get what they lack from the worker that claims them.
DECLARED_OPTIONS = """
CREATE OR REPLACE FUNCTION qwf_declared_options() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
AS $$
BEGIN
    IF current_setting('transaction_isolation') = 'serializable' THEN
        RETURN NULL;
    END IF;
    IF NOT EXISTS (SELECT FROM task_declarations WHERE limit_key IS NOT NULL OR host_lock IS NOT NULL) THEN
        RETURN NULL;
    END IF;
    UPDATE ingest_jobs AS job SET
        limit_key = placed.limit_key, host_lock = placed.host_lock,
        status = CASE WHEN placed.laned THEN 'scheduled' ELSE job.status END,
        hold_reason = CASE WHEN placed.laned THEN 'limit_full' ELSE job.hold_reason END,
        hold_key = CASE WHEN placed.laned THEN placed.limit_key ELSE job.hold_key END,
        run_at = CASE
            WHEN placed.laned THEN statement_timestamp() + make_interval(secs => {lane_delay_s}) ELSE job.run_at
        END
    FROM (
        SELECT keyed.id, keyed.limit_key, keyed.host_lock, CASE
            WHEN NOT keyed.is_new OR keyed.status <> 'queued' THEN false
            WHEN keyed.nth > {front} THEN true
            ELSE keyed.nth > qwf_front_room(keyed.queue, keyed.limit_key, {front})
        END AS laned
        FROM (
            SELECT inserted.id, inserted.queue, inserted.status,
                COALESCE(inserted.limit_key, said.limit_key) AS limit_key,
                COALESCE(inserted.host_lock, said.host_lock) AS host_lock,
                inserted.limit_key IS NULL AND said.limit_key IS NOT NULL AS is_new,
                row_number() OVER (
                    PARTITION BY inserted.queue, said.limit_key ORDER BY inserted.position
                ) AS nth
            FROM inserted JOIN (
                SELECT DISTINCT ON (task_name) task_name, limit_key, host_lock FROM task_declarations
                ORDER BY task_name, owner
            ) AS said USING (task_name)
            WHERE inserted.status IN ('queued', 'scheduled')
                AND (
                    (inserted.limit_key IS NULL AND said.limit_key IS NOT NULL)
                    OR (inserted.host_lock IS NULL AND said.host_lock IS NOT NULL)
                )
        ) AS keyed
        OFFSET 0
    ) AS placed
    WHERE job.id = placed.id;
    RETURN NULL;
END
$$
"""
# By a statement, as SQLAlchemy 2.0 has no word for it. Nobody else sees these tables yet, so nobody waits.
SELDOM_WRITTEN = """
DO $$
DECLARE
    made text;
BEGIN
    FOREACH made IN ARRAY ARRAY['app_declarations', 'limit_declarations', 'task_declarations', 'adapted_limits']
    LOOP
        EXECUTE format(
            'ALTER TABLE %I SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, '
            'fillfactor = 50)', made
        );
    END LOOP;
END
$$
"""
FRONT = 16
LANE_DELAY_S = 3153600000.0
TRIGGER = """
CREATE OR REPLACE TRIGGER qwf_declared_options AFTER INSERT ON ingest_jobs
REFERENCING NEW TABLE AS inserted
FOR EACH STATEMENT EXECUTE FUNCTION qwf_declared_options()
"""
# Whoever calls them, they go by the tables in the schema that they were made in.
PIN_SEARCH_PATH = """
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION qwf_cap(text) SET search_path = %I, pg_temp', current_schema());
    EXECUTE format('ALTER FUNCTION qwf_declared_options() SET search_path = %I, pg_temp', current_schema());
END
$$
"""


def upgrade() -> None:
    op.create_table(
        "app_declarations",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("declaration", sa.Text(), nullable=False),
        sa.Column("declared_until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("declared_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        *_checks("app_declarations", UNUSABLE_APP),
        sa.PrimaryKeyConstraint("owner", name="pk_app_declarations"),
    )
    op.create_table(
        "limit_declarations",
        sa.Column("key_pattern", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("max_slots", sa.Integer(), nullable=True),
        sa.Column("per_s", sa.Float(53), nullable=True),
        sa.Column("burst", sa.Float(53), nullable=True),
        sa.Column("floor_slots", sa.Integer(), nullable=True),
        sa.Column("floor_per_s", sa.Float(53), nullable=True),
        sa.Column("down", sa.Float(53), nullable=True),
        sa.Column("doubles_s", sa.Float(53), nullable=True),
        *_checks("limit_declarations", UNUSABLE_DECLARED),
        sa.PrimaryKeyConstraint("key_pattern", "owner", name="pk_limit_declarations"),
    )
    op.create_table(
        "task_declarations",
        sa.Column("task_name", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("limit_key", sa.Text(), nullable=True),
        sa.Column("computes_key", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("host_lock", sa.Text(), nullable=True),
        *_checks("task_declarations", UNUSABLE_TASK),
        sa.PrimaryKeyConstraint("task_name", "owner", name="pk_task_declarations"),
    )
    op.create_table(
        "adapted_limits",
        sa.Column("limit_key", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("value", sa.Float(53), nullable=False),
        sa.Column("doubles_s", sa.Float(53), nullable=False),
        sa.Column("lowered_at", sa.DateTime(timezone=True), server_default=sa.func.now(), nullable=False),
        *_checks("adapted_limits", UNUSABLE_ADAPTED),
        sa.PrimaryKeyConstraint("limit_key", "kind", name="pk_adapted_limits"),
    )
    op.execute(SELDOM_WRITTEN)
    op.execute(DECLARED_OPTIONS.replace("{front}", str(FRONT)).replace("{lane_delay_s}", str(LANE_DELAY_S)))
    op.execute(CAP)
    op.execute(PIN_SEARCH_PATH)
    op.execute("REVOKE ALL ON FUNCTION qwf_cap(text) FROM PUBLIC")
    op.execute("REVOKE ALL ON FUNCTION qwf_declared_options() FROM PUBLIC")
    # Last, as it holds writers up until the revision is committed.
    if is_there("ingest_jobs"):
        op.execute(TRIGGER)


def downgrade() -> None:
    if is_there("ingest_jobs"):
        with beside_others():
            op.execute("DROP TRIGGER IF EXISTS qwf_declared_options ON ingest_jobs")
    op.execute("DROP FUNCTION IF EXISTS qwf_declared_options()")
    op.execute("DROP FUNCTION IF EXISTS qwf_cap(text)")
    for table in ("adapted_limits", "task_declarations", "limit_declarations", "app_declarations"):
        with beside_others():
            op.execute(f"DROP TABLE IF EXISTS {table}")


def _checks(table: str, refused: dict[str, str]) -> tuple[sa.CheckConstraint, ...]:
    return tuple(
        sa.CheckConstraint(condition, name=op.f(f"ck_{table}_{name}"))
        for name, condition in rules.conditions(refused).items()
    )
