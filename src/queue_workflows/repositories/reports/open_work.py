"""What is not over, by the names that code must know: tasks, arguments of their jobs, and node modules.

Read by the indexes of what is open, however much is stored that is over. Jobs are looked at up to a bound in
each status; keys of limits, which are asked for where a limit changes, without one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing
from typing import Any, Final, NamedTuple

import psycopg

from queue_workflows.repositories.sql.connection import Statements
from queue_workflows.repositories.sql.families import INGEST, NODE, per_family
from queue_workflows.repositories.workers.code import WorkerCodeRepository
from queue_workflows.states import NODE_OVER

# Of each status of each family.
COUNTED: Final = 1_000_000
# Jobs of which the arguments are looked at.
MOST_ARGS: Final = 100_000
_AT_A_TIME: Final = 500

_TASKS: Final = """
SELECT task_name, NULL::text, queue, count(*), min(id) FROM (
    (SELECT task_name, queue, id FROM ingest_jobs WHERE status = 'queued' LIMIT {counted})
    UNION ALL
    (SELECT task_name, queue, id FROM ingest_jobs WHERE status = 'scheduled' LIMIT {counted})
    UNION ALL
    (SELECT task_name, queue, id FROM ingest_jobs WHERE status = 'running' LIMIT {counted})
) AS job
GROUP BY task_name, queue
ORDER BY task_name, queue
"""
TASKS: Final = _TASKS.replace("{counted}", str(COUNTED))
_MODULES: Final = """
SELECT node_module, required_model, queue, count(*), min(id) FROM (
    (SELECT node_module, required_model, queue, id FROM workflow_node_jobs
        WHERE status = 'queued' AND plugin IS NULL LIMIT {counted})
    UNION ALL
    (SELECT node_module, required_model, queue, id FROM workflow_node_jobs
        WHERE status = 'scheduled' AND plugin IS NULL LIMIT {counted})
    UNION ALL
    (SELECT node_module, required_model, queue, id FROM workflow_node_jobs
        WHERE status = 'running' AND plugin IS NULL LIMIT {counted})
    UNION ALL
    (SELECT node_module, required_model, queue, id FROM workflow_node_jobs
        WHERE status = 'awaiting_input' AND plugin IS NULL LIMIT {counted})
) AS job
WHERE node_module IS NOT NULL OR required_model IS NOT NULL
GROUP BY node_module, required_model, queue
ORDER BY node_module, required_model, queue
"""
MODULES: Final = _MODULES.replace("{counted}", str(COUNTED))
# Each status has an index of its own; jobs that run are few.
ARGS: Final = """
SELECT id, task_name, args FROM (
    (SELECT id, task_name, args FROM ingest_jobs
        WHERE status = 'queued' AND task_name = ANY (%(tasks)s::text[]) LIMIT %(most)s::bigint)
    UNION ALL
    (SELECT id, task_name, args FROM ingest_jobs
        WHERE status = 'scheduled' AND task_name = ANY (%(tasks)s::text[]) LIMIT %(most)s::bigint)
    UNION ALL
    (SELECT id, task_name, args FROM ingest_jobs
        WHERE status = 'running' AND task_name = ANY (%(tasks)s::text[]) LIMIT %(most)s::bigint)
) AS job
LIMIT %(most)s::bigint
"""
# Whether there are any durable functions: not in a schema from before them.
HAS_STEPS: Final = "SELECT to_regclass('durable_steps') IS NOT NULL"
# job: open ones that were begun, of one family. first: which code made their steps, as an attempt sees it: a
# version by the first step that has one, before those that a copy took for any code; a round says nothing.
_DURABLE: Final = """
SELECT job.{kind}, first.version, first.kind = 'round', job.queue, count(*), min(job.id) FROM (
    (SELECT {kind}, queue, id FROM {table} WHERE status = 'queued' AND attempt > 0 LIMIT {counted})
    UNION ALL
    (SELECT {kind}, queue, id FROM {table} WHERE status = 'scheduled' AND attempt > 0 LIMIT {counted})
    UNION ALL
    (SELECT {kind}, queue, id FROM {table} WHERE status = 'running' AND attempt > 0 LIMIT {counted})
) AS job
CROSS JOIN LATERAL (
    SELECT version, kind FROM durable_steps
    WHERE job_family = '{name}' AND job_id = job.id
    ORDER BY kind = 'round', version IS NOT DISTINCT FROM '', position, name, call
    LIMIT 1
) AS first
GROUP BY 1, 2, 3, 4
ORDER BY 1, 2, 3, 4
"""
DURABLE: Final = per_family(_DURABLE, counted=str(COUNTED))
# Open jobs that durable functions have spawned, by their tasks, with how many of those wait for them.
_SPAWNED: Final = """
SELECT job.task_name, job.queue, count(*), min(job.id), count(DISTINCT job.spawned_by) FROM (
    (SELECT task_name, queue, id, spawned_by FROM ingest_jobs WHERE status = 'queued' LIMIT {counted})
    UNION ALL
    (SELECT task_name, queue, id, spawned_by FROM ingest_jobs WHERE status = 'scheduled' LIMIT {counted})
    UNION ALL
    (SELECT task_name, queue, id, spawned_by FROM ingest_jobs WHERE status = 'running' LIMIT {counted})
) AS job
WHERE job.spawned_by IS NOT NULL
GROUP BY 1, 2
ORDER BY 1, 2
"""
SPAWNED: Final = _SPAWNED.replace("{counted}", str(COUNTED))
# open_runs: those that have yet to begin, and those that have. documents: each snapshot of theirs. named:
# what its nodes ask for by name.
DOCUMENTS: Final = """
WITH open_runs AS MATERIALIZED (
    SELECT id, spec_hash FROM workflow_runs WHERE status = 'queued' AND mode = 'node'
    UNION ALL
    SELECT id, spec_hash FROM workflow_runs WHERE status = 'running' AND mode = 'node'
), documents AS MATERIALIZED (
    SELECT DISTINCT ON (spec_hash) id FROM open_runs ORDER BY spec_hash
)
SELECT DISTINCT named.module, named.model
FROM documents
JOIN workflow_runs AS run ON run.id = documents.id
CROSS JOIN LATERAL (
    SELECT node ->> 'module' AS module, node ->> 'model' AS model
    FROM jsonb_path_query(run.spec, '$.nodes[*]') AS node
    WHERE node ->> 'plugin' IS NULL
) AS named
WHERE named.module IS NOT NULL OR named.model IS NOT NULL
ORDER BY named.module, named.model
"""
# run: the open ones. node: each of theirs that asks for one of these names and has not begun or is not over.
_AHEAD: Final = """
SELECT node.item ->> %(field)s::text, run.workflow_name, count(DISTINCT run.id),
    (array_agg(run.id::text ORDER BY run.id))[1]
