"""What no worker could handle is refused by the tables, whoever inserts it.

Rows of jobs, runs and answers are looked at once, as they are inserted, by a trigger for each statement: a
CHECK would be prepared anew by every statement that claims, renews or ends a job. Nothing that is there is
read; a job from before that breaks a rule is failed by the worker that claims it. Schedules, caps and rates
are few and have CHECKs.
"""

from __future__ import annotations

from alembic import op

from queue_workflows.db.migrations.constraints import add_checks, drop_checks

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

NAME_BYTES = 512
KEY_BYTES = 1024
TEXT_BYTES = 65_536
# Half as much again as the largest setting allows, as Postgres writes a blank behind each comma.
JSON_BYTES = 268_435_456
LONGEST_S = 3_153_600_000
# A day beyond the years 2 to 9998, as a moment may be said in any time zone.
FIRST, LAST = "'0001-12-31 00:00:00+00'", "'9999-01-02 00:00:00+00'"
QUEUE = "^[A-Za-z][A-Za-z0-9_.-]{0,62}$"
MOST_PER_S = 1_000_000_000_000
MOST_CAUGHT_UP = 10_000

# A rule is what breaks it, and what is said of the column then.
Rule = tuple[str, str]


def text(column: str, most: int = NAME_BYTES) -> Rule:
    return f"octet_length({column}) NOT BETWEEN 1 AND {most}", f"it has 1 to {most} bytes"


def queue(column: str) -> Rule:
    return f"{column} !~ '{QUEUE}'", "it is a letter, then up to 62 letters, digits and any of _ . -"


def ingest_queue(column: str) -> Rule:
    broken, said = queue(column)
    return (
        f"{broken} OR lower({column}) IN ('cpu', 'gpu', 'hooks')",
        f"{said}, and not cpu, gpu or hooks",
    )


def limit_key(column: str) -> Rule:
    broken, said = text(column)
    return f"{broken} OR strpos({column}, '*') > 0", f"{said} and no asterisk"


def host_lock(column: str) -> Rule:
    broken, said = text(column)
    return (
        rf"{broken} OR {column} ~ '^elsewhere:(elsewhere:|$)|[\u0001-\u001f\u007f]|^ | $|^elsewhere: '",
        f"{said}, a name behind at most one elsewhere:, no blanks around it and no control characters",
    )


def json_object(column: str) -> Rule:
    return (
        f"jsonb_typeof({column}) <> 'object' OR octet_length({column}::text) > {JSON_BYTES}",
        f"it is a JSON object of at most {JSON_BYTES} bytes",
    )


def json_value(column: str) -> Rule:
    return f"octet_length({column}::text) > {JSON_BYTES}", f"it has at most {JSON_BYTES} bytes"


def moment(column: str) -> Rule:
    return f"{column} NOT BETWEEN {FIRST} AND {LAST}", "it is in one of the years 2 to 9998"


def span(column: str) -> Rule:
    return f"{column} <= 0 OR {column} > {LONGEST_S}", f"it is above 0 and at most {LONGEST_S} seconds"


def span_or_none(column: str) -> Rule:
    return f"{column} NOT BETWEEN 0 AND {LONGEST_S}", f"it is from 0 to {LONGEST_S} seconds"


JOB = {
    "attempt": (
        "GREATEST(attempt, generation, failures) > 1000000000 OR crash_count > 30000",
        "it and generation, failures and crash_count are counted by workers alone",
    ),
    "position": ("position < 1", "it is above 0, and best left out"),
    "run_at": moment("run_at"),
    "backoff_s": span_or_none("backoff_s"),
    "timeout_s": span("timeout_s"),
    "stall_timeout_s": span("stall_timeout_s"),
    "limit_key": limit_key("limit_key"),
    "host_lock": host_lock("host_lock"),
    "hold_reason": text("hold_reason"),
    "hold_key": text("hold_key", KEY_BYTES),
    "traceparent": text("traceparent", KEY_BYTES),
}
# By table, column by column.
INSERTED: dict[str, dict[str, Rule]] = {
    "ingest_jobs": {
        "task_name": text("task_name"),
        "queue": ingest_queue("queue"),
        "reason": text("reason", TEXT_BYTES),
        "dedupe_key": text("dedupe_key", KEY_BYTES),
        "args": json_object("args"),
        **JOB,
    },
    "workflow_node_jobs": {
        "node_id": text("node_id"),
        "kind": text("kind"),
        "queue": queue("queue"),
        "node_module": text("node_module"),
        "plugin": text("plugin"),
        "required_model": text("required_model"),
        "pinned_host": text("pinned_host"),
        "step": ("step < 0", "it is 0 or more"),
        "expires_at": moment("expires_at"),
        "inputs": json_object("inputs"),
        "item": json_value("item"),
        **JOB,
    },
    "workflow_runs": {
        "workflow_name": text("workflow_name"),
        "mode": text("mode"),
        "spec_hash": text("spec_hash"),
        "dedupe_key": text("dedupe_key", KEY_BYTES),
        "parcel_id": text("parcel_id"),
        "traceparent": text("traceparent", KEY_BYTES),
        "spec": json_object("spec"),
        "inputs": json_object("inputs"),
        "labels": json_object("labels"),
    },
    "workflow_input_submissions": {
        "node_id": text("node_id"),
        "submitted_by": text("submitted_by"),
        "payload": json_object("payload"),
    },
}
# refused: the first row that breaks a rule, and the first rule that it breaks.
REFUSE = """
CREATE OR REPLACE FUNCTION qwf_refuse_{table}() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    refused text[];
BEGIN
    SELECT broken.rule INTO refused FROM (
        SELECT CASE
{rules}
        END AS rule
        FROM inserted
    ) AS broken
    WHERE broken.rule IS NOT NULL
    LIMIT 1;
    IF refused IS NOT NULL THEN
        RAISE EXCEPTION USING
            ERRCODE = 'check_violation', TABLE = TG_TABLE_NAME, COLUMN = refused[1],
            MESSAGE = format('%s.%s cannot be so: %s', TG_TABLE_NAME, refused[1], refused[2]),
            HINT = 'docs/how-to-enqueue.md says what each column may hold';
    END IF;
    RETURN NULL;
END
$$
"""
TRIGGER = """
CREATE TRIGGER qwf_refused AFTER INSERT ON {table}
REFERENCING NEW TABLE AS inserted
FOR EACH STATEMENT EXECUTE FUNCTION qwf_refuse_{table}()
"""

