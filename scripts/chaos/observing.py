"""What is seen of a history: rows at the end, every move on the way, the ledger, and how processes ended."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg

from chaos import ledger

# Every change of a status, and every second end, is written down in the transaction that makes it.
WATCH: Final = """
CREATE TABLE chaos_moves (
    seq bigserial PRIMARY KEY, family text, job_id bigint, was text, now text, generation integer,
    attempt integer, was_attempt integer, claimed_by text, at timestamptz DEFAULT clock_timestamp());
CREATE FUNCTION chaos_move() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos_moves (family, job_id, was, now, generation, attempt, was_attempt, claimed_by)
    VALUES (TG_ARGV[0], NEW.id, OLD.status, NEW.status, NEW.generation, NEW.attempt, OLD.attempt,
            COALESCE(OLD.claimed_by, NEW.claimed_by));
    RETURN NULL;
END
$$;
CREATE TRIGGER chaos_move AFTER UPDATE ON ingest_jobs FOR EACH ROW
WHEN (OLD.status <> NEW.status OR OLD.finished_at IS DISTINCT FROM NEW.finished_at)
EXECUTE FUNCTION chaos_move('ingest');
CREATE TRIGGER chaos_move AFTER UPDATE ON workflow_node_jobs FOR EACH ROW
WHEN (OLD.status <> NEW.status OR OLD.finished_at IS DISTINCT FROM NEW.finished_at)
EXECUTE FUNCTION chaos_move('node');
CREATE TABLE chaos_events (run_id uuid, node_job_id bigint, generation integer, attempt integer, kind text);
CREATE FUNCTION chaos_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO chaos_events VALUES (NEW.run_id, NEW.node_job_id, NEW.generation, NEW.attempt, NEW.kind);
    RETURN NULL;
END
$$;
CREATE TRIGGER chaos_event AFTER INSERT ON workflow_dispatch_events FOR EACH ROW
EXECUTE FUNCTION chaos_event();
"""
OPEN: Final = """
SELECT (SELECT count(*) FROM ingest_jobs WHERE finished_at IS NULL)
    + (SELECT count(*) FROM workflow_node_jobs WHERE finished_at IS NULL)
    + (SELECT count(*) FROM workflow_runs WHERE finished_at IS NULL)
    + (SELECT count(*) FROM workflow_dispatch_events)
"""
LEFT: Final = {
    "job": """
SELECT id, task_name, status, hold_reason, hold_key, attempt, failures, crash_count, suspect,
       run_at > now() AS later
FROM ingest_jobs WHERE finished_at IS NULL
""",
    "node": """
SELECT id, node_module, status, hold_reason, hold_key, attempt, failures, crash_count, suspect
FROM workflow_node_jobs WHERE finished_at IS NULL
""",
    "run": "SELECT workflow_name, status FROM workflow_runs WHERE finished_at IS NULL",
    "event": "SELECT run_id, node_job_id, kind, tries, last_error, poisoned_at FROM workflow_dispatch_events",
}
INGEST: Final = """
SELECT id, task_name, status, generation, attempt, failures, crash_count, suspect, result, dedupe_key,
       limit_key, host_lock, hold_reason, schedule_name, tick_at::text, errors, claimed_by, priority, args
FROM ingest_jobs ORDER BY id
"""
NODE: Final = """
SELECT id, run_id::text, node_id, map_index, node_module, status, generation, attempt, failures, crash_count,
       suspect, context_delta, limit_key, host_lock, hold_reason, errors, claimed_by
