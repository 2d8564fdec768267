"""What may be inserted into the tables of jobs, runs and answers: by table and column, what breaks a rule.

An insert that is refused shows the column and the words beside it.
"""

from __future__ import annotations

from typing import Final

from queue_workflows.models import rules
from queue_workflows.models.rules import JSON_BYTES, KEY_BYTES, LONGEST_S, NAME_BYTES, TEXT_BYTES

# What breaks a rule, and what is said of the column then.
Rule = tuple[str, str]

# No sequence gets so far, and what is reckoned from a position stays a bigint.
LAST_POSITION: Final = 2**62


def _text(column: str, most: int = NAME_BYTES) -> Rule:
    return rules.no_text(column, most), f"it has 1 to {most} bytes"


def _queue(column: str) -> Rule:
    return rules.no_queue(column), "it is a letter, then up to 62 letters, digits and any of _ . -"


def _ingest_queue(column: str) -> Rule:
    return rules.no_ingest_queue(column), f"{_queue(column)[1]}, and not cpu, gpu or hooks"


def _limit_key(column: str) -> Rule:
    return rules.no_limit_key(column), f"{_text(column)[1]} and no asterisk"


def _host_lock(column: str) -> Rule:
    said = f"{_text(column)[1]}, a name behind at most one elsewhere:"
    return rules.no_host_lock(column), f"{said}, no blanks around it and no control characters"


def _json_object(column: str) -> Rule:
    return rules.no_json_object(column), f"it is a JSON object of at most {JSON_BYTES} bytes"


def _json(column: str) -> Rule:
    return rules.no_json(column), f"it has at most {JSON_BYTES} bytes"


def _moment(column: str) -> Rule:
    return rules.no_moment(column), "it is in one of the years 2 to 9998"


def _span(column: str) -> Rule:
    return rules.no_span(column), f"it is above 0 and at most {LONGEST_S:.0f} seconds"


def _span_or_none(column: str) -> Rule:
    return rules.no_span_or_none(column), f"it is from 0 to {LONGEST_S:.0f} seconds"


_OF_JOBS: Final[dict[str, Rule]] = {
    "attempt": (
        "GREATEST(attempt, generation, failures) > 1000000000 OR crash_count > 30000",
        "it and generation, failures and crash_count are counted by workers alone",
    ),
    "position": (
        f"position NOT BETWEEN 1 AND {LAST_POSITION}",
        f"it is from 1 to {LAST_POSITION}, and best left out",
    ),
    "run_at": _moment("run_at"),
    "backoff_s": _span_or_none("backoff_s"),
    "timeout_s": _span("timeout_s"),
    "stall_timeout_s": _span("stall_timeout_s"),
    "limit_key": _limit_key("limit_key"),
    "host_lock": _host_lock("host_lock"),
    "hold_reason": _text("hold_reason"),
    "hold_key": _text("hold_key", KEY_BYTES),
    "traceparent": _text("traceparent", KEY_BYTES),
}
# The rules of revision 0032.
OF_TABLES: Final[dict[str, dict[str, Rule]]] = {
    "ingest_jobs": {
        "task_name": _text("task_name"),
        "queue": _ingest_queue("queue"),
        "reason": _text("reason", TEXT_BYTES),
        "dedupe_key": _text("dedupe_key", KEY_BYTES),
        "args": _json_object("args"),
        **_OF_JOBS,
    },
    "workflow_node_jobs": {
        "node_id": _text("node_id"),
        "kind": _text("kind"),
        "queue": _queue("queue"),
        "node_module": _text("node_module"),
        "plugin": _text("plugin"),
        "required_model": _text("required_model"),
        "pinned_host": _text("pinned_host"),
        "step": ("step < 0", "it is 0 or more"),
        "expires_at": _moment("expires_at"),
        "inputs": _json_object("inputs"),
        "item": _json("item"),
        **_OF_JOBS,
    },
    "workflow_runs": {
        "workflow_name": _text("workflow_name"),
        "mode": _text("mode"),
        "spec_hash": _text("spec_hash"),
        "dedupe_key": _text("dedupe_key", KEY_BYTES),
        "parcel_id": _text("parcel_id"),
        "traceparent": _text("traceparent", KEY_BYTES),
        "spec": _json_object("spec"),
        "inputs": _json_object("inputs"),
        "labels": _json_object("labels"),
    },
    "workflow_input_submissions": {
        "node_id": _text("node_id"),
        "submitted_by": _text("submitted_by"),
        "payload": _json_object("payload"),
    },
}
# What revision 0033 adds for jobs, with the columns.
OF_BEGINS: Final[dict[str, Rule]] = {
    "max_crashes": ("max_crashes <= 0", "it is above 0"),
    "at_most_once": ("at_most_once AND max_attempts <> 1", "it goes with max_attempts = 1"),
    "begun_generation": ("begun_generation IS NOT NULL", "it is written by workers alone"),
}


# The text of so little is far from the most that is taken, whatever is in it: the longest number that jsonb
# holds has ten thousand digits for each of its bytes.
SMALL_JSON: Final = 8192


def _unusual(table: str, columns: tuple[str, ...], json: tuple[str, ...]) -> str:
    """True of each row that breaks a rule of `table`, and of few others.

    Of `columns` by their rules, of JSON by its size in the row, as its text is made for all its rules, and of
    all other columns, which may be NULL, if there is something in them.
    """
    rules_of = OF_TABLES[table] | OF_BEGINS
    small = [
        f"pg_column_size({column}) > {SMALL_JSON} OR pg_column_compression({column}) IS NOT NULL"
        for column in json
    ]
    others = [column for column in rules_of if column not in (*columns, *json)]
    return " OR ".join(
        [
            *(f"({rules_of[column][0]})" for column in columns),
            f"jsonb_typeof({json[0]}) <> 'object'",
            *small,
            f"num_nonnulls({', '.join(others)}) > 0",
        ]
    )


# By revision 0045 jobs are looked at so before they are looked at by each rule; the first JSON is an object.
UNUSUAL_JOBS: Final[dict[str, str]] = {
    "ingest_jobs": _unusual(
        "ingest_jobs",
        ("task_name", "queue", "dedupe_key", "attempt", "position", "run_at", "at_most_once"),
        ("args",),
    ),
    "workflow_node_jobs": _unusual(
        "workflow_node_jobs",
        ("node_id", "kind", "queue", "node_module", "attempt", "position", "run_at", "at_most_once"),
        ("inputs", "item"),
    ),
}
