"""What the first page asks about everything at once: how full, how fast, and what waits for an orchestrator.

`FACTS` puts into one statement what `queue_statistics` counts one by one, beside the outbox, parked inputs
and machines. `PACE` counts what ended in each minute of the last hour, up to a bound in each, so that its
cost does not grow with what is stored. What is stuck is in `stuck_jobs`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from queue_workflows.repositories.explain.explain_run import ORCHESTRATORS
from queue_workflows.repositories.reports.queue_statistics import (
    AWAITING,
    COUNTED,
    QUEUED,
    RUNNING,
    SCHEDULED,
)
from queue_workflows.repositories.runs.outbox import DUE
from queue_workflows.repositories.sql.connection import Handle, Statements
from queue_workflows.repositories.sql.families import FAMILIES, INGEST, NODE, per_family

MINUTES: Final = 60
# Of jobs that ended in one minute, and of one family.
COUNTED_A_MINUTE: Final = 1_000
# Of the oldest events of the outbox.
EVENTS_LOOKED_AT: Final = 10_000

# Each row is a fact: what it is about, its name, a count, an age in seconds, and what else there is to say.
# outbox: the oldest events that nobody gave up, with how many are due and how many of them failed before.
_FACTS: Final = """
SELECT 'queued ' || family, queue, count, age_s, NULL::text FROM (
    SELECT 'node' AS family, part.* FROM ({queued_node}) AS part (queue, count, age_s)
    UNION ALL
    SELECT 'ingest', part.* FROM ({queued_ingest}) AS part (queue, count, age_s)
) AS queued
UNION ALL
SELECT 'scheduled ' || family, queue, count, NULL, hold_reason FROM (
    SELECT 'node' AS family, part.* FROM ({scheduled_node}) AS part (queue, hold_reason, count)
    UNION ALL
    SELECT 'ingest', part.* FROM ({scheduled_ingest}) AS part (queue, hold_reason, count)
) AS scheduled
UNION ALL
SELECT 'running ' || family, queue, count, age_s, NULL FROM (
    SELECT 'node' AS family, part.* FROM ({running_node}) AS part (queue, count, age_s)
    UNION ALL
    SELECT 'ingest', part.* FROM ({running_ingest}) AS part (queue, count, age_s)
) AS running
UNION ALL
SELECT 'awaiting node', queue, count, NULL, NULL FROM ({awaiting}) AS part (queue, count)
UNION ALL
SELECT 'inputs', NULL, count(*), extract(epoch FROM statement_timestamp() - min(run_at))::float8,
    (array_agg(run_id || ' ' || node_id ORDER BY run_at, id))[1]
FROM (
    SELECT id, run_id, node_id, run_at FROM workflow_node_jobs
    WHERE status = 'awaiting_input' AND kind = 'input' LIMIT %(most)s::bigint
) AS parked
UNION ALL
SELECT fact.* FROM (
    SELECT count(*) FILTER (WHERE {due}) AS due, count(*) FILTER (WHERE {due} AND tries > 0) AS failing,
        extract(epoch FROM statement_timestamp() - min(created_at) FILTER (WHERE {due}))::float8 AS age_s,
        (array_agg(run_id::text ORDER BY id) FILTER (WHERE {due}))[1] AS example,
        (array_agg(run_id::text ORDER BY id) FILTER (WHERE {due} AND tries > 0))[1] AS failed_example
    FROM (
        SELECT id, run_id, kind, tries, created_at, poisoned_at, next_try_at FROM workflow_dispatch_events
        ORDER BY id LIMIT {events}
    ) AS event
) AS outbox
CROSS JOIN LATERAL (
    VALUES ('events due', NULL, due, age_s, example), ('events failing', NULL, failing, NULL, failed_example)
) AS fact
UNION ALL
SELECT 'events poisoned', NULL, count(*),
    extract(epoch FROM statement_timestamp() - min(poisoned_at))::float8,
    (array_agg(run_id::text ORDER BY poisoned_at))[1]
FROM (
    SELECT run_id, poisoned_at FROM workflow_dispatch_events
    WHERE poisoned_at IS NOT NULL ORDER BY poisoned_at LIMIT {events}
) AS poisoned
UNION ALL
SELECT 'runs to begin', NULL, count(*), extract(epoch FROM statement_timestamp() - min(created_at))::float8,
    (array_agg(id::text ORDER BY created_at))[1]
FROM (
    SELECT id, created_at FROM workflow_runs
    WHERE status = 'queued' AND mode = 'node' AND hold_reason IS NULL
    ORDER BY priority DESC, id LIMIT {events}
) AS run
UNION ALL
SELECT 'orchestrators', NULL, count(DISTINCT pid), NULL, NULL FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE %(orchestrators)s::text
UNION ALL
SELECT 'host', host_label, NULL, extract(epoch FROM statement_timestamp() - sampled_at)::float8,
    jsonb_build_object('every_s', every_s, 'reading', reading)::text