FROM workflow_node_jobs ORDER BY id
"""
RUNS: Final = "SELECT id::text, workflow_name, status, error, outputs FROM workflow_runs ORDER BY id"
MOVES: Final = """
SELECT family, job_id, was, now, generation, attempt, was_attempt, claimed_by, extract(epoch FROM at)::float8
FROM chaos_moves ORDER BY seq
"""
EVENTS: Final = "SELECT run_id::text, node_job_id, generation, attempt, kind FROM chaos_events"
SLOTS: Final = """
SELECT limit_key, slot, job_family, job_id FROM limit_slots WHERE lease_expires_at > clock_timestamp()
"""
SESSIONS: Final = """
SELECT application_name, state, query FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name LIKE 'qwf:%'
"""


@dataclass
class Observation:
    """All that the model is given."""

    jobs: list[dict[str, Any]] = field(default_factory=list)
    nodes: list[dict[str, Any]] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    moves: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    slots: list[dict[str, Any]] = field(default_factory=list)
    sessions: list[dict[str, Any]] = field(default_factory=list)
    lines: list[ledger.Line] = field(default_factory=list)
    # Name of a job of the history and its id; None where nobody knows whether its transaction committed.
    committed: dict[str, int | None] = field(default_factory=dict)
    # Of jobs that were written past the repository.
    raw: set[int] = field(default_factory=set)
    started_runs: dict[str, str] = field(default_factory=dict)
    # Role, what it was, its wait status.
    ends: list[tuple[str, str, int]] = field(default_factory=list)
    # Role by pid.
    pids: dict[int, str] = field(default_factory=dict)
    undrained: list[str] = field(default_factory=list)
    logs: dict[str, str] = field(default_factory=dict)
    left_processes: list[str] = field(default_factory=list)
    unstopped: list[str] = field(default_factory=list)
    tracebacks: list[str] = field(default_factory=list)
    drained_s: float | None = None
    bound_s: float = 0.0
    did: dict[str, int] = field(default_factory=dict)
    ticks_from: float = 0.0


def rows_of(connection: psycopg.Connection[Any], query: str) -> list[dict[str, Any]]:
    """Rows as dicts."""
    with connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        return cursor.execute(query).fetchall()


def observe(connection: psycopg.Connection[Any], seen: Observation, place: Path) -> None:
    """Read what the database and the files say at the end."""
    seen.jobs, seen.nodes = rows_of(connection, INGEST), rows_of(connection, NODE)
    seen.runs, seen.moves = rows_of(connection, RUNS), rows_of(connection, MOVES)
    seen.events = rows_of(connection, EVENTS)
    seen.slots = rows_of(connection, SLOTS)
    seen.lines = ledger.read(str(place / "ledger"))
    for log in sorted(place.glob("*.log")):
        seen.tracebacks += [
            f"{log.stem}: {one}" for one in tracebacks(log.read_text("utf-8", errors="replace"))
        ]


_BLOCK: Final = re.compile(
    r"Traceback \(most recent call last\):\n(?:[ \t]+.*\n|\S*\n)*?(\S.*)", re.MULTILINE
)

# What an interpreter comes through before the first line that does something: `entry_points.main`.
_FRAME: Final = re.compile(r'^  File ".*/queue_workflows/(\S+)", line \d+, in (\S+)$', re.MULTILINE)
_IMPORTED_FIRST: Final = {
    (name, "<module>") for name in ("__init__.py", "__main__.py", "cli/__init__.py", "cli/entry_points.py")
}


def _met_no_handler(block: str) -> bool:
    """Whether Ctrl-C met an interpreter that had not yet come to our first line, which silences it."""
    is_interrupted = block.splitlines()[-1] == "KeyboardInterrupt"
    return is_interrupted and _IMPORTED_FIRST.issuperset(_FRAME.findall(block))


def tracebacks(text: str) -> list[str]:
    """The last lines of tracebacks that no task of ours is to blame for."""
    found = []
    for match in _BLOCK.finditer(text):
        block = match[0]
        # What a task left behind may say what it likes: a thread, a finaliser, a child.
        if "/chaos/" not in block and "queue_workflows" in block and not _met_no_handler(block):
            found.append(" ".join(block.splitlines()[-3:])[-400:])
    return found
