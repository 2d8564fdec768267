"""A wake of callers that wait for an end, and the keys of unique jobs, also for `qwf_enqueue`."""

from __future__ import annotations

from alembic import op

from queue_workflows.db.migrations.beside_writers.indexes import beside_others, is_there

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None

# Once per statement that may end jobs or runs, and not per row: it does not say which, and all that wait look.
# Claims and renewals do not write that column, and pay nothing.
WAKE_WAITING = """
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
ON_END = """
CREATE OR REPLACE TRIGGER qwf_wake_waiting AFTER UPDATE OF finished_at ON {table}
FOR EACH STATEMENT EXECUTE FUNCTION qwf_wake_waiting()
"""
TABLES = ("ingest_jobs", "workflow_node_jobs", "workflow_runs")
# What jobs that are alike have in common. The text of jsonb is one for all spellings of a document.
UNIQUE_KEY = """
CREATE OR REPLACE FUNCTION qwf_unique_key(wanted jsonb, queue text, args jsonb) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
SELECT COALESCE(
    'unique:' || (wanted ->> 'key'),
    'unique:' || left(string_agg(name, ',' ORDER BY place), 64) || ':' || encode(sha256(convert_to(
        jsonb_object_agg(name, CASE name
            WHEN 'args' THEN args WHEN 'queue' THEN to_jsonb(queue) ELSE args -> substr(name, 6)
        END)::text, 'UTF8'
    )), 'hex')
)
FROM jsonb_array_elements_text(COALESCE(wanted -> 'by', '["args"]')) WITH ORDINALITY AS alike (name, place)
$$
"""
# The job that makes a new one needless, changed if it waits; or the key for the new one. With the rights of its
# owner, as a producer has none to look at jobs, nor to change any: it may do this and no more.
UNIQUE_PLACE = """
CREATE OR REPLACE FUNCTION qwf_unique_place(
    task text, queue text, args jsonb, wanted jsonb, due timestamptz, priority smallint,
    OUT found_id bigint, OUT free_key text
) LANGUAGE plpgsql SECURITY DEFINER AS $$
#variable_conflict use_column
DECLARE
    alike CONSTANT text[] := CASE WHEN wanted ? 'by' THEN
        ARRAY(SELECT jsonb_array_elements_text(wanted -> 'by')) ELSE '{args}' END;
    named CONSTANT text[] := CASE WHEN wanted ? 'states' THEN
        ARRAY(SELECT jsonb_array_elements_text(wanted -> 'states')) ELSE '{queued,running}' END;
    changed CONSTANT text[] := CASE WHEN wanted ? 'replace' THEN
        ARRAY(SELECT jsonb_array_elements_text(wanted -> 'replace')) ELSE '{}' END;
    period CONSTANT float8 := (wanted ->> 'period')::float8;
    counted CONSTANT text[] := CASE WHEN 'queued' = ANY (named) THEN named || '{scheduled}' ELSE named END;
    first_key text;
    job record;
    keys text[];
    passed bigint[];
    freed bigint[];
