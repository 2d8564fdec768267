"""`qwf_enqueue` refuses what the verb refuses, in the verb's words, before it looks at any table.

Of a job without options that is a comparison each of task, queue and args.
"""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from alembic import op

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None

# What each job says; then how deep and large its args are, as the verb has it unless the database says otherwise.
# Only what is large is written as text to know its size, and without the blanks that jsonb writes: what strips
# nulls writes none, so no null may be there.
OF_EVERY_JOB = """
    refused := CASE
        WHEN task = '' THEN 'task_name is empty'
        WHEN octet_length(task) > {name} THEN format('task_name has %s bytes, more than {name}', octet_length(task))
        WHEN queue = '' THEN 'queue is empty'
        WHEN octet_length(queue) > {name} THEN format('queue has %s bytes, more than {name}', octet_length(queue))
        WHEN queue !~ '^[A-Za-z][A-Za-z0-9_.-]{0,62}$' THEN format('%L is no queue name', queue)
        WHEN lower(queue) IN ('cpu', 'gpu', 'hooks') THEN format('the queue %L is reserved for node jobs', queue)
        WHEN jsonb_typeof(args) <> 'object' THEN 'args must be a JSON object, not ' || jsonb_typeof(args)
    END;
    IF refused IS NULL AND jsonb_path_exists(args, 'strict $.**{{levels}} ? {container}') THEN
        most := COALESCE(NULLIF(current_setting('qwf.payload_max_depth', true), '')::bigint, {levels});
        IF jsonb_path_exists(args, format('strict $.**{%s} ? {container}', most)::jsonpath) THEN
            refused := format('payload at $: nested deeper than %s levels', most);
            hint := 'flatten it, or set qwf.payload_max_depth for the database';
        END IF;
    END IF;
    IF refused IS NULL AND (pg_column_size(args) > {large} OR pg_column_compression(args) IS NOT NULL) THEN
        most := COALESCE(NULLIF(current_setting('qwf.payload_max_bytes', true), '')::bigint, {bytes});
        IF octet_length(args::text) > most AND {compact} > most THEN
            refused := format('payload at $: larger than %s bytes of JSON', to_char(most, {grouped}));
            hint := 'store the data elsewhere and send a reference, or set qwf.payload_max_bytes for the database';
        END IF;
    END IF;
"""
LONGEST_S = 3_153_600_000
# What each option is, from what on and how far; of a number whether it is a whole one. Of a text that is its bytes.
OPTIONS = (
    ("reason", "string", 1, 65_536, False),
    ("dedupe_key", "string", 1, 1024, False),
    ("limit_key", "string", 1, 512, False),
    ("exclusive", "string", 1, 512, False),
    ("host_lock", "string", 1, 512, False),
    ("traceparent", "string", 1, 1024, False),
    ("run_at", "string", 1, 1024, False),
    ("priority", "number", 0, 9, True),
    ("max_attempts", "number", 1, 32_767, True),
    ("max_crashes", "number", 1, 32_767, True),
    ("delay", "number", 0, LONGEST_S, False),
    ("backoff_s", "number", 0, LONGEST_S, False),
    ("timeout_s", "number", None, LONGEST_S, False),
    ("stall_timeout_s", "number", None, LONGEST_S, False),
    ("at_most_once", "boolean", None, None, False),
    ("unique", "object", None, None, False),
)


def _broken(name: str, kind: str, least: int | None, most: int | None, is_whole: bool) -> str:
    """What is true of an option that is wrong, and null of one that is not given; no query, as it is asked of all."""
    value = f"given ->> '{name}'"
    broken = [f"jsonb_typeof(given -> '{name}') <> '{kind}'"]
    if kind == "string":
        broken.append(f"octet_length({value}) NOT BETWEEN {least} AND {most}")
    if kind == "number":
        least_of_all = f"@ < {least}" if least is not None else "@ <= 0"
        broken.append(f"jsonb_path_exists(given, '$.{name} ? ({least_of_all} || @ > {most})')")
    if is_whole:
        broken.append(f"{value} !~ '^-?[0-9]+$'")
    return f"(given ? '{name}' AND ({' OR '.join(broken)}))"


