"""The two families of jobs, and how one template becomes the SQL of each.

Claiming, fencing, ending and sweeping are the same for node jobs and ingest jobs. A statement is written
once, with `{marks}` where the families differ, and filled in for both when its module is imported: only with
fixed fragments, so a statement's text never depends on a row or a call, and a connection that prepares
statements prepares each of them once.

A fragment holds no other fragment: it has marks for names alone, of tables and columns, and for numbers. So a
reader of a statement looks up each of its parts once, and `docs/reference/statements.md` prints it whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from queue_workflows.repositories.sql.checks import LONGEST_S
from queue_workflows.repositories.sql.table import Table
from queue_workflows.states import (
    HISTORY_STATUSES,
    INGEST_STATUSES,
    JOB_TERMINAL,
    NODE_STATUSES,
    RUN_TERMINAL,
    JobFamily,
    JobStatus,
)

ERRORS_KEPT: Final = 10
HOLDS_KEPT: Final = 5
# The reason of an entry beside the holds that is an attempt which was given back; its key is the worker.
GIVEN_BACK: Final = "given_back"
# Of an entry there that is the time from a job's end to an operator's retry; its key is the status.
OVER: Final = "over"
HISTORY: Final = frozenset[str](HISTORY_STATUSES)


@dataclass(frozen=True, slots=True)
class Family:
    """A job table; `title` is what messages and the table of legal moves call it."""

    name: str
    title: str
    table: str
    channel: str
    result_column: str
    statuses: tuple[JobStatus, ...]
    emits_events: bool
    # The view over the table and the history by months, for a family that has one.
    with_history: str | None = None

    def source(self, statuses: Iterable[str] | None = None) -> str:
        """What has all rows in these statuses, or in any: the table alone, unless some may have moved."""
        if self.with_history is None or (statuses is not None and HISTORY.isdisjoint(statuses)):
            return self.table
        return self.with_history

    @property
    def sequence(self) -> str:
        """The sequence of `position`."""
        return f"{self.table}_position_seq"


NODE: Final = Family(
    name=JobFamily.NODE.value,
    title="node job",
    table="workflow_node_jobs",
    channel="node_job_ready",
    result_column="context_delta",
    statuses=NODE_STATUSES,
    emits_events=True,
)
INGEST: Final = Family(
    name=JobFamily.INGEST.value,
    title="ingest job",
    table="ingest_jobs",
    channel="ingest_job_ready",
    result_column="result",
    statuses=INGEST_STATUSES,
    emits_events=False,
    with_history="ingest_jobs_and_history",
)
FAMILIES: Final = (NODE, INGEST)
BY_NAME: Final[Mapping[str, Family]] = {family.name: family for family in FAMILIES}
LARGEST_ID: Final = 2**63 - 1
_JOB_NAME: Final = re.compile(r"(?:(node|ingest):)?([0-9]{1,19})")


def named_job(name: str) -> tuple[Family | None, int] | None:
    """The family, None if it is not said, and the id that `node:7` or `7` names; None if that is no job."""
    found = _JOB_NAME.fullmatch(name)
    if found is None or not 0 < int(found[2]) <= LARGEST_ID:
        return None
    return (BY_NAME[found[1]] if found[1] else None), int(found[2])


# What the CTE `ended` returns, for the caller and, of nodes, for the events.
_ENDED: Final = "job.id, job.status, job.attempt"
_ENDED_NODE: Final = """job.id, job.status, job.attempt, job.run_id, job.generation,
    job.errors -> -1 AS error, CASE job.status
        WHEN 'scheduled' THEN job.step IS NOT NULL AND job.hold_reason IS NULL AND job.failures > 0
        WHEN 'queued' THEN job.background AND job.inputs ->> 'at_seal' = 'kill'
        ELSE job.status <> 'running'
    END AS told"""
# The end of that, where all columns of the job are returned beside it.
_FOR_EVENTS: Final = ", job.errors -> -1 AS error, job.status <> 'running' AS told"
# events: what the orchestrator has to act on; the row and its event are one statement, so one cannot be
# without the other. A second event of the same end is the same event. What is tried again is news for the
# steps of a pipeline alone, which do not wait for the next attempt; what is given back, with its worker for
# example, for those that work with it, if it lasts until the seal.
_EVENTS: Final = """, events AS (
    INSERT INTO workflow_dispatch_events (run_id, node_job_id, generation, attempt, kind, payload)
    SELECT run_id, id, generation, attempt,
        CASE status WHEN 'scheduled' THEN 'attempted' WHEN 'queued' THEN 'lost' ELSE status END,
        CASE status WHEN 'failed' THEN jsonb_build_object('error', error) ELSE '{}' END
    FROM ended WHERE told
    ON CONFLICT (node_job_id, generation, attempt, kind) DO NOTHING
)"""
# runs: those of some nodes that go on, locked before the nodes, as the orchestrator does it; the same one
# named often is no harm, where DISTINCT could lead to an index of all nodes. uncounted: ends that it has not
# acted upon, locked so that it does not meanwhile.
_RUNS: Final = """runs AS MATERIALIZED (
    SELECT id FROM workflow_runs
    WHERE id = ANY (ARRAY(SELECT run_id FROM {table} WHERE id = ANY (%(ids)s::bigint[])))
        AND status NOT IN ({run_terminal}) AND cancel_requested_at IS NULL
    ORDER BY id
    FOR SHARE
), uncounted AS MATERIALIZED (
    SELECT event.id, event.node_job_id FROM workflow_dispatch_events AS event
    WHERE event.node_job_id = ANY (%(ids)s::bigint[]) AND event.run_id = ANY (ARRAY(SELECT id FROM runs))
        AND event.kind IN ({terminal})
        AND event.generation = (SELECT job.generation FROM {table} AS job WHERE job.id = event.node_job_id)
    ORDER BY event.id
    FOR UPDATE
), """
# By IS TRUE, which no index answers: the planner might else read all jobs of a run beside those of these ids.
_OF_RUNS: Final = """
        AND (run_id = ANY (ARRAY(SELECT id FROM runs))) IS TRUE
        AND (id = ANY (ARRAY(SELECT node_job_id FROM uncounted)) OR NOT EXISTS (
            SELECT FROM workflow_nodes AS node
            WHERE node.run_id = {table}.run_id AND node.node_id = {table}.node_id
        ))"""
# Whether an orchestrator counts the ends of a node's jobs.
_IS_PLANNED: Final = """EXISTS (
    SELECT FROM workflow_nodes AS node WHERE node.run_id = {table}.run_id AND node.node_id = {table}.node_id
)"""
# Looked up by id and nothing else, whatever the planner believes. The array makes every scan of the table one
# by its primary key, where a plan made on a small table would read all of a large one. No index serves IS NOT
# DISTINCT FROM, where `=` would lead to that of the running rows, with the dead entries that a snapshot
# keeps. `held` is the word 'running' out of `given`: said of the table it would make the planner expect one
# row of the scan, and compare each row of a batch with each.
FENCE: Final = """job.id = ANY (%(ids)s::bigint[]) AND job.id = given.id
    AND (job.attempt, job.claimed_by, job.status)
        IS NOT DISTINCT FROM (given.attempt, given.claimed_by, given.held)"""
# The same where one row of `given` is for all of the jobs.
FENCE_OF_ALL: Final = """job.id = ANY (%(ids)s::bigint[])
    AND (job.attempt, job.claimed_by, job.status)
        IS NOT DISTINCT FROM (given.attempt, given.claimed_by, given.held)"""
# Only where the statement is its own transaction; a setting of the caller's transaction is not ours to make.
ASYNCHRONOUSLY: Final = """(
    SELECT CASE
        WHEN %(relaxed)s::boolean THEN set_config('synchronous_commit', 'off', true) = 'off' ELSE true
    END
)"""
# On disk before the answer, also where the server or the role commits asynchronously.
SYNCHRONOUSLY: Final = """(
    SELECT CASE
        WHEN current_setting('synchronous_commit') = 'off'
        THEN set_config('synchronous_commit', 'on', true) = 'on' ELSE true
    END
)"""
# Sweepers that take turns leave it to one that is at it at this moment. The lock lasts as long as the
# statement's own transaction: held over several statements, it would stay with a sweeper that is stopped
# between two of them. Its class stands beside that of the wake's locks, 7714.
IN_TURN: Final = """(
    SELECT CASE WHEN %(in_turn)s::boolean THEN pg_try_advisory_xact_lock(7715, 1) ELSE true END
)"""
# All but the oldest of the entries that are kept, so that one more has its place.
_ERRORS: Final = f"jsonb_path_query_array(job.errors, '$[last - {ERRORS_KEPT - 2} to last]')"
# What is kept of a hold by the statement that ends it, so that claims and other ends write nothing for it. A
# job is put aside right after its claim, so `started_at` says since when, or when it is enqueued; in a lane,
# for which nobody claims it, `run_at` does, which is that moment and a fixed time. Holds for one thing in
# attempts that follow each other are one entry.
PAST_HOLDS: Final = f"""CASE
    WHEN job.hold_reason IS NULL THEN job.past_holds
    WHEN (job.past_holds -> -1 ->> 'reason', job.past_holds -> -1 ->> 'key',
            (job.past_holds -> -1 ->> 'attempt')::integer + 1)
        IS NOT DISTINCT FROM (job.hold_reason, job.hold_key, job.attempt)
    THEN jsonb_set(job.past_holds, '{{-1}}', job.past_holds -> -1 || jsonb_build_object(
        'until', statement_timestamp(), 'attempt', job.attempt,
        'times', (job.past_holds -> -1 ->> 'times')::integer + 1))
    ELSE COALESCE(jsonb_path_query_array(job.past_holds, '$[last - {HOLDS_KEPT - 2} to last]'), '[]')
        || jsonb_build_object('reason', job.hold_reason, 'key', job.hold_key,
            'since', GREATEST(job.created_at, job.started_at,
                job.run_at - make_interval(secs => {LONGEST_S})),
            'until', statement_timestamp(), 'attempt', job.attempt, 'times', 1)
