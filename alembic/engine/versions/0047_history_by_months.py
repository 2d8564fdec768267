"""A history by months for ingest jobs that are over: its table, a view over both, functions that move jobs."""

from __future__ import annotations

from typing import Final

from alembic import op

from queue_workflows.db.migrations.beside_writers.history import show_both
from queue_workflows.db.migrations.beside_writers.indexes import is_there

revision = "0047"
down_revision = "0046"
branch_labels = None
depends_on = None

# A row of each family that is, or once was, by months. moved_before: what ended earlier has been looked at.
MODES = """
CREATE TABLE IF NOT EXISTS history_modes (
    family text NOT NULL,
    is_partitioned boolean NOT NULL,
    moved_before timestamp with time zone,
    changed_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT pk_history_modes PRIMARY KEY (family),
    CONSTRAINT ck_history_modes_family CHECK (family IN ('ingest'))
)
"""
# By ids, and by when jobs ended: what is searched by anything else waits, runs or failed, and does not move.
HISTORY = """
CREATE TABLE IF NOT EXISTS ingest_jobs_history (
    LIKE ingest_jobs,
    CONSTRAINT pk_ingest_jobs_history PRIMARY KEY (id, finished_at),
    CONSTRAINT ck_ingest_jobs_history_moves CHECK (
        status = ANY ('{cancelled,completed,skipped}'::text[]) AND dedupe_key IS NULL AND schedule_name IS NULL AND
            spawned_by IS NULL
    )
) PARTITION BY RANGE (finished_at)
"""
BY_END = "CREATE INDEX IF NOT EXISTS ix_ingest_jobs_history_finished_at ON ingest_jobs_history (finished_at)"
# All columns of a job, in both tables; where one of them lacks some nothing is moved, as it would be lost.
COLUMNS = """
CREATE FUNCTION qwf_history_columns() RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    ours text;
    theirs text;
BEGIN
    SELECT string_agg(quote_ident(attname), ', ' ORDER BY attname) FILTER (WHERE attrelid = 'ingest_jobs'::regclass),
        string_agg(quote_ident(attname), ', ' ORDER BY attname)
            FILTER (WHERE attrelid = 'ingest_jobs_history'::regclass)
    INTO ours, theirs FROM pg_attribute
    WHERE attrelid IN ('ingest_jobs'::regclass, 'ingest_jobs_history'::regclass) AND attnum > 0 AND NOT attisdropped;
    IF ours IS DISTINCT FROM theirs THEN
        RAISE EXCEPTION 'ingest_jobs and ingest_jobs_history have different columns' USING
            ERRCODE = 'object_not_in_prerequisite_state', HINT = 'a revision that adds a column adds it to both';
    END IF;
    RETURN ours;
END
$$
"""
MONTH_OF = """
CREATE FUNCTION qwf_history_month_of(moment timestamptz) RETURNS text LANGUAGE sql STABLE AS $$
SELECT 'ingest_jobs_history_' || to_char(moment AT TIME ZONE 'UTC', 'YYYY_MM')
$$
"""
# What refers to a job would be deleted with the row that moves, be set to NULL, or forbid it.
REFUSE_REFERENCES = """
CREATE FUNCTION qwf_history_refuse_references() RETURNS void LANGUAGE plpgsql STABLE AS $$
DECLARE
    keys text;
BEGIN
    SELECT string_agg(format('%s (%s)', conrelid::regclass, conname), ', ' ORDER BY conrelid, conname)
    INTO keys FROM pg_constraint WHERE contype = 'f' AND confrelid = 'ingest_jobs'::regclass;
    IF keys IS NOT NULL THEN
        RAISE EXCEPTION 'foreign keys refer to ingest_jobs: %', keys USING
            ERRCODE = 'object_not_in_prerequisite_state',
            HINT = 'drop them, or say qwf db history --plain';
    END IF;
END
$$
"""
# Months before their first rows, in a lock that nobody reads the history beside: a statement that was planned
# without a month would find what moves there meanwhile neither here nor there.
MAKE_MONTHS = """
CREATE FUNCTION qwf_history_make_months(months timestamptz[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    month timestamptz;
BEGIN
    LOCK TABLE ONLY ingest_jobs_history IN ACCESS EXCLUSIVE MODE;
    FOREACH month IN ARRAY months LOOP
        CONTINUE WHEN to_regclass(qwf_history_month_of(month)) IS NOT NULL;
        EXECUTE format(
            'CREATE TABLE %I PARTITION OF ingest_jobs_history FOR VALUES FROM (%L) TO (%L)',
            qwf_history_month_of(month), month,
            (month AT TIME ZONE 'UTC' + interval '1 month') AT TIME ZONE 'UTC'
        );
    END LOOP;
END
$$
"""
# Move some of what ended in a while, the oldest first, if history is by months: how many, up to where that was
# looked at, and whether there may be more. In the order of the index of what is over; so many rows of whatever
# kind are walked, as those with a key, of a schedule, or failed stay where they are, and durable functions with
# what they spawned: a parent looks for its children in the table, and steps go with their job.
MOVE = """
CREATE FUNCTION qwf_history_move(
    since timestamptz, before timestamptz, OUT moved integer, OUT seen_to timestamptz, OUT is_more boolean
) LANGUAGE plpgsql SECURITY DEFINER SET plan_cache_mode = force_custom_plan SET lock_timeout = '20ms' AS $$
DECLARE
    columns text;
    ids bigint[];
    months timestamptz[];
    start timestamptz;
    ahead timestamptz;
BEGIN
    moved := 0;
    is_more := false;
    SELECT GREATEST(moved_before, since, '-infinity') INTO start FROM history_modes
    WHERE family = 'ingest' AND is_partitioned;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    before := LEAST(before, statement_timestamp() - interval '1 hour');
    SELECT array_agg(id), array_agg(DISTINCT date_trunc('month', finished_at, 'UTC')), max(finished_at)
    INTO ids, months, seen_to FROM (
        SELECT id, finished_at FROM (
            SELECT id, finished_at, status, dedupe_key, schedule_name, spawned_by FROM ingest_jobs
            WHERE finished_at >= start AND finished_at < before
            ORDER BY finished_at
            LIMIT 40000
        ) AS walked
        WHERE status <> 'failed' AND dedupe_key IS NULL AND schedule_name IS NULL AND spawned_by IS NULL
            AND NOT EXISTS (
                SELECT FROM durable_steps AS step WHERE step.job_family = 'ingest' AND step.job_id = walked.id
            )
            AND NOT EXISTS (SELECT FROM durable_steps AS step WHERE step.child_id = walked.id)
        ORDER BY finished_at
        LIMIT 2000
    ) AS first;
    IF COALESCE(cardinality(ids), 0) < 2000 THEN
        SELECT finished_at INTO seen_to FROM ingest_jobs
        WHERE finished_at >= start AND finished_at < before
        ORDER BY finished_at
        OFFSET 39999 LIMIT 1;
    END IF;
    is_more := seen_to IS NOT NULL;
    IF ids IS NOT NULL THEN
        -- Nobody adds a key meanwhile: that would need a stronger lock than this one lets by.
        LOCK TABLE ONLY ingest_jobs IN ROW EXCLUSIVE MODE;
        PERFORM qwf_history_refuse_references();
        IF EXISTS (SELECT FROM unnest(months) AS month WHERE to_regclass(qwf_history_month_of(month)) IS NULL) THEN
            PERFORM qwf_history_make_months(months);
        ELSE
            LOCK TABLE ONLY ingest_jobs_history IN ROW EXCLUSIVE MODE;
            -- Another may have dropped it before we had the lock: look again.
            IF EXISTS (SELECT FROM unnest(months) AS month WHERE to_regclass(qwf_history_month_of(month)) IS NULL)
            THEN
                seen_to := start;
                is_more := true;
                RETURN;
            END IF;
        END IF;
        columns := qwf_history_columns();
        EXECUTE format(
            'WITH gone AS (DELETE FROM ingest_jobs WHERE id = ANY (ARRAY('
            'SELECT id FROM ingest_jobs WHERE id = ANY ($1) AND finished_at >= $2 AND finished_at < $3 '
            'AND status <> ''failed'' AND dedupe_key IS NULL AND schedule_name IS NULL AND spawned_by IS NULL '
            'FOR UPDATE SKIP LOCKED)) RETURNING %1$s) '
            'INSERT INTO ingest_jobs_history (%1$s) SELECT %1$s FROM gone', columns
        ) USING ids, start, before;
        GET DIAGNOSTICS moved = ROW_COUNT;
    END IF;
    -- As many at one moment as are looked at, and none of them to be moved: go on behind them.
    IF seen_to = start AND moved = 0 THEN
        seen_to := seen_to + interval '1 microsecond';
    END IF;
    seen_to := COALESCE(seen_to, before);
    -- A month is made in the last day before its first rows, so that to move them waits for nobody.
    ahead := date_trunc('month', before + interval '1 day', 'UTC');
    IF NOT is_more AND ahead > before AND to_regclass(qwf_history_month_of(ahead)) IS NULL THEN
        BEGIN
            PERFORM qwf_history_make_months(ARRAY[ahead]);
        EXCEPTION WHEN lock_not_available THEN
            NULL;
        END;
    END IF;
    IF moved > 0 THEN
        UPDATE history_modes SET moved_before = seen_to
        WHERE family = 'ingest' AND is_partitioned AND COALESCE(moved_before < seen_to, true);
    END IF;
END
$$
"""
# Bring jobs back into the table, as they were; which of these the history had, though another may have brought
# them back meanwhile. What only workers may write is written after the row is there.
BRING_BACK = """
CREATE FUNCTION qwf_history_bring_back(ids bigint[]) RETURNS bigint[]
LANGUAGE plpgsql SECURITY DEFINER SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    columns text;
    seen bigint[];
    begun bigint[];
    generations integer[];
    brought bigint[];
BEGIN
    SELECT array_agg(id), array_agg(id) FILTER (WHERE begun_generation IS NOT NULL),
        array_agg(begun_generation) FILTER (WHERE begun_generation IS NOT NULL)
    INTO seen, begun, generations FROM ingest_jobs_history WHERE id = ANY (ids);
    IF seen IS NULL THEN
        RETURN '{}';
    END IF;
    columns := qwf_history_columns();
    EXECUTE format(
        'WITH found AS MATERIALIZED (SELECT id FROM ingest_jobs_history WHERE id = ANY ($1) ORDER BY id FOR UPDATE), '
        'gone AS (DELETE FROM ingest_jobs_history WHERE id = ANY (ARRAY(SELECT id FROM found)) RETURNING %s), '
        'back AS (INSERT INTO ingest_jobs (%s) SELECT %s FROM gone RETURNING id) '
        'SELECT array_agg(id) FROM back',
        columns, columns, replace(columns, 'begun_generation', 'NULL::integer')
    ) INTO brought USING seen;
    IF begun IS NOT NULL THEN
        UPDATE ingest_jobs AS job SET begun_generation = was.generation
        FROM unnest(begun, generations) AS was (id, generation)
        WHERE job.id = ANY (begun) AND job.id = was.id AND job.id = ANY (brought);
    END IF;
    RETURN seen;
END
$$
"""
# Bring some back by their ids, if history is no longer by months; the last of them, NULL if there are no more.
BRING_SOME_BACK = """
CREATE FUNCTION qwf_history_bring_some_back(after bigint, OUT last bigint)
LANGUAGE plpgsql SECURITY DEFINER SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    ids bigint[];
BEGIN
    IF EXISTS (SELECT FROM history_modes WHERE family = 'ingest' AND is_partitioned) THEN
        RETURN;
    END IF;
    ids := ARRAY(SELECT id FROM ingest_jobs_history WHERE id > after ORDER BY id LIMIT 2000);
    PERFORM qwf_history_bring_back(ids);
    last := ids[cardinality(ids)];
END
$$
"""
# Drop a month that ended before a moment, or, once history is no longer by months, one that is empty; its name.
# What reads the history is waited for so long and no longer, as others wait behind us.
DROP = """
CREATE FUNCTION qwf_history_drop_month(before timestamptz) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '20ms' AS $$
DECLARE
    by_months boolean := EXISTS (SELECT FROM history_modes WHERE family = 'ingest' AND is_partitioned);
    month text;
    is_empty boolean;
BEGIN
    FOR month IN
        SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
        WHERE inhparent = 'ingest_jobs_history'::regclass ORDER BY relname
    LOOP
        is_empty := false;
        IF NOT by_months THEN
            BEGIN
                EXECUTE format('SELECT NOT EXISTS (SELECT FROM %I)', month) INTO is_empty;
            EXCEPTION WHEN undefined_table THEN
                -- Another has dropped it.
                CONTINUE;
            END;
        END IF;
        IF is_empty OR to_date(right(month, 7), 'YYYY_MM') + interval '1 month'
            <= LEAST(before, statement_timestamp() - interval '1 hour') AT TIME ZONE 'UTC' THEN
            LOCK TABLE ONLY ingest_jobs_history IN ACCESS EXCLUSIVE MODE;
            -- Another may have dropped it while we waited, or moved something into it.
            IF to_regclass(month) IS NULL THEN
                CONTINUE;
            END IF;
            IF is_empty THEN
                EXECUTE format('SELECT NOT EXISTS (SELECT FROM %I)', month) INTO is_empty;
                CONTINUE WHEN NOT is_empty;
            END IF;
            EXECUTE format('DROP TABLE %I', month);
            RETURN month;
        END IF;
    END LOOP;
    RETURN NULL;
END
$$
"""
FUNCTIONS = {
    "qwf_history_columns()": COLUMNS,
    "qwf_history_month_of(timestamptz)": MONTH_OF,
    "qwf_history_refuse_references()": REFUSE_REFERENCES,
    "qwf_history_make_months(timestamptz[])": MAKE_MONTHS,
    "qwf_history_move(timestamptz, timestamptz)": MOVE,
    "qwf_history_bring_back(bigint[])": BRING_BACK,
    "qwf_history_bring_some_back(bigint)": BRING_SOME_BACK,
    "qwf_history_drop_month(timestamptz)": DROP,
}
# Whoever calls them, they go by the tables in the schema that they were made in.
PIN_SEARCH_PATH = """
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION {function} SET search_path = %I, pg_temp', current_schema());
END
$$
"""
# What may read the table may read what has moved from it: roles made by hand, whose verbs did without until now.
GRANT_AS_TABLE = """
DO $$
DECLARE
    reader text;
BEGIN
    FOR reader IN
        SELECT DISTINCT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END
        FROM pg_class, aclexplode(relacl)
        WHERE pg_class.oid = 'ingest_jobs'::regclass AND privilege_type = 'SELECT' AND grantee <> relowner
    LOOP
        EXECUTE 'GRANT SELECT ON ingest_jobs_history, ingest_jobs_and_history TO ' || reader;
    END LOOP;
END
$$
"""
# More than one transaction brings back in the time that others may wait for it; about as many as the catalog says.
MOST_BROUGHT_BACK: Final = 1_000_000
# All that was moved, before its place is dropped. Once nobody moves any more, as the lock is had. By their ids,
# so that a batch does not walk what those before it have left behind.
BRING_ALL_BACK = f"""
DO $$
DECLARE
    about bigint;
    after bigint := 0;
BEGIN
    SELECT COALESCE(sum(GREATEST(reltuples, 0)), 0) INTO about
    FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
    WHERE inhparent = 'ingest_jobs_history'::regclass;
    IF about > {MOST_BROUGHT_BACK} THEN
        RAISE EXCEPTION 'about % jobs are in the history, too many to bring back in one transaction: '
            'say qwf db history --plain, and downgrade once no month is left', about
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    LOCK TABLE ingest_jobs_history IN ACCESS EXCLUSIVE MODE;
    UPDATE history_modes SET is_partitioned = false WHERE is_partitioned;
    WHILE after IS NOT NULL LOOP
        SELECT last INTO after FROM qwf_history_bring_some_back(after);
    END LOOP;
END
$$
"""


def upgrade() -> None:
    op.execute(MODES)
    if not is_there("ingest_jobs"):
        return
    op.execute(HISTORY)
    op.execute(BY_END)
    op.execute(show_both())
    op.execute(GRANT_AS_TABLE)
    for signature, function in FUNCTIONS.items():
        op.execute(function.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"))
        op.execute(PIN_SEARCH_PATH.replace("{function}", signature))
        op.execute(f"REVOKE ALL ON FUNCTION {signature} FROM PUBLIC")


def downgrade() -> None:
    if is_there("ingest_jobs_history"):
        op.execute(BRING_ALL_BACK)
    op.execute("DROP VIEW IF EXISTS ingest_jobs_and_history")
    for signature in reversed(FUNCTIONS):
        op.execute(f"DROP FUNCTION IF EXISTS {signature}")
    op.execute("DROP TABLE IF EXISTS ingest_jobs_history")
    op.execute("DROP TABLE IF EXISTS history_modes")