# What an operator has paused may be as it is, so that what was wrong before can be told and mended.
SCHEDULES = {
    "name": text("name"),
    "cron": text("cron"),
    "timezone": text("timezone"),
    "most_caught_up": (f"catch_up_cap > {MOST_CAUGHT_UP}", ""),
    "jitter": span_or_none("jitter_s"),
    "task_name": text("task_name"),
    "queue": ingest_queue("queue"),
    "args": json_object("args"),
    "limit_key": limit_key("limit_key"),
    "host_lock": host_lock("host_lock"),
    "last_tick_at": moment("last_tick_at"),
    "next_tick_at": moment("next_tick_at"),
    "declared_until": moment("declared_until"),
}
CAPS = {
    "key_pattern": (f"{text('key_pattern')[0]} OR strpos(left(key_pattern, -1), '*') > 0", ""),
    "reason": text("reason", TEXT_BYTES),
}
# One for all, as a bucket is written by each take.
RATES = {
    "sound": (
        (
            f"{text('rate_key')[0]} OR strpos(left(rate_key, -1), '*') > 0 OR tokens_per_s > {MOST_PER_S}"
            f" OR burst > {MOST_PER_S} OR tokens = '-Infinity' OR {moment('refilled_at')[0]}"
            f" OR COALESCE({moment('blocked_until')[0]}, false)"
        ),
        "",
    )
}
CHECKED = {"schedules": SCHEDULES, "concurrency_limits": CAPS, "rate_limits": RATES}
# paused: schedules that nobody could read; who, and why, is in the audit log.
PAUSE = """
WITH paused AS (
    UPDATE schedules SET enabled = false, updated_at = statement_timestamp()
    WHERE enabled AND ({broken})
    RETURNING name
)
INSERT INTO audit_log (actor, action, subject_kind, subject_id, reason)
SELECT 'qwf', 'schedule.pause', 'schedule', left(name, 500), 'it broke a rule of its table at revision 0032'
FROM paused
"""
# removed: caps that are no key's.
REMOVE_CAPS = """
WITH removed AS (
    DELETE FROM concurrency_limits WHERE {broken} RETURNING key_pattern, max_slots
)
INSERT INTO audit_log (actor, action, subject_kind, subject_id, reason, details)
SELECT 'qwf', 'limits.clear', 'concurrency_limit', left(key_pattern, 500),
    'it broke a rule of its table at revision 0032', jsonb_build_object('was', max_slots)
FROM removed
"""
REMOVE_RATES = "DELETE FROM rate_limits WHERE {broken}"
MENDED = {"schedules": PAUSE, "concurrency_limits": REMOVE_CAPS, "rate_limits": REMOVE_RATES}


def upgrade() -> None:
    for table, rules in CHECKED.items():
        broken = " OR ".join(f"({breaks})" for breaks, _ in rules.values())
        add_checks(table, checks(table, rules), mend=MENDED[table].replace("{broken}", broken))
    for table, rules in INSERTED.items():
        cases = "\n".join(
            f"            WHEN {breaks} THEN ARRAY['{column}', '{said}']"
            for column, (breaks, said) in rules.items()
        )
        op.execute(REFUSE.replace("{table}", table).replace("{rules}", cases))
        op.execute(f"DROP TRIGGER IF EXISTS qwf_refused ON {table}")
        op.execute(TRIGGER.replace("{table}", table))


def downgrade() -> None:
    for table in INSERTED:
        op.execute(f"DROP FUNCTION IF EXISTS qwf_refuse_{table}() CASCADE")
    for table, rules in CHECKED.items():
        drop_checks(table, checks(table, rules))


def checks(table: str, rules: dict[str, Rule]) -> dict[str, str]:
    """What must be true of each row, for CHECK constraints."""
    unless = "NOT enabled OR " if table == "schedules" else ""
    return {name: f"{unless}NOT ({breaks})" for name, (breaks, _) in rules.items()}