FROM host_hardware
UNION ALL
SELECT 'now', NULL, NULL, extract(epoch FROM statement_timestamp())::float8, NULL
"""


def _written(template: str) -> str:
    parts = {
        "{queued_node}": QUEUED[NODE.name],
        "{queued_ingest}": QUEUED[INGEST.name],
        "{scheduled_node}": SCHEDULED[NODE.name],
        "{scheduled_ingest}": SCHEDULED[INGEST.name],
        "{running_node}": RUNNING[NODE.name],
        "{running_ingest}": RUNNING[INGEST.name],
        "{awaiting}": AWAITING,
        "{due}": DUE,
        "{events}": str(EVENTS_LOOKED_AT),
    }
    for mark, part in parts.items():
        template = template.replace(mark, part)
    return template


FACTS: Final = _written(_FACTS)
# minute: each of the last hour, by how long ago it ended. ended: what ended in it, up to the bound.
_ENDED: Final = per_family(
    """
SELECT '{name}', minute.ago, ended.queue, count(*), count(*) FILTER (WHERE ended.status = 'failed')
FROM generate_series(0, {minutes} - 1) AS minute (ago)
CROSS JOIN LATERAL (
    SELECT queue, status FROM {table}
    WHERE finished_at > statement_timestamp() - make_interval(mins => minute.ago + 1)
        AND finished_at <= statement_timestamp() - make_interval(mins => minute.ago)
    LIMIT {most}
) AS ended
GROUP BY minute.ago, ended.queue
""",
    minutes=str(MINUTES),
    most=str(COUNTED_A_MINUTE),
)
PACE: Final = "\nUNION ALL\n".join(_ENDED[family.name] for family in FAMILIES)


@dataclass(frozen=True, slots=True)
class Fact:
    """One count with its age in seconds and what else there is to say, as text."""

    count: int
    age_s: float | None
    detail: str | None


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """A queue of one family; a count at the bound is a lower one, which `at_least` names."""

    family: str
    queue: str
    queued: int
    oldest_queued_s: float | None
    scheduled: int
    held: Mapping[str, int]
    running: int
    awaiting_input: int
    at_least: frozenset[str]


@dataclass(frozen=True, slots=True)
class MachineFact:
    """A machine's last reading, `age_s` old, of a supervisor that looks every `every_s`."""

    host_label: str
    age_s: float
    every_s: float
    reading: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Facts:
    """All of it as of one moment of the database's clock."""

    now: datetime
    queues: list[QueueCounts]
    inputs: Fact
    due: Fact
    failing: Fact
    poisoned: Fact
    to_begin: Fact
    orchestrators: int
    machines: list[MachineFact]


@dataclass(frozen=True, slots=True)
class Pace:
    """What of a queue ended in one minute, and how much of that failed; `ago` 0 is the last minute."""

    family: str
    ago: int
    queue: str
    ended: int
    failed: int


class OverviewRepository:
    """Reads on the caller's connection; changes nothing."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, INGEST.table)

    def facts(self, *, most: int = COUNTED) -> Facts:
        """Counts up to `most`."""
        rows = self._sql.rows(FACTS, {"most": most, "orchestrators": ORCHESTRATORS})
        single: dict[str, Fact] = {}
        queues: dict[tuple[str, str], dict[str, Any]] = {}
        machines = []
        for about, name, count, age_s, detail in rows:
            kind, _, family = about.partition(" ")
            if kind == "host":
                machines.append(MachineFact(name, age_s, **json.loads(detail)))
            elif name is None:
                single[about] = Fact(count or 0, age_s, detail)
            else:
                _note(queues.setdefault((name, family), _nothing(name, family)), kind, count, age_s, detail)
        return Facts(
            datetime.fromtimestamp(single["now"].age_s or 0.0, UTC),
            [_counts(queues[key], _scheduled_of(queues, key[1]) >= most, most) for key in sorted(queues)],
            inputs=single["inputs"],
            due=single["events due"],
            failing=single["events failing"],
            poisoned=single["events poisoned"],
            to_begin=single["runs to begin"],
            orchestrators=single["orchestrators"].count,
            machines=sorted(machines, key=lambda one: one.host_label),
        )

    def pace(self) -> list[Pace]:
        """What ended in each minute of the last hour, by family and queue, up to a bound in each."""
        return [Pace(*row) for row in self._sql.rows(PACE, {})]


def _nothing(queue: str, family: str) -> dict[str, Any]:
    counts = {"queued": 0, "oldest_queued_s": None, "scheduled": 0, "running": 0, "awaiting_input": 0}
    return {"family": family, "queue": queue, "held": {}} | counts


def _note(one: dict[str, Any], kind: str, count: int, age_s: float | None, detail: str | None) -> None:
    if kind == "queued":
        one["queued"], one["oldest_queued_s"] = count, age_s
    elif kind == "scheduled" and detail is not None:
        one["held"][detail] = count
    else:
        one["awaiting_input" if kind == "awaiting" else kind] = count


def _scheduled_of(queues: Mapping[tuple[str, str], Mapping[str, Any]], family: str) -> int:
    """How many of a family's scheduled jobs were counted, on hold or not."""
    return sum(
        one["scheduled"] + sum(one["held"].values()) for one in queues.values() if one["family"] == family
    )


def _counts(one: dict[str, Any], is_cut: bool, most: int) -> QueueCounts:
    at_least = {"scheduled", "held"} if is_cut else set()
    at_least |= {name for name in ("queued", "awaiting_input") if one[name] >= most}
    return QueueCounts(**one, at_least=frozenset(at_least))