def _rule(name: str, kind: str, least: int | None, most: int | None, is_whole: bool) -> str:
    numbers = ", ".join("NULL::bigint" if number is None else str(number) for number in (least, most))
    return f"('{name}', '{kind}', {numbers}, {is_whole}, {_broken(name, kind, least, most, is_whole)})"


NAMES = ",".join(option[0] for option in OPTIONS)
IS_BROKEN = f"given - '{{{NAMES}}}'::text[] <> '{{}}' OR " + "\n        OR ".join(
    _broken(*one) for one in OPTIONS
)
# rule: of each option that is given what it may be, and whether it is that, its value as text beside it.
OF_EACH_OPTION = """
    SELECT CASE
        WHEN rule.kind IS NULL THEN format('the option %s is not known', said.key)
        WHEN rule.kind <> jsonb_typeof(said.value) THEN format('the option %s is a %s', said.key, rule.kind)
        WHEN value.text = '' THEN format('%s is empty', said.key)
        WHEN rule.kind = 'string' THEN format(
            '%s has %s bytes, more than %s',
            said.key, to_char(octet_length(value.text), {grouped}), to_char(rule.most, {grouped})
        )
        WHEN rule.is_whole THEN format(
            '%s must be a whole number from %s to %s, not %s', said.key, rule.least, rule.most, value.text
        )
        ELSE format('%s must be a number of seconds, not %s', said.key, value.text)
    END, CASE WHEN rule.kind = jsonb_typeof(said.value) AND said.key <> 'exclusive' THEN '{bound}' ELSE '{sense}' END
    INTO refused, state
    FROM jsonb_each(given) AS said
    CROSS JOIN LATERAL (SELECT said.value #>> '{}' AS text) AS value
    LEFT JOIN (VALUES
        {rules}
    ) AS rule (name, kind, least, most, is_whole, is_broken) ON rule.name = said.key
    WHERE COALESCE(rule.is_broken, true)
    ORDER BY said.key LIMIT 1;
"""
OF_TWO_OPTIONS = """
    refused := CASE
        WHEN given ?& '{run_at,delay}' THEN 'both run_at and delay are given'
        WHEN given ?& '{exclusive,limit_key}'
            THEN 'both exclusive and limit_key are given, and a job takes a slot of one key'
        WHEN given ?& '{dedupe_key,unique}' THEN 'both dedupe_key and unique are given'
        WHEN given @> '{"at_most_once": true}' AND (given ->> 'max_attempts')::integer <> 1
            THEN format('at_most_once and max_attempts=%s contradict each other', given ->> 'max_attempts')
    END;
    state := '{sense}';
"""
# Names that name nothing, and moments that are none; behind a time of day there is an offset or the name of a zone.
OF_NAMES = """
    refused := CASE
        WHEN strpos(given ->> 'limit_key', '*') > 0
            THEN format('limit_key %L contains `*`', given ->> 'limit_key')
        WHEN given ->> 'exclusive' ~ {unseen} THEN format('exclusive %L {is_unseen}', given ->> 'exclusive')
        WHEN strpos(given ->> 'exclusive', '*') > 0
            THEN format('exclusive %L contains `*`', given ->> 'exclusive')
        WHEN given ->> 'host_lock' ~ '^elsewhere:(elsewhere:|$)'
            THEN format('host_lock %L names no lock', given ->> 'host_lock')
        WHEN lock ~ {unseen} THEN format('host_lock %L {is_unseen}', lock)
        WHEN given ->> 'run_at' !~ {zoned} THEN format('run_at %s has no time zone', given ->> 'run_at')
        WHEN (given ->> 'run_at')::timestamptz NOT BETWEEN {first} AND {last}
            THEN format('run_at %s is beyond the calendar', given ->> 'run_at')
        WHEN own_key = '' THEN 'key is empty'
        WHEN octet_length(own_key) > {name} THEN format('key has %s bytes, more than {name}', octet_length(own_key))
    END;
    state := '{bound}';
"""
CHECK = f"""
CREATE OR REPLACE FUNCTION qwf_check_job(task text, queue text, args jsonb, given jsonb) RETURNS void
LANGUAGE plpgsql STABLE AS $$
DECLARE
    lock CONSTANT text := regexp_replace(given ->> 'host_lock', '^elsewhere:', '');
    own_key CONSTANT text := given #>> '{{unique,key}}';
    refused text;
    state text := '{{bound}}';
    hint text := 'docs/how-to/enqueue.md says what each may be';
    most bigint;
BEGIN
    IF jsonb_typeof(given) <> 'object' THEN
        RAISE EXCEPTION 'qwf_enqueue: options is a JSON object' USING ERRCODE = '{{sense}}';
    END IF;
{OF_EVERY_JOB}
    IF refused IS NULL AND given = '{{}}' THEN
        RETURN;
    END IF;
    IF refused IS NULL AND ({IS_BROKEN}) THEN
{OF_EACH_OPTION}
    END IF;
    IF refused IS NULL THEN
{OF_TWO_OPTIONS}
    END IF;
    IF refused IS NULL THEN
{OF_NAMES}
    END IF;
    IF refused IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = state, MESSAGE = 'qwf_enqueue: ' || refused, HINT = hint;
    END IF;
END
$$
"""
FIXED = {
    "{rules}": ",\n        ".join(_rule(*one) for one in OPTIONS),
    "{container}": '(@.type() == "object" || @.type() == "array")',
    "{compact}": "octet_length(json_strip_nulls(replace(args::text, ': null', ': 1234')::json)::text)",
    "{unseen}": r"'[\u0001-\u001f\u007f]|^\s|\s$'",
    "{is_unseen}": "has blanks around it or characters that cannot be seen",
    "{zoned}": r"'[T ]\d\d:?\d\d(:?\d\d([.,]\d+)?)? *([+-]\d\d(:?\d\d){0,2}|[A-Za-z][A-Za-z0-9_/+-]*)$'",
    "{first}": "'0001-12-31 00:00:00+00'",
    "{last}": "'9999-01-02 00:00:00+00'",
    "{levels}": "100",
    "{bytes}": "16777216",
    "{large}": "1000000",
    "{name}": "512",
    "{grouped}": "'FM999,999,999,999'",
    "{bound}": "23514",
    "{sense}": "22023",
}
# What version 2 looked at by itself.
FIRST_CHECK, BEHIND_CHECKS = "    IF jsonb_typeof(given) <> 'object'", "{checks}"
CALL = "    PERFORM qwf_check_job(qwf_enqueue.task, qwf_enqueue.queue, qwf_enqueue.args, given);\n"
SIGNATURE = "qwf_check_job(text, text, jsonb, jsonb)"


def _before() -> Any:
    """The revision before, which has the other versions of the function."""
    path = Path(__file__).with_name("0041_ends_and_unique_jobs.py")
    spec = spec_from_file_location("qwf_revision_0041", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def upgrade() -> None:
    check = CHECK
    for mark, value in FIXED.items():
        check = check.replace(mark, value)
    op.execute(check)
    before = _before()
    op.execute(before.PIN_SEARCH_PATH.replace("{signature}", SIGNATURE))
    start, _, rest = before.ENQUEUE.partition(FIRST_CHECK)
    before.ENQUEUE = start + CALL + rest.partition(BEHIND_CHECKS)[2]
    before._enqueue(version=3)


def downgrade() -> None:
    _before()._enqueue(version=2)
    op.execute(f"DROP FUNCTION IF EXISTS {SIGNATURE}")