END"""


def per_family(template: str, **fragments: str | Mapping[str, str]) -> Mapping[str, str]:
    """A statement for each family, by its name; a fragment may be another one for each."""
    return {family.name: _written(template, family, fragments) for family in FAMILIES}


def _written(template: str, family: Family, fragments: Mapping[str, str | Mapping[str, str]]) -> str:
    own = {name: sql if isinstance(sql, str) else sql[family.name] for name, sql in fragments.items()}
    # The names last, as fragments have marks for them.
    return unindented(_filled(_filled(template, _shared(family) | own), _names(family)))


def unindented(statement: str) -> str:
    """As it is sent: the driver keeps what it has parsed of a statement of up to 4,096 bytes."""
    return "\n".join(line.strip() for line in statement.strip().splitlines())


def _filled(template: str, known: Mapping[str, str]) -> str:
    for mark, fragment in known.items():
        template = template.replace(f"{{{mark}}}", fragment)
    return template


def _shared(family: Family) -> dict[str, str]:
    """The fragments that every statement may name; what a family has no use for is nothing."""
    return {
        "events": _EVENTS if family.emits_events else "",
        "ended": _ENDED_NODE if family.emits_events else _ENDED,
        "for_events": _FOR_EVENTS if family.emits_events else "",
        "runs": _RUNS if family is NODE else "",
        "of_runs": _OF_RUNS if family is NODE else "",
        "is_planned": _IS_PLANNED,
        "fence": FENCE,
        "asynchronously": ASYNCHRONOUSLY,
        "synchronously": SYNCHRONOUSLY,
        "errors": _ERRORS,
        "past_holds": PAST_HOLDS,
    }


def _names(family: Family) -> dict[str, str]:
    """What is no SQL by itself: tables, columns, words, numbers."""
    columns = Table[Any](family.table).columns
    return {
        "run_terminal": _words(sorted(RUN_TERMINAL)),
        "columns": columns,
        "job_columns": columns.replace(f"{family.table}.", "job."),
        "table": family.table,
        "source": family.source(),
        "other": next(other.table for other in FAMILIES if other is not family),
        "sequence": family.sequence,
        "result": family.result_column,
        "title": family.title,
        "name": family.name,
        "kind": "node_module" if family is NODE else "task_name",
        "is_background": "background" if family is NODE else "false",
        "errors_before": str(ERRORS_KEPT - 2),
        "terminal": _words(sorted(JOB_TERMINAL)),
        "open": _words(status for status in family.statuses if status not in JOB_TERMINAL),
    }


def _words(words: Iterable[str]) -> str:
    return ", ".join(f"'{word}'" for word in words)