BEGIN
    IF wanted ? 'key' AND wanted ? 'by' THEN
        RAISE EXCEPTION 'qwf_enqueue: unique has a key or a by, not both' USING ERRCODE = '22023';
    END IF;
    IF wanted ->> 'key' = '' OR period <= 0 OR named = '{}' OR alike = '{}'
        OR EXISTS (SELECT FROM unnest(alike) AS name WHERE name NOT IN ('args', 'queue') AND name !~ '^args[.].')
        OR NOT named <@ '{queued,running,completed,skipped,failed,cancelled}'
        OR NOT changed <@ '{args,run_at,priority}' OR EXISTS (
            SELECT FROM jsonb_object_keys(wanted) AS name
            WHERE name NOT IN ('by', 'key', 'period', 'states', 'replace')
        ) THEN
        RAISE EXCEPTION 'qwf_enqueue: unique makes no sense: %', wanted
        USING ERRCODE = '22023', HINT = 'docs/how-to/enqueue.md says what it may have';
    END IF;
    first_key := qwf_unique_key(wanted, queue, args);
    PERFORM pg_advisory_xact_lock(hashtextextended(concat_ws(' ', 'qwf unique', task, first_key), 0));
    FOR attempt IN 1..20 LOOP
        keys := ARRAY[first_key];
        passed := '{}';
        LOOP
            SELECT id, status, COALESCE(
                created_at > statement_timestamp() - make_interval(secs => period), true
            ) AS is_recent
            INTO job FROM ingest_jobs
            WHERE task_name = task AND dedupe_key = keys[cardinality(keys)];
            IF job.id IS NULL THEN
                freed := '{}';
                IF passed <> '{}' THEN
                    WITH free AS (
                        UPDATE ingest_jobs SET dedupe_key = NULL
                        WHERE id = ANY (passed) AND status <> 'running' RETURNING id
                    )
                    SELECT COALESCE(array_agg(id), '{}') INTO freed FROM free;
                END IF;
                SELECT keys[place] INTO free_key FROM unnest(passed) WITH ORDINALITY AS one (id, place)
                WHERE id = ANY (freed) ORDER BY place LIMIT 1;
                free_key := COALESCE(free_key, keys[cardinality(keys)]);
                RETURN;
            END IF;
            IF job.is_recent AND job.status = ANY (counted) THEN
                found_id := job.id;
                IF changed = '{}' OR job.status NOT IN ('queued', 'scheduled') THEN
                    RETURN;
                END IF;
                UPDATE ingest_jobs SET
                    args = CASE WHEN 'args' = ANY (changed)
                        THEN COALESCE(qwf_unique_place.args, '{}') ELSE args END,
                    priority = CASE WHEN 'priority' = ANY (changed)
                        THEN qwf_unique_place.priority ELSE priority END,
                    run_at = CASE WHEN 'run_at' = ANY (changed) AND hold_reason IS NULL THEN due ELSE run_at END,
                    status = CASE
                        WHEN 'run_at' = ANY (changed) AND hold_reason IS NULL AND due > statement_timestamp()
                        THEN 'scheduled' ELSE status END
                WHERE id = job.id AND status IN ('queued', 'scheduled');
                IF FOUND THEN
                    RETURN;
                END IF;
                -- It has begun meanwhile, or is over: look at it anew.
                found_id := NULL;
                EXIT;
            END IF;
            passed := passed || job.id;
            keys := keys || (first_key || '#' || job.id);
        END LOOP;
    END LOOP;
    RAISE EXCEPTION 'qwf_enqueue: the job that is there already changed at each of 20 looks';
END
$$
"""
OPTIONS = ", ('unique', 'object')"
CHECKS = """    IF given ? 'unique' AND given ? 'dedupe_key' THEN
        RAISE EXCEPTION 'qwf_enqueue: both dedupe_key and unique are given' USING ERRCODE = '22023';
    END IF;
"""
PLACE = """    own_key := given ->> 'dedupe_key';
    IF given ? 'unique' THEN
        SELECT place.found_id, place.free_key INTO found_id, own_key FROM qwf_unique_place(
            qwf_enqueue.task, qwf_enqueue.queue, COALESCE(qwf_enqueue.args, '{}'), given -> 'unique', due,
            COALESCE((given ->> 'priority')::smallint, 5::smallint)
        ) AS place;
        IF found_id IS NOT NULL THEN
            RETURN QUERY SELECT found_id, false;
            RETURN;
        END IF;
    END IF;