FROM (
    SELECT id, workflow_name, spec FROM workflow_runs WHERE status = 'queued' AND mode = 'node'
    UNION ALL
    SELECT id, workflow_name, spec FROM workflow_runs WHERE status = 'running' AND mode = 'node'
) AS run
CROSS JOIN LATERAL jsonb_path_query(run.spec, '$.nodes[*]') AS node (item)
WHERE node.item ->> %(field)s::text = ANY (%(names)s::text[]) AND node.item ->> 'plugin' IS NULL
    AND NOT EXISTS (
        SELECT FROM workflow_nodes AS begun
        WHERE begun.run_id = run.id AND begun.node_id = node.item ->> 'id' AND begun.state IN ({over})
    )
GROUP BY 1, 2
ORDER BY 1, 2
"""
AHEAD: Final = _AHEAD.replace("{over}", ", ".join(f"'{state}'" for state in sorted(NODE_OVER)))
_KEYS: Final = per_family(
    """
SELECT limit_key, count(*) FROM (
    SELECT limit_key FROM {table} WHERE status = 'queued' AND limit_key IS NOT NULL
    UNION ALL
    SELECT limit_key FROM {table} WHERE status = 'scheduled' AND limit_key IS NOT NULL
    UNION ALL
    SELECT limit_key FROM {table} WHERE status = 'running' AND limit_key IS NOT NULL
) AS job
GROUP BY limit_key
"""
)
KEYS: Final = "\nUNION ALL\n".join(_KEYS.values())


class OpenWork(NamedTuple):
    """Open jobs of one task or module, and of one model, on one queue; `first` is the oldest."""

    name: str | None
    model: str | None
    queue: str
    jobs: int
    first: int


class InFlight(NamedTuple):
    """Open jobs of a task or module on one queue with steps of one version, or only at a round, as yet."""

    family: str
    name: str
    version: str | None
    is_at_a_round: bool
    queue: str
    jobs: int
    first: int


class Spawned(NamedTuple):
    """Open jobs of one task that durable functions have spawned, and how many functions these are of."""

    name: str
    queue: str
    jobs: int
    first: int
    parents: int


class Named(NamedTuple):
    """What a node of a document in flight asks for."""

    module: str | None
    model: str | None


class Ahead(NamedTuple):
    """Open runs of one workflow with a node before them that asks for a name; one of them."""

    name: str
    workflow: str
    runs: int
    example: str


class OpenWorkRepository:
    """Reads on the caller's connection: its transaction makes them fit together."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._sql = Statements(connection, "ingest_jobs")

    def tasks(self) -> list[OpenWork]:
        """Open ingest jobs by task and queue."""
        return [OpenWork(*row) for row in self._sql.rows(TASKS, {})]

    def durable(self) -> list[InFlight]:
        """Open jobs with stored steps, by task or module, version and queue."""
        if not self._has_steps():
            return []
        return [
            InFlight(family.name, *row)
            for family in (INGEST, NODE)
            for row in self._sql.rows(DURABLE[family.name], {})
        ]

    def spawned(self) -> list[Spawned]:
        """Open jobs that durable functions have spawned, by task and queue."""
        return [Spawned(*row) for row in self._sql.rows(SPAWNED, {})] if self._has_steps() else []

    def code_names(self) -> list[list[str]]:
        """What workers said of the code of durable functions, the last seen first."""
        return WorkerCodeRepository(self._connection).code_names() if self._has_steps() else []

    def _has_steps(self) -> bool:
        return bool(self._sql.rows(HAS_STEPS, {})[0][0])

    def modules(self) -> list[OpenWork]:
        """Open node jobs by module, model and queue, but for hooks, which are files of a machine."""
        return [OpenWork(*row) for row in self._sql.rows(MODULES, {})]

    def args_of(self, tasks: Collection[str]) -> Iterator[tuple[int, str, dict[str, Any]]]:
        """Open jobs of these tasks with their arguments, a few at a time; inside a transaction."""
        with closing(self._connection.cursor(name="qwf_open_args")) as cursor:
            cursor.itersize = _AT_A_TIME
            cursor.execute(ARGS, {"tasks": sorted(tasks), "most": MOST_ARGS})
            yield from cursor

    def named_in_documents(self) -> list[Named]:
        """What the nodes of documents in flight ask for."""
        return [Named(*row) for row in self._sql.rows(DOCUMENTS, {})]

    def ahead(self, field: str, names: Collection[str]) -> list[Ahead]:
        """Open runs with nodes ahead that ask for one of these names, of `field`: `module` or `model`."""
        return [Ahead(*row) for row in self._sql.rows(AHEAD, {"field": field, "names": sorted(names)})]

    def keys(self) -> list[tuple[str, int]]:
        """Keys of limits with how many open jobs have each; a key of both families comes twice."""
        return [(key, jobs) for key, jobs in self._sql.rows(KEYS, {})]
