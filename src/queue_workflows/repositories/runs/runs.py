"""Workflow runs: starting them once, and reading them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from queue_workflows.models import uuid7
from queue_workflows.repositories.jobs.bulk_insert import insert_or_find
from queue_workflows.repositories.runs.tree import OPEN_RUNS
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.arrays import array, texts
from queue_workflows.repositories.sql.awaitable import awaitable
from queue_workflows.repositories.sql.columns import CHUNK_BYTES, CHUNK_ROWS
from queue_workflows.repositories.sql.table import Filters, Repository, Table
from queue_workflows.states import RunStatus

if TYPE_CHECKING:
    from queue_workflows.models import WorkflowRun

_TABLE: Final[Table[WorkflowRun]] = Table("workflow_runs")
K = TypeVar("K")

# A run that somebody starts. It names no more columns than a producer has a right to.
INSERT: Final = """
INSERT INTO workflow_runs (
    id, workflow_name, mode, spec, spec_hash, inputs, priority, dedupe_key, labels, parcel_id, traceparent
) VALUES (
    %(id)s::uuid, %(workflow_name)s::text, %(mode)s::text, %(spec)s::jsonb, %(spec_hash)s::text,
    %(inputs)s::jsonb, %(priority)s::smallint, %(dedupe_key)s::text, %(labels)s::jsonb, %(parcel_id)s::text,
    %(traceparent)s::text
)
ON CONFLICT (workflow_name, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
RETURNING id
"""
# The run with which a tree begins that has a cap, under which it is itself, or that it sets up.
INSERT_ROOT: Final = INSERT.replace(
    "traceparent\n)", "traceparent,\n    max_open_runs, capped_by, set_up_by\n)"
).replace(
    "%(traceparent)s::text\n)",
    "%(traceparent)s::text, %(max_open_runs)s::integer,\n"
    "    CASE WHEN %(max_open_runs)s::integer IS NOT NULL THEN %(id)s::uuid END,\n"
    "    CASE WHEN %(sets_up)s::boolean THEN %(id)s::uuid END\n)",
)
# A run that a node of another run starts.
INSERT_CHILD: Final = """
INSERT INTO workflow_runs (
    id, workflow_name, mode, spec, spec_hash, inputs, priority, dedupe_key, labels, parcel_id, traceparent,
    parent_run_id, parent_node_job_id, depth
) VALUES (
    %(id)s::uuid, %(workflow_name)s::text, %(mode)s::text, %(spec)s::jsonb, %(spec_hash)s::text,
    %(inputs)s::jsonb, %(priority)s::smallint, %(dedupe_key)s::text, %(labels)s::jsonb, %(parcel_id)s::text,
    %(traceparent)s::text, %(parent_run_id)s::uuid, %(parent_node_job_id)s::bigint, %(depth)s::smallint
)
ON CONFLICT (workflow_name, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
RETURNING id
"""
# The first run of a tree that another run has set up, with the host and under the cap of that.
INSERT_FIRST: Final = """
INSERT INTO workflow_runs (
    id, workflow_name, mode, spec, spec_hash, inputs, priority, labels, parcel_id, traceparent,
    parent_run_id, parent_node_job_id, depth, capped_by, set_up_by, pinned_host
)
SELECT %(id)s::uuid, %(workflow_name)s::text, %(mode)s::text, %(spec)s::jsonb, %(spec_hash)s::text, inputs,
    %(priority)s::smallint, %(labels)s::jsonb, parcel_id, traceparent, id, %(parent_node_job_id)s::bigint,
    depth + 1, capped_by, id, CASE WHEN pinned_host NOT LIKE '*%%' THEN pinned_host END
FROM workflow_runs WHERE id = %(set_up_by)s::uuid
RETURNING id
"""
# The runs that the elements of a list start: one document, and for each its id, its inputs and its node job.
INSERT_CHILDREN: Final = """
INSERT INTO workflow_runs (
    id, workflow_name, mode, spec, spec_hash, inputs, priority, labels, traceparent, parent_run_id,
    parent_node_job_id, depth, set_up_by
)
SELECT given.id, %(workflow_name)s::text, %(mode)s::text, %(spec)s::jsonb, %(spec_hash)s::text,
    given.inputs::jsonb, %(priority)s::smallint, %(labels)s::jsonb, %(traceparent)s::text,
    %(parent_run_id)s::uuid, given.job_id, %(depth)s::smallint,
    CASE WHEN %(sets_up)s::boolean THEN given.id END
FROM unnest(%(ids)s::uuid[], %(inputs)s::text[], %(jobs)s::bigint[]) AS given (id, inputs, job_id)
RETURNING id
"""
# The runs that a run has found on its way: one document, and for each its id, its inputs and its key. In the
# order of the keys, so that of two that find the same ones at once neither waits for the other in a circle.
# In a tree that was set up they belong where its setup is at work.
INSERT_FOUND: Final = """
INSERT INTO workflow_runs (
    id, workflow_name, mode, spec, spec_hash, inputs, priority, dedupe_key, labels, parcel_id, traceparent,
    parent_run_id, set_up_by, pinned_host, depth
)
SELECT given.id, %(workflow_name)s::text, %(mode)s::text, %(spec)s::jsonb, %(spec_hash)s::text,
    given.inputs::jsonb, %(priority)s::smallint, given.key, %(labels)s::jsonb, %(parcel_id)s::text,
    %(traceparent)s::text, %(parent_run_id)s::uuid, %(set_up_by)s::uuid, (
        SELECT pinned_host FROM workflow_runs
        WHERE id = %(set_up_by)s::uuid AND pinned_host NOT LIKE '*%%' LIMIT 1
    ), %(depth)s::smallint
FROM unnest(%(ids)s::uuid[], %(inputs)s::text[], %(keys)s::text[]) AS given (id, inputs, key)
ORDER BY given.key COLLATE "C"
ON CONFLICT (workflow_name, dedupe_key) WHERE dedupe_key IS NOT NULL DO NOTHING
RETURNING id
"""
# Under a cap each of them waits until the run that has it lets it begin.
INSERT_HELD: Final = INSERT_FOUND.replace("depth\n)", "depth, capped_by, hold_reason\n)").replace(
    "%(depth)s::smallint\n", "%(depth)s::smallint,\n    %(capped_by)s::uuid, %(hold_reason)s::text\n"
)
FIND: Final = """
SELECT id FROM workflow_runs
WHERE workflow_name = %(workflow_name)s::text AND dedupe_key = %(dedupe_key)s::text
"""
FETCH: Final = _TABLE.sql("SELECT {columns} FROM workflow_runs WHERE id = %(id)s::uuid")
# For a caller that asks again and again: the document of a run may be large, and never changes.
FETCH_AGAIN: Final = FETCH.replace("workflow_runs.spec::text AS spec", "NULL AS spec")
# found: the runs that were found on the way, for which no node of this one waits, and all that is open of the
# tree that it has set up. Told by their own outbox, because a holder of one run never waits for another.
CANCEL_FOUND: Final = """
WITH found AS (
    SELECT id FROM workflow_runs
    WHERE parent_run_id = %(run_id)s::uuid AND parent_node_job_id IS NULL AND status IN ('queued', 'running')
    UNION
    SELECT id FROM workflow_runs
    WHERE set_up_by = %(run_id)s::uuid AND finished_at IS NULL AND parent_node_job_id IS NULL
        AND id <> %(run_id)s::uuid
)
INSERT INTO workflow_dispatch_events (run_id, generation, attempt, kind, payload)
SELECT id, 1, 0, 'cancel', jsonb_build_object('reason', %(reason)s::text) FROM found
RETURNING run_id
"""
# How a run ended, without its document, which may be large.
FINISHED: Final = """
SELECT id, workflow_name, status, inputs::text, outputs::text, error::text, labels::text, parcel_id,
    dedupe_key, created_at, started_at, finished_at
FROM workflow_runs
WHERE id = %(id)s::uuid AND (finished_at IS NOT NULL OR %(anyhow)s::boolean)
"""
COUNTS: Final = """
SELECT workflow_name, status, count(*) FROM workflow_runs
GROUP BY workflow_name, status ORDER BY workflow_name, status
"""


def named_run(name: str) -> uuid.UUID | None:
    """The run that `run:ID` or `ID` names; None if that is no run."""
    try:
        return uuid.UUID(name.removeprefix("run:"))
    except ValueError:
        return None


class StartedRun(NamedTuple):
    """The run's id, and whether this call made it; if not, the run that had the key already."""

    id: uuid.UUID
    created: bool


class ParentNode(NamedTuple):
    """The node job that a child run belongs to, and how deep that is; a root run has depth 0.

    Without a node job nobody waits for the child: it was found on the way.
    """

    run_id: uuid.UUID
    node_job_id: int | None
    depth: int


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run that is over: what `on_run_finished` hooks are called with."""

    id: uuid.UUID
    workflow: str
    status: RunStatus
    inputs: dict[str, Any]
    outputs: dict[str, Any] | None
    error: dict[str, Any] | None
    labels: dict[str, Any]
    parcel_id: str | None
    dedupe_key: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime


def _as_it_was(run: FinishedRun, earlier: dict[str, Any]) -> FinishedRun:
    return replace(
        run,
        status=RunStatus(earlier["status"]),
        outputs=earlier["outputs"],
        error=earlier["error"],
        finished_at=datetime.fromisoformat(earlier["finished_at"]),
    )


def _in_parts(inputs: Mapping[K, str]) -> Iterator[list[K]]:
    """The keys, so many at a time that a statement stays of a bearable size."""
    part: list[K] = []
    size = 0
    for key, text in inputs.items():
        if part and (len(part) == CHUNK_ROWS or size + len(text) > CHUNK_BYTES):
            yield part
            part, size = [], 0
        part.append(key)
        size += len(text)
    if part:
        yield part


class RunRepository(Repository["WorkflowRun"]):
    """Runs on the caller's connection."""

    _table = _TABLE

    def insert(
        self,
        workflow_name: str,
        *,
        spec: dict[str, Any],
        spec_hash: str,
        inputs: dict[str, Any] | None = None,
        mode: str = "node",
        priority: int = 5,
        dedupe_key: str | None = None,
        labels: dict[str, Any] | None = None,
        parcel_id: str | None = None,
        traceparent: str | None = None,
        parent: ParentNode | None = None,
        max_open_runs: int | None = None,
        sets_up: bool = False,
    ) -> StartedRun:
        """Insert a run with a snapshot of its document, or find the one that has its `dedupe_key`.

        Of one without a parent `max_open_runs` is the cap of its tree; `sets_up` says that it sets that up.
        """
        shared = self._shared(
            workflow_name,
            mode=mode,
            spec=spec,
            spec_hash=spec_hash,
            priority=priority,
            labels=labels,
            traceparent=traceparent,
        )
        params = shared | {
            "id": uuid7(),
            "inputs": self._limits.json_object("inputs", inputs),
            "dedupe_key": check.text_or_none("dedupe_key", dedupe_key, max_bytes=check.KEY_BYTES),
            "parcel_id": check.text_or_none("parcel_id", parcel_id),
        }
        if parent is None and (max_open_runs is not None or sets_up):
            if max_open_runs is not None:
                check.whole("max_open_runs", max_open_runs, 1, check.INT_MAX)
            params |= {"max_open_runs": max_open_runs, "sets_up": sets_up}
            return StartedRun(*insert_or_find(self._sql, INSERT_ROOT, FIND, params))
        if parent is None:
            return StartedRun(*insert_or_find(self._sql, INSERT, FIND, params))
        params["parent_run_id"] = parent.run_id
        params["parent_node_job_id"] = parent.node_job_id
        params["depth"] = check.whole("depth", parent.depth, 0, check.SMALLINT_MAX)
        return StartedRun(*insert_or_find(self._sql, INSERT_CHILD, FIND, params))

    def insert_first(
        self,
        workflow_name: str,
        *,
        spec: dict[str, Any],
        spec_hash: str,
        priority: int,
        labels: dict[str, Any],
        set_up_by: uuid.UUID,
        parent_node_job_id: int,
    ) -> None:
        """Insert the first run of the tree that another run has set up, with the inputs of that."""
        shared = self._shared(
            workflow_name,
            mode="node",
            spec=spec,
            spec_hash=spec_hash,
            priority=priority,
            labels=labels,
            traceparent=None,
        )
        ids = {"id": uuid7(), "set_up_by": set_up_by, "parent_node_job_id": parent_node_job_id}
        self._sql.rows(INSERT_FIRST, shared | ids)

    def insert_children(
        self,
        workflow_name: str,
        *,
        spec: dict[str, Any],
        spec_hash: str,
        priority: int,
        labels: dict[str, Any],
        traceparent: str | None,
        parent_run_id: uuid.UUID,
        depth: int,
        inputs: Mapping[int, str],
        sets_up: bool = False,
    ) -> None:
        """Insert a run for each of these node jobs of one run; their `inputs` are checked JSON."""
        shared = self._shared(
            workflow_name,
            mode="node",
            spec=spec,
            spec_hash=spec_hash,
            priority=priority,
            labels=labels,
            traceparent=traceparent,
        )
        params = shared | {
            "parent_run_id": parent_run_id,
            "depth": check.whole("depth", depth, 0, check.SMALLINT_MAX),
            "sets_up": sets_up,
        }
        for part in _in_parts(inputs):
            given = {
                "ids": array(str(uuid7()) for _ in part),
                "inputs": texts(inputs[job_id] for job_id in part),
                "jobs": array(map(str, part)),
            }
            self._sql.rows(INSERT_CHILDREN, params | given)

    def insert_found(
        self,
        workflow_name: str,
        *,
        spec: dict[str, Any],
        spec_hash: str,
        priority: int,
        labels: dict[str, Any],
        parcel_id: str | None,
        traceparent: str | None,
        parent_run_id: uuid.UUID,
        depth: int,
        inputs: Mapping[str, str],
        capped_by: uuid.UUID | None = None,
        set_up_by: uuid.UUID | None = None,
    ) -> int:
        """Insert a run for each of these dedupe keys that none has yet; their `inputs` are checked JSON.

        They are on hold where their tree has a cap; the run that has it is told of them by the caller.
        """
        shared = self._shared(
            workflow_name,
            mode="node",
            spec=spec,
            spec_hash=spec_hash,
            priority=priority,
            labels=labels,
            traceparent=traceparent,
        )
        params = shared | {
            "parcel_id": check.text_or_none("parcel_id", parcel_id),
            "parent_run_id": parent_run_id,
            "set_up_by": set_up_by,
            "depth": check.whole("depth", depth, 0, check.SMALLINT_MAX),
        }
        statement = INSERT_FOUND
        if capped_by is not None:
            statement = INSERT_HELD
            params |= {"capped_by": capped_by, "hold_reason": OPEN_RUNS}
        # By age they are in the order in which they were found; within a millisecond ids are in none.
        ids = dict(zip(inputs, sorted(str(uuid7()) for _ in inputs), strict=True))
        in_order = {key: inputs[key] for key in sorted(inputs)}
        return sum(
            len(
                self._sql.rows(
                    statement,
                    params
                    | {
                        "ids": array(ids[key] for key in part),
                        "inputs": texts(inputs[key] for key in part),
                        "keys": texts(part),
                    },
                )
            )
            for part in _in_parts(in_order)
        )

    def _shared(
        self,
        workflow_name: str,
        *,
        mode: str,
        spec: dict[str, Any],
        spec_hash: str,
        priority: int,
        labels: dict[str, Any] | None,
        traceparent: str | None,
    ) -> dict[str, Any]:
        """What all runs have that are started together, checked."""
        return {
            "workflow_name": check.text("workflow_name", workflow_name),
            "mode": check.text("mode", mode),
            "spec": self._limits.json_object("spec", spec),
            "spec_hash": check.text("spec_hash", spec_hash),
            "priority": check.whole("priority", priority, 0, 9),
            "labels": self._limits.json_object("labels", labels),
            "traceparent": check.text_or_none("traceparent", traceparent, max_bytes=check.KEY_BYTES),
        }

    def fetch(self, run_id: uuid.UUID, *, known: WorkflowRun | None = None) -> WorkflowRun | None:
        """One run, or None; where it is the `known` one, all of it anew but for its document."""
        if known is None or known.id != run_id:
            return self._first(FETCH, {"id": run_id})
        rows = self._sql.rows(FETCH_AGAIN, {"id": run_id})
        found = next(iter(self._table.load(rows, spec=known.spec)), None)
        if found is not None and found.spec_hash != known.spec_hash:
            # It was retried with another one.
            return self._first(FETCH, {"id": run_id})
        return found

    def finished(self, run_id: uuid.UUID, was: str = "{}") -> FinishedRun | None:
        """How a run ended, or `was` when it ended before a retry; None if it is not over, or not there."""
        earlier = json.loads(was)
        rows = self._sql.rows(FINISHED, {"id": run_id, "anyhow": bool(earlier)})
        if not rows:
            return None
        run, workflow, status, inputs, outputs, error, labels, *rest = rows[0]
        now = FinishedRun(
            run,
            workflow,
            RunStatus(status),
            json.loads(inputs),
            None if outputs is None else json.loads(outputs),
            None if error is None else json.loads(error),
            json.loads(labels),
            *rest,
        )
        return _as_it_was(now, earlier) if earlier else now

    def send_cancel_found(self, run_id: uuid.UUID, reason: str | None) -> None:
        """Have the runs cancelled that a run has found on its way; in a pipeline nobody waits for it."""
        self._sql.send(CANCEL_FOUND, {"run_id": run_id, "reason": reason})

    def counts(self) -> dict[str, dict[str, int]]:
        """How many runs there are, by workflow and status."""
        return self._counts(COUNTS)

    # Last, because its name hides the builtin from the annotations below it.
    def list(
        self,
        *,
        workflow_name: str | None = None,
        status: str | Iterable[str] | None = None,
        labels: dict[str, Any] | None = None,
        parent_run_id: uuid.UUID | None = None,
        parcel_id: str | None = None,
        dedupe_key: str | None = None,
        created_from: datetime | None = None,
        created_before: datetime | None = None,
        limit: int = 100,
        after: uuid.UUID | None = None,
        newest_first: bool = True,
    ) -> list[WorkflowRun]:
        """Runs by age; `labels` must all be there, `after` is the id that the page before ended with."""
        filters = Filters()
        filters.add("workflow_name = %(workflow_name)s::text", workflow_name=workflow_name)
        filters.status(status, RunStatus)
        filters.add(
            "labels @> %(labels)s::jsonb",
            labels=None if labels is None else self._limits.json_object("labels", labels),
        )
        filters.add("parent_run_id = %(parent_run_id)s::uuid", parent_run_id=parent_run_id)
        filters.add("parcel_id = %(parcel_id)s::text", parcel_id=parcel_id)
        filters.add("dedupe_key = %(dedupe_key)s::text", dedupe_key=dedupe_key)
        filters.created(created_from, created_before)
        return self._page(filters, by="id", after=after, limit=limit, newest_first=newest_first)

    # Awaited, on an asynchronous connection.
    afetch = awaitable(fetch)
    acounts = awaitable(counts)
    alist = awaitable(list)