"""
# Version 2 with what this brings, and version 1 without.
ENQUEUE = """
CREATE OR REPLACE FUNCTION qwf_enqueue(task text, queue text, args jsonb DEFAULT '{}', options jsonb DEFAULT '{}')
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
{declared}BEGIN
    IF jsonb_typeof(given) <> 'object' THEN
        RAISE EXCEPTION 'qwf_enqueue: options is a JSON object' USING ERRCODE = '22023';
    END IF;
    SELECT said.key, known.kind INTO wrong, wanted
    FROM jsonb_each(given) AS said
    LEFT JOIN (VALUES
        ('reason', 'string'), ('dedupe_key', 'string'), ('limit_key', 'string'), ('exclusive', 'string'),
        ('host_lock', 'string'), ('traceparent', 'string'), ('run_at', 'string'), ('priority', 'number'),
        ('delay', 'number'), ('max_attempts', 'number'), ('max_crashes', 'number'), ('backoff_s', 'number'),
        ('timeout_s', 'number'), ('stall_timeout_s', 'number'), ('at_most_once', 'boolean'){options}
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
{checks}    new_key := COALESCE('exclusive:' || (given ->> 'exclusive'), given ->> 'limit_key');
    due := COALESCE(
        (given ->> 'run_at')::timestamptz,
        statement_timestamp() + make_interval(secs => (given ->> 'delay')::float8),
        statement_timestamp()
    );
{place}    laned := new_key IS NOT NULL AND due <= statement_timestamp()
        AND current_setting('transaction_isolation') <> 'serializable'
        AND qwf_front_room(qwf_enqueue.queue, new_key, {front}) < 1;
    FOR attempt IN 1..20 LOOP
        INSERT INTO ingest_jobs (
            task_name, queue, reason, args, dedupe_key, priority, limit_key, max_attempts, backoff_s, timeout_s,
            stall_timeout_s, host_lock, traceparent, max_crashes, at_most_once, run_at, status, hold_reason,
            hold_key
        ) VALUES (
            qwf_enqueue.task, qwf_enqueue.queue, given ->> 'reason', COALESCE(qwf_enqueue.args, '{}'),
            {own_key}, COALESCE((given ->> 'priority')::smallint, 5), new_key,
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
        WHERE job.task_name = qwf_enqueue.task AND job.dedupe_key = {own_key};
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
'version {version}: enqueues an ingest job; options are added and never change what they mean'
"""
PLACE_SIGNATURE = "qwf_unique_place(text, text, jsonb, jsonb, timestamptz, smallint)"
KEY_SIGNATURE = "qwf_unique_key(jsonb, text, jsonb)"
# The functions find their helpers in the schema they were made in, whatever the caller's search_path.
PIN_SEARCH_PATH = """
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION {signature} SET search_path = %I, pg_temp', current_schema());
END
$$
"""


def _enqueue(version: int) -> None:
    is_new = version > 1
    fixed = {
        "{options}": OPTIONS if is_new else "",
        "{declared}": "    own_key text;\n" if is_new else "",
        "{own_key}": "own_key" if is_new else "given ->> 'dedupe_key'",
        "{checks}": CHECKS if is_new else "",
        "{place}": PLACE if is_new else "",
        "{front}": FRONT,
        "{max_attempts}": MAX_ATTEMPTS,
        "{lane_delay_s}": LANE_DELAY_S,
    }
    statement = ENQUEUE
    for mark, value in fixed.items():
        statement = statement.replace(mark, str(value))
    op.execute(statement)
    # Replacing a function takes what was set for it.
    op.execute(PIN_SEARCH_PATH.replace("{signature}", "qwf_enqueue(text, text, jsonb, jsonb)"))
    op.execute(COMMENT.replace("{version}", str(version)))


def upgrade() -> None:
    # Table by table, so that none is locked for longer than its own trigger takes.
    with beside_others():
        op.execute(WAKE_WAITING)
        op.execute(PIN_SEARCH_PATH.replace("{signature}", "qwf_wake_waiting()"))
        for table in filter(is_there, TABLES):
            op.execute(ON_END.replace("{table}", table))
    op.execute(UNIQUE_KEY)
    op.execute(UNIQUE_PLACE)
    op.execute(PIN_SEARCH_PATH.replace("{signature}", PLACE_SIGNATURE))
    op.execute(f"REVOKE ALL ON FUNCTION {PLACE_SIGNATURE} FROM PUBLIC")
    _enqueue(version=2)


def downgrade() -> None:
    with beside_others():
        for table in TABLES:
            op.execute(f"DROP TRIGGER IF EXISTS qwf_wake_waiting ON {table}")
        op.execute("DROP FUNCTION IF EXISTS qwf_wake_waiting()")
    _enqueue(version=1)
    op.execute(f"DROP FUNCTION IF EXISTS {PLACE_SIGNATURE}")
    op.execute(f"DROP FUNCTION IF EXISTS {KEY_SIGNATURE}")
