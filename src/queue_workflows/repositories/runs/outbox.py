"""The orchestrator's statements: which runs have something to do, and the outbox of one of them.

    find (no lock) ──> lock the run ──> take its events ──> … what follows from them … ──> commit
                        │ skip where another one is at it

Taking deletes, in the transaction of the effects: an event and what it causes are one. The events are read
after the lock is held and by a statement of its own, so that nothing is missed that the holder before wrote.
They are found by run, never by an id that was reached, for a low id may commit late.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

from queue_workflows.repositories.claims.operator_verbs import cancel_below
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.connection import Handle, Rows, Statements
from queue_workflows.repositories.sql.families import NODE, PAST_HOLDS
from queue_workflows.states import JOB_TERMINAL, NODE_STATUSES, RunStatus
from queue_workflows.workflow.planning.progress import RunCounters

# Literals, so that a generic plan knows how few rows these are.
EVENTS_AT_ONCE: Final = 1_000
RUNS_AT_ONCE: Final = 100
BEGUN_AT_ONCE: Final = 20
RUN_FINISHED: Final = "run_finished"
BEGIN: Final = "begin"
EXPAND: Final = "expand"
REOPEN: Final = "reopen"
ATTEMPTED: Final = "attempted"
READY: Final = "ready"
LOST: Final = "lost"
# What a batch puts off, each as much as a batch may do.
PARTS: Final = frozenset({EXPAND, REOPEN})
_IS_PART: Final = f"kind IN ('{EXPAND}', '{REOPEN}')"
NO_RUN: Final = uuid.UUID(int=0)

# What the dispatcher acts on; the end of a run is for its hooks. `qwf explain` asks by the same words.
DUE: Final = f"""poisoned_at IS NULL AND next_try_at <= statement_timestamp() AND kind <> '{RUN_FINISHED}'"""
# Read in the order of the index of runs; after an equality the primary key has the order that is left, too.
_OF_RUN: Final = "run_id >= %(run_id)s::uuid AND run_id <= %(run_id)s::uuid"
# visited: the runs that have events, one look into the index for each, from where the last call ended; so one
# run with a hundred thousand of them costs no more than one with a single one. The LIMITs let the rest be
# looked up for each run too, where EXISTS may read whole tables.
FIND_RUNS: Final = f"""
WITH RECURSIVE visited AS (
    (
        SELECT run_id, 1 AS number FROM workflow_dispatch_events
        WHERE run_id > %(after)s::uuid
        ORDER BY run_id
        LIMIT 1
    )
    UNION ALL
    SELECT (
        SELECT event.run_id FROM workflow_dispatch_events AS event
        WHERE event.run_id > visited.run_id
        ORDER BY event.run_id
        LIMIT 1
    ), number + 1
    FROM visited
    WHERE visited.run_id IS NOT NULL AND number < {RUNS_AT_ONCE}
)
SELECT run_id, COALESCE((
    SELECT true FROM workflow_dispatch_events AS event WHERE event.run_id = visited.run_id AND {DUE} LIMIT 1
) AND (
    SELECT mode = 'node' FROM workflow_runs AS run WHERE run.id = visited.run_id LIMIT 1
), false)
FROM visited
WHERE run_id IS NOT NULL
"""  # noqa: S608 - fragments of our own
# Those that another orchestrator begins at this moment are left to it, those on hold to what holds them, and
# those that failed to begin are found by their event.
FIND_QUEUED: Final = f"""
SELECT id FROM workflow_runs AS run
WHERE status = 'queued' AND mode = 'node' AND hold_reason IS NULL AND (
    SELECT event.id FROM workflow_dispatch_events AS event
    WHERE event.run_id = run.id AND event.kind = '{BEGIN}'
    LIMIT 1
) IS NULL
ORDER BY priority DESC, id
LIMIT {BEGUN_AT_ONCE}
FOR NO KEY UPDATE SKIP LOCKED
"""  # noqa: S608 - fragments of our own
# What is read after the lock must be what its holder before left, whatever the server's default is.
BEGIN_TRANSACTION: Final = "BEGIN ISOLATION LEVEL READ COMMITTED"
COMMIT: Final = "COMMIT"
ROLLBACK: Final = "ROLLBACK"
# locked: the run, unless another one has it; apart, as what is selected beside a lock is worked out before
# the lock is had. The commit may come back before it is on disk: if it is lost, its events are still there.
# The transaction remembers which run it has locked, for the statement that is on its way behind this one. The
# row's last writer and our own id tell whether anybody has written it since we did.
LOCK: Final = """
WITH locked AS MATERIALIZED (
    SELECT id, status, workflow_name, spec_hash, priority, depth, parent_run_id, parent_node_job_id,
        traceparent, pinned_host, nodes_left, nodes_active, nodes_failed, stopping, xmin::text AS version,
        hold_reason IS NOT NULL AS is_held, awaits_descendants, max_open_runs,
        capped_by IS NOT NULL AS is_capped
    FROM workflow_runs
    WHERE id = %(run_id)s::uuid AND mode = 'node'
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT id, status, workflow_name, spec_hash, priority, depth, parent_run_id, parent_node_job_id, traceparent,
    pinned_host, is_held, awaits_descendants, max_open_runs, is_capped,
    current_setting('synchronous_commit'), set_config('synchronous_commit', 'off', true),
    set_config('qwf.locked_run', id::text, true), nodes_left, nodes_active, nodes_failed, stopping, version,
    pg_current_xact_id()::xid::text
FROM locked
"""
SPEC: Final = "SELECT spec::text FROM workflow_runs WHERE id = %(run_id)s::uuid"
# seen: what is to be acted on if the run is locked, the oldest first. due: all of it, but one part only of
# what a batch before had to put off, for each of those is as much as a batch may do. taken: deleted with its
# effects. Each event comes with its job's node and present generation, by primary key whatever the planner
# believes.
TAKE: Final = f"""
WITH seen AS MATERIALIZED (
    SELECT id, {_IS_PART} AS is_part FROM workflow_dispatch_events
    WHERE {_OF_RUN} AND {DUE}
        AND (%(only)s::bigint IS NULL OR id = %(only)s::bigint)
        AND current_setting('qwf.locked_run', true) = %(run_id)s::uuid::text
    ORDER BY run_id, id
    LIMIT {EVENTS_AT_ONCE}
), due AS (
    SELECT id FROM seen WHERE NOT is_part OR id = (SELECT min(id) FROM seen WHERE is_part)
), taken AS (
    DELETE FROM workflow_dispatch_events WHERE id = ANY (ARRAY(SELECT id FROM due))
    RETURNING id, node_job_id, generation, kind, payload
)
SELECT taken.id, taken.kind, taken.payload::text, job.node_id,
    taken.node_job_id IS NULL OR job.generation = taken.generation
FROM taken LEFT JOIN LATERAL (
    SELECT node_id, generation FROM workflow_node_jobs WHERE id = taken.node_job_id LIMIT 1
) AS job ON true
ORDER BY taken.id
"""  # noqa: S608 - fragments of our own
DUE_EVENTS: Final = f"""
SELECT id FROM workflow_dispatch_events
WHERE {_OF_RUN} AND {DUE}
ORDER BY run_id, id
LIMIT {EVENTS_AT_ONCE}
"""  # noqa: S608 - fragments of our own
# found: what is not over, locked in order; by a sum, as the planner might else walk the primary key for it.
# ended: a job that waits is cancelled, and counted by the caller instead of by an event each; one that runs
# is asked to stop, and its end is an event as always. children: the runs of these nodes, told by their own
# outbox, because a holder of one run never waits for another.
STOP: Final = f"""
WITH found AS MATERIALIZED (
    SELECT id FROM workflow_node_jobs
    WHERE run_id = %(run_id)s::uuid AND node_id = ANY (%(node_ids)s::text[])
        AND status IN ({", ".join(f"'{s}'" for s in NODE_STATUSES if s not in JOB_TERMINAL)})
    ORDER BY id + 0
    FOR NO KEY UPDATE
), ended AS (
    UPDATE workflow_node_jobs AS job SET
        status = CASE job.status WHEN 'running' THEN 'running' ELSE 'cancelled' END,
        finished_at = CASE job.status WHEN 'running' THEN NULL ELSE statement_timestamp() END,
        cancel_requested_at = COALESCE(job.cancel_requested_at, statement_timestamp()),
        past_holds = {PAST_HOLDS}, hold_reason = NULL, hold_key = NULL
    WHERE job.id = ANY (ARRAY(SELECT id FROM found))
    RETURNING job.id, job.node_id, job.status, job.kind, job.attempt
), children AS (
    INSERT INTO workflow_dispatch_events (run_id, generation, attempt, kind, payload)
    SELECT run.id, 1, 0, 'cancel', jsonb_build_object('reason', %(reason)s::text)
    FROM workflow_runs AS run
    WHERE run.parent_run_id = %(run_id)s::uuid AND run.status IN ('queued', 'running')
        AND run.parent_node_job_id = ANY (ARRAY(SELECT id FROM ended WHERE kind = 'workflow'))
)
SELECT node_id, count(*) FILTER (WHERE status = 'cancelled'), array_agg(id) FILTER (WHERE attempt > 0)
FROM ended GROUP BY node_id ORDER BY node_id
"""  # noqa: S608 - fragments of our own
# The first cancellation of a run is the one that is named, also when its last node ends in a later batch. A
# run that is over before those below it is marked, so that what waits for these looks below it.
SAVE: Final = """
UPDATE workflow_runs SET
    status = %(status)s::text, nodes_left = %(nodes_left)s::integer, nodes_active = %(nodes_active)s::integer,
    nodes_failed = %(nodes_failed)s::integer, stopping = %(stopping)s::text,
    outputs = %(outputs)s::jsonb,
    error = CASE
        WHEN %(status)s::text = 'cancelled' AND COALESCE(cancel_reason, %(reason)s::text) <> ''
        THEN jsonb_build_object('kind', 'cancelled', 'message', COALESCE(cancel_reason, %(reason)s::text))
        ELSE %(error)s::jsonb
    END,
    hold_reason = NULL, started_at = COALESCE(started_at, statement_timestamp()),
    left_descendants = %(over)s::boolean AND EXISTS (
        SELECT FROM workflow_runs AS child
        WHERE child.parent_run_id = %(run_id)s::uuid AND (child.finished_at IS NULL OR child.left_descendants)
        LIMIT 1
    ),
    finished_at = CASE WHEN %(over)s::boolean THEN statement_timestamp() END,
    cancel_requested_at = CASE
        WHEN %(cancelled)s::boolean THEN COALESCE(cancel_requested_at, statement_timestamp())
        ELSE cancel_requested_at
    END,
    cancel_reason = CASE
        WHEN %(cancelled)s::boolean AND cancel_requested_at IS NULL THEN %(reason)s::text ELSE cancel_reason
    END
WHERE id = %(run_id)s::uuid
RETURNING CASE WHEN %(over)s::boolean
    THEN set_config('synchronous_commit', %(durability)s::text, true) END
"""
# Asked for once: what ends at the seal is told by its worker, which looks at the run. held: the listeners
# that wait to begin or to be tried again, for whatever reason, as there is no later for them; by run, where
# the planner might else read all that is scheduled. looked_at: the worker that claims one skips it.
SEAL: Final = f"""
WITH held AS MATERIALIZED (
    SELECT id FROM workflow_node_jobs
    WHERE run_id = %(run_id)s::uuid AND background AND COALESCE(status = 'scheduled', false)
        AND inputs ->> 'at_seal' = 'kill'
    FOR NO KEY UPDATE SKIP LOCKED
), looked_at AS (
    UPDATE workflow_node_jobs AS job SET
        status = 'queued', run_at = statement_timestamp(), past_holds = {PAST_HOLDS},
        hold_reason = NULL, hold_key = NULL
    WHERE job.id = ANY (ARRAY(SELECT id FROM held))
)
UPDATE workflow_runs SET seal_requested_at = COALESCE(seal_requested_at, statement_timestamp())
WHERE id = %(run_id)s::uuid
RETURNING id
"""  # noqa: S608 - a fragment of our own
# The job that a child run was started for, locked: a retry of the parent opens it again and starts another
# child in one transaction. Then, by a statement of its own, whether somebody has.
LOCK_PARENT_JOB: Final = """
SELECT id FROM workflow_node_jobs WHERE id = %(job_id)s::bigint FOR NO KEY UPDATE
"""
# this: by its primary key, whatever the planner believes. later: one look into the index of children.
SUCCESSOR: Final = """
WITH this AS MATERIALIZED (
    SELECT parent_run_id, parent_node_job_id, created_at FROM workflow_runs WHERE id = %(run_id)s::uuid
)
SELECT later.id FROM this CROSS JOIN LATERAL (
    SELECT id FROM workflow_runs
    WHERE parent_run_id = this.parent_run_id AND parent_node_job_id = this.parent_node_job_id
        AND created_at > this.created_at
    LIMIT 1
) AS later
"""
ADD_EVENT: Final = """
INSERT INTO workflow_dispatch_events (run_id, generation, attempt, kind, payload)
VALUES (%(run_id)s::uuid, 1, 0, %(kind)s::text, %(payload)s::jsonb)
RETURNING id
"""
DEFERRED: Final = """
UPDATE workflow_dispatch_events SET
    tries = tries + 1, last_error = %(error)s::text,
    next_try_at = statement_timestamp()
        + make_interval(secs => LEAST(%(backoff_s)s::float8 * 2.0 ^ LEAST(tries, 20), %(longest_s)s::float8)),
    poisoned_at = CASE WHEN tries + 1 >= %(max_tries)s::integer THEN statement_timestamp() END
WHERE id = %(id)s::bigint AND poisoned_at IS NULL
RETURNING tries, poisoned_at IS NOT NULL
"""
LONGEST_BACKOFF_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class LockedRun:
    """A run with its row locked by us; the row has this `version` now, and `next_version` if we write it."""

    id: uuid.UUID
    status: RunStatus
    counters: RunCounters
    workflow: str
    spec_hash: str
    priority: int
    depth: int
    parent_run_id: uuid.UUID | None
    parent_node_job_id: int | None
    traceparent: str | None
    pinned_host: str | None
    is_held: bool
    awaits_descendants: bool
    max_open_runs: int | None
    is_capped: bool
    durability: str
    version: str
    next_version: str


@dataclass(frozen=True, slots=True)
class TakenEvent:
    """An event of a run, out of the outbox if the transaction commits; not current if a retry overtook it."""

    id: int
    kind: str
    payload: dict[str, Any]
    node_id: str | None
    is_current: bool


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended; the texts are checked JSON."""

    status: RunStatus
    outputs: str | None = None
    error: str | None = None


class DispatchRepository:
    """On a psycopg connection of the orchestrator's own."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, "workflow_runs")

    def begin(self) -> None:
        """Begin a transaction, in a pipeline."""
        self._sql.send(BEGIN_TRANSACTION, {})

    def commit(self) -> None:
        """Commit it, in a pipeline."""
        self._sql.send(COMMIT, {})

    def rollback(self) -> None:
        """Take it back, in a pipeline."""
        self._sql.send(ROLLBACK, {})

    def look(self, after: uuid.UUID) -> Callable[[], tuple[list[uuid.UUID], uuid.UUID, list[uuid.UUID]]]:
        """Runs behind `after` that have something to do, where to go on, and the next runs to begin.

        Where to go on is `NO_RUN` at the beginning; the runs to begin are in their order. To be called in a
        pipeline; what it returns gives the answer when that has ended.
        """
        with_events = self._sql.ask(FIND_RUNS, {"after": after})
        queued = self._sql.ask(FIND_QUEUED, {})

        def answer() -> tuple[list[uuid.UUID], uuid.UUID, list[uuid.UUID]]:
            rows = with_events()
            following = rows[-1][0] if len(rows) == RUNS_AT_ONCE else NO_RUN
            return [run_id for run_id, is_due in rows if is_due], following, [row[0] for row in queued()]

        return answer

    def lock(self, run_id: uuid.UUID) -> LockedRun | None:
        """Lock a run of ours until the transaction ends; None if another one has it, or it is gone."""
        return _locked(self._sql.rows(LOCK, {"run_id": run_id}))

    def lock_and_take(
        self, run_id: uuid.UUID, *, only: int | None = None
    ) -> Callable[[], tuple[LockedRun | None, list[TakenEvent]]]:
        """Lock a run, and take what it has to act on now, at most `EVENTS_AT_ONCE`.

        To be called in a pipeline; what it returns gives the answer when that has ended.
        """
        locked = self._sql.ask(LOCK, {"run_id": run_id})
        taken = self._sql.ask(TAKE, {"run_id": run_id, "only": only})
        return lambda: (_locked(locked()), _taken(taken()))

    def spec(self, run_id: uuid.UUID) -> dict[str, Any]:
        """The document of a run, which may be large."""
        return dict(json.loads(self._sql.rows(SPEC, {"run_id": run_id})[0][0]))

    def due_events(self, run_id: uuid.UUID) -> list[int]:
        """The ids of what `take` would take."""
        return [event_id for (event_id,) in self._sql.rows(DUE_EVENTS, {"run_id": run_id})]

    def stop(self, run_id: uuid.UUID, node_ids: Collection[str], reason: str) -> dict[str, int]:
        """Cancel the open jobs of nodes; how many of each were so at once, the others are told to stop."""
        params = {"run_id": run_id, "node_ids": list(node_ids), "reason": reason}
        rows = self._sql.rows(STOP, params)
        # Only what has begun can have spawned jobs, as durable functions do.
        cancel_below(self._sql, NODE, [job_id for _, _, begun in rows for job_id in begun or ()])
        return {node_id: count for node_id, count, _ in rows if count}

    def save(
        self,
        run: LockedRun,
        counters: RunCounters,
        *,
        end: RunEnd | None = None,
        cancel_reason: str | None = None,
    ) -> None:
        """Store how far a locked run is, or how it ended; an end is on disk when the commit returns."""
        params = {
            "run_id": run.id,
            "status": (RunStatus.RUNNING if end is None else end.status).value,
            "nodes_left": counters.nodes_left,
            "nodes_active": counters.active,
            "nodes_failed": counters.failed,
            "stopping": counters.stopping,
            "outputs": None if end is None else end.outputs,
            "error": None if end is None else end.error,
            "over": end is not None,
            "cancelled": cancel_reason is not None,
            "reason": cancel_reason or None,
            "durability": run.durability,
        }
        self._sql.send(SAVE, params)

    def is_succeeded(self, run: LockedRun) -> bool:
        """Whether a child run is no longer the one that its parent's job waits for."""
        self._sql.rows(LOCK_PARENT_JOB, {"job_id": run.parent_node_job_id})
        return bool(self._sql.rows(SUCCESSOR, {"run_id": run.id}))

    def send_seal(self, run_id: uuid.UUID) -> None:
        """Have the background hooks of a locked run ended that are to end with its last step."""
        self._sql.send(SEAL, {"run_id": run_id})

    def add_event(self, run_id: uuid.UUID, kind: str, payload: dict[str, Any] | None = None) -> int:
        """An event of the run itself; its id."""
        return int(self._sql.rows(ADD_EVENT, _event(run_id, kind, payload))[0][0])

    def send_event(self, run_id: uuid.UUID, kind: str, payload: dict[str, Any] | None = None) -> None:
        """Add an event of the run itself, without asking for its id."""
        self._sql.send(ADD_EVENT, _event(run_id, kind, payload))

    def defer(
        self, event_id: int, error: str, *, max_tries: int, backoff_s: float
    ) -> tuple[int, bool] | None:
        """Put a failing event off, after too many tries aside; which try it was, and whether it is aside."""
        params = {
            "id": event_id,
            "error": error,
            "max_tries": check.whole("max_tries", max_tries, 1, check.INT_MAX),
            "backoff_s": backoff_s,
            "longest_s": LONGEST_BACKOFF_S,
        }
        rows = self._sql.rows(DEFERRED, params)
        return (rows[0][0], rows[0][1]) if rows else None


def _event(run_id: uuid.UUID, kind: str, payload: dict[str, Any] | None) -> dict[str, Any]:
    return {"run_id": run_id, "kind": kind, "payload": json.dumps(payload or {})}


def _locked(rows: Rows) -> LockedRun | None:
    if not rows:
        return None
    same, status, *facts, _off, _known, left, active, failed, stopping, version, following = rows[0]
    counters = RunCounters(left, active, failed, stopping)
    return LockedRun(same, RunStatus(status), counters, *[*facts, version, following])


def _taken(rows: Rows) -> list[TakenEvent]:
    return [
        TakenEvent(event_id, kind, {} if payload == "{}" else json.loads(payload), node_id, bool(current))
        for event_id, kind, payload, node_id, current in rows
    ]
