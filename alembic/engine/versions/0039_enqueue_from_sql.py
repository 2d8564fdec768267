"""`qwf_enqueue`: enqueueing by one call of SQL, for drivers and languages that this package knows nothing of."""

from __future__ import annotations

from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None

SIGNATURE = "qwf_enqueue(text, text, jsonb, jsonb)"
# With the rights of whoever calls it, who may insert jobs or may not; the table refuses what no worker could
# handle. A job with a limit's key goes into the key's lane as one that the package enqueues does.
ENQUEUE = """
CREATE FUNCTION qwf_enqueue(task text, queue text, args jsonb DEFAULT '{}', options jsonb DEFAULT '{}')
RETURNS TABLE (id bigint, created boolean) LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    given CONSTANT jsonb := jsonb_strip_nulls(COALESCE(qwf_enqueue.options, '{}'));
    once CONSTANT boolean := COALESCE((given -> 'at_most_once') = 'true', false);
    wrong text;
    wanted text;
    new_key text;
    due timestamptz;
    laned boolean;
    found_id bigint;
BEGIN
    IF jsonb_typeof(given) <> 'object' THEN
        RAISE EXCEPTION 'qwf_enqueue: options is a JSON object' USING ERRCODE = '22023';
    END IF;
    SELECT said.key, known.kind INTO wrong, wanted
    FROM jsonb_each(given) AS said
    LEFT JOIN (VALUES
        ('reason', 'string'), ('dedupe_key', 'string'), ('limit_key', 'string'), ('exclusive', 'string'),
        ('host_lock', 'string'), ('traceparent', 'string'), ('run_at', 'string'), ('priority', 'number'),
        ('delay', 'number'), ('max_attempts', 'number'), ('max_crashes', 'number'), ('backoff_s', 'number'),
        ('timeout_s', 'number'), ('stall_timeout_s', 'number'), ('at_most_once', 'boolean')
    ) AS known (name, kind) ON known.name = said.key
    WHERE known.kind IS DISTINCT FROM jsonb_typeof(said.value)
    ORDER BY said.key LIMIT 1;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'qwf_enqueue: the option % %', wrong, COALESCE('is a ' || wanted, 'is not known')
        USING ERRCODE = '22023', HINT = 'docs/how-to/enqueue.md has all options';
    END IF;
    IF given ? 'run_at' AND given ? 'delay' THEN
        RAISE EXCEPTION 'qwf_enqueue: run_at and delay are two ways to say one thing: give one'
        USING ERRCODE = '22023';
    END IF;
    IF given ? 'exclusive' AND given ? 'limit_key' THEN
        RAISE EXCEPTION 'qwf_enqueue: a job that is exclusive has no other limit_key' USING ERRCODE = '22023';
    END IF;
    IF given ->> 'exclusive' = '' THEN
        RAISE EXCEPTION 'qwf_enqueue: exclusive is the name of something' USING ERRCODE = '22023';
    END IF;
    IF once AND COALESCE((given ->> 'max_attempts')::numeric, 1) <> 1 THEN
        RAISE EXCEPTION 'qwf_enqueue: what is at_most_once is tried once: leave max_attempts out'
        USING ERRCODE = '22023';
    END IF;
    new_key := COALESCE('exclusive:' || (given ->> 'exclusive'), given ->> 'limit_key');
    due := COALESCE(
        (given ->> 'run_at')::timestamptz,
        statement_timestamp() + make_interval(secs => (given ->> 'delay')::float8),
        statement_timestamp()
    );
    laned := new_key IS NOT NULL AND due <= statement_timestamp()
        AND current_setting('transaction_isolation') <> 'serializable'
        AND qwf_front_room(qwf_enqueue.queue, new_key, {front}) < 1;
    FOR attempt IN 1..20 LOOP
        INSERT INTO ingest_jobs (
            task_name, queue, reason, args, dedupe_key, priority, limit_key, max_attempts, backoff_s, timeout_s,
            stall_timeout_s, host_lock, traceparent, max_crashes, at_most_once, run_at, status, hold_reason,
            hold_key
        ) VALUES (
            qwf_enqueue.task, qwf_enqueue.queue, given ->> 'reason', COALESCE(qwf_enqueue.args, '{}'),
            given ->> 'dedupe_key', COALESCE((given ->> 'priority')::smallint, 5), new_key,
            CASE WHEN once THEN 1 ELSE COALESCE((given ->> 'max_attempts')::smallint, {max_attempts}) END,
            (given ->> 'backoff_s')::float8, (given ->> 'timeout_s')::float8,
            (given ->> 'stall_timeout_s')::float8, given ->> 'host_lock', given ->> 'traceparent',
            (given ->> 'max_crashes')::smallint, once,
            CASE WHEN laned THEN statement_timestamp() + make_interval(secs => {lane_delay_s}) ELSE due END,
            CASE WHEN laned OR due > statement_timestamp() THEN 'scheduled' ELSE 'queued' END,
            CASE WHEN laned THEN 'limit_full' END, CASE WHEN laned THEN new_key END
        )
        ON CONFLICT (task_name, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
        RETURNING ingest_jobs.id INTO found_id;
        IF found_id IS NOT NULL THEN
            RETURN QUERY SELECT found_id, true;
            RETURN;
        END IF;
        SELECT job.id INTO found_id FROM ingest_jobs AS job
        WHERE job.task_name = qwf_enqueue.task AND job.dedupe_key = given ->> 'dedupe_key';
        IF found_id IS NOT NULL THEN
            RETURN QUERY SELECT found_id, false;
            RETURN;
        END IF;
    END LOOP;
    RAISE EXCEPTION 'qwf_enqueue: the row was not inserted, nor found by its dedupe_key'
    USING HINT = 'a trigger or a policy on ingest_jobs may swallow it';
END
$$
"""
FRONT = 16
LANE_DELAY_S = 3153600000.0
MAX_ATTEMPTS = 3
COMMENT = """
COMMENT ON FUNCTION qwf_enqueue(text, text, jsonb, jsonb) IS
'version 1: enqueues an ingest job; options are added and never change what they mean'
"""
# Whoever calls it, it writes the table in the schema that it was made in.
PIN_SEARCH_PATH = """
DO $$
BEGIN
    EXECUTE format(
        'ALTER FUNCTION qwf_enqueue(text, text, jsonb, jsonb) SET search_path = %I, pg_temp', current_schema()
    );
END
$$
"""


def upgrade() -> None:
    fixed = {"{front}": FRONT, "{max_attempts}": MAX_ATTEMPTS, "{lane_delay_s}": LANE_DELAY_S}
    statement = ENQUEUE
    for mark, value in fixed.items():
        statement = statement.replace(mark, str(value))
    op.execute(statement)
    op.execute(PIN_SEARCH_PATH)
    op.execute(COMMENT)
    op.execute(f"REVOKE ALL ON FUNCTION {SIGNATURE} FROM PUBLIC")


def downgrade() -> None:
    op.execute(f"DROP FUNCTION IF EXISTS {SIGNATURE}")
