"""The trees of runs: where a run stands in its own, what waits for those below it, and how many may be open.

    a run ends ──event──> the run that it began from: is anything left below me? over itself, it passes it on
               ──event──> the run that has the cap of the tree: let the next ones begin

Such an event comes with the end, and what it asks is looked up after it was taken: so of a last end and of a
wait that begins beside it one always sees the other. A holder of one run never waits for one above it, but
for a retry: it waits for those above one after the other, and what holds one of them waits for nothing below
that is over.
"""

from __future__ import annotations

import uuid
from typing import Final, NamedTuple

from queue_workflows.repositories.sql.connection import Handle, Statements

# The event that tells a run of what has ended below it, or waits there.
DESCENDANTS: Final = "descendants"
# Why a run of a tree with a cap does not begin.
OPEN_RUNS: Final = "open_runs"

# above: the run, then the one that began it, and so on, as far as one that has set up the tree: that is no
# step from its first run. None of them goes before those below it.
PLACE: Final = """
WITH RECURSIVE above AS (
    SELECT id, parent_run_id, set_up_by, 0 AS far FROM workflow_runs WHERE id = %(run_id)s::uuid
    UNION ALL
    SELECT parent.id, parent.parent_run_id, parent.set_up_by, above.far + 1
    FROM above JOIN workflow_runs AS parent ON parent.id = above.parent_run_id
    WHERE above.id IS DISTINCT FROM above.set_up_by
)
SELECT id, CASE WHEN id = set_up_by THEN GREATEST(far - 1, 0) ELSE far END AS depth
FROM above ORDER BY far DESC LIMIT 1
"""
# above: the run, then the one that began it, and so on, as far as the first that has a cap or is under one.
CAP: Final = """
WITH RECURSIVE above AS (
    SELECT id, parent_run_id, capped_by FROM workflow_runs WHERE id = %(run_id)s::uuid
    UNION ALL
    SELECT parent.id, parent.parent_run_id, parent.capped_by
    FROM above CROSS JOIN LATERAL (
        SELECT id, parent_run_id, capped_by FROM workflow_runs WHERE id = above.parent_run_id LIMIT 1
    ) AS parent
    WHERE above.capped_by IS NULL
)
SELECT capped_by FROM above WHERE capped_by IS NOT NULL
"""
ASK: Final = f"""
INSERT INTO workflow_dispatch_events (run_id, generation, attempt, kind)
VALUES (%(run_id)s::uuid, 1, 0, '{DESCENDANTS}')
RETURNING id
"""  # noqa: S608 - a word of our own
HAS_CHILDREN: Final = """
SELECT EXISTS (SELECT FROM workflow_runs WHERE parent_run_id = %(run_id)s::uuid LIMIT 1)
"""
# below: the runs that began below this one and are not over; under one that is over and has left others,
# those too. own: a hook of the run itself that is to be tried again, and may name others yet; in the
# background it was waited for by its end, or is told to end when there is nothing left below. Then the job
# that waits.
LOOK: Final = """
WITH RECURSIVE below AS (
    SELECT id, finished_at FROM workflow_runs
    WHERE parent_run_id = %(run_id)s::uuid AND (finished_at IS NULL OR left_descendants)
    UNION ALL
    SELECT child.id, child.finished_at
    FROM below CROSS JOIN LATERAL (
        SELECT id, finished_at FROM workflow_runs
        WHERE parent_run_id = below.id AND (finished_at IS NULL OR left_descendants)
        OFFSET 0
    ) AS child
    WHERE below.finished_at IS NOT NULL
)
SELECT job.id FROM workflow_node_jobs AS job
WHERE job.run_id = %(run_id)s::uuid AND job.kind = 'descendants' AND job.status = 'awaiting_input'
    AND NOT EXISTS (
        SELECT FROM workflow_node_jobs AS own
        WHERE own.run_id = %(run_id)s::uuid AND own.finished_at IS NULL AND NOT own.background
            AND own.step IS NOT NULL
    )
    AND NOT EXISTS (SELECT FROM below WHERE finished_at IS NULL)
"""
AWAITS: Final = """
UPDATE workflow_runs SET awaits_descendants = true WHERE id = %(run_id)s::uuid RETURNING id
"""
# told: the run from which this one began, and the one that has the cap of its tree, as they are asked for.
# Each by its own outbox, because a holder of one run never waits for another; what is over itself passes it
# on.
TELL: Final = f"""
WITH told AS (
    SELECT parent_run_id AS id FROM workflow_runs WHERE id = %(run_id)s::uuid AND %(parent)s::boolean
    UNION
    SELECT capped_by FROM workflow_runs WHERE id = %(run_id)s::uuid AND %(cap)s::boolean
)
INSERT INTO workflow_dispatch_events (run_id, generation, attempt, kind)
SELECT run.id, 1, 0, '{DESCENDANTS}'
FROM told JOIN workflow_runs AS run ON run.id = told.id
WHERE run.mode = 'node'
RETURNING id
"""  # noqa: S608 - a word of our own
# host: that of a setup of which a session has begun. runs: what is open of its tree and belongs to another
# host. jobs: what is not over of these; a hook that runs ends where it is, and its retry follows.
FOLLOW: Final = """
WITH host AS MATERIALIZED (
    SELECT pinned_host AS label FROM workflow_runs
    WHERE id = %(run_id)s::uuid AND set_up_by = id AND pinned_host NOT LIKE '*%%'
), runs AS MATERIALIZED (
    SELECT run.id FROM host CROSS JOIN LATERAL (
        SELECT id FROM workflow_runs
        WHERE set_up_by = %(run_id)s::uuid AND finished_at IS NULL AND id <> %(run_id)s::uuid
            AND pinned_host IS DISTINCT FROM host.label
        ORDER BY id
        FOR NO KEY UPDATE
    ) AS run
), jobs AS MATERIALIZED (
    SELECT job.id FROM runs CROSS JOIN LATERAL (
        SELECT id FROM workflow_node_jobs
        WHERE run_id = runs.id AND queue = 'hooks' AND finished_at IS NULL AND pinned_host <> '*'
        ORDER BY id
        FOR NO KEY UPDATE
    ) AS job
), moved AS (
    UPDATE workflow_node_jobs SET pinned_host = (SELECT label FROM host)
    WHERE id = ANY (ARRAY(SELECT id FROM jobs))
)
UPDATE workflow_runs SET pinned_host = (SELECT label FROM host) WHERE id = ANY (ARRAY(SELECT id FROM runs))
RETURNING id
"""
# parent: the run above one that goes on, locked until the caller commits: either it is over, or its own end
# sees the other open. Marked, so that what is not over further up looks below it.
GOES_ON: Final = """
WITH parent AS MATERIALIZED (
    SELECT id, finished_at FROM workflow_runs
    WHERE id = (SELECT parent_run_id FROM workflow_runs WHERE id = %(run_id)s::uuid)
    FOR NO KEY UPDATE
)
UPDATE workflow_runs SET left_descendants = true
WHERE id = ANY (ARRAY(SELECT id FROM parent WHERE finished_at IS NOT NULL))
RETURNING id
"""
# room: how many more may be open. next: those that wait for it longest, within a priority.
ADMIT: Final = f"""
WITH room AS MATERIALIZED (
    SELECT GREATEST(%(most)s::integer - count(*), 0) AS runs FROM workflow_runs
    WHERE capped_by = %(run_id)s::uuid AND finished_at IS NULL AND hold_reason IS NULL
        AND NOT awaits_descendants
), next AS MATERIALIZED (
    SELECT id FROM workflow_runs
    WHERE capped_by = %(run_id)s::uuid AND hold_reason IS NOT NULL AND hold_reason = '{OPEN_RUNS}'
    ORDER BY priority DESC, id
    LIMIT (SELECT runs FROM room)
    FOR NO KEY UPDATE
)
UPDATE workflow_runs SET hold_reason = NULL WHERE id = ANY (ARRAY(SELECT id FROM next))
RETURNING id
"""  # noqa: S608 - a word of our own


class PlaceInTree(NamedTuple):
    """The run with which the tree began, and how many steps from it another is."""

    root: uuid.UUID
    depth: int


class RunTreeRepository:
    """What is known of the trees of runs, and what their runs tell each other."""

    def __init__(self, conn: Handle) -> None:
        self._sql = Statements(conn, "workflow_runs")

    def place_of(self, run_id: uuid.UUID) -> PlaceInTree:
        """Where a run stands; one that nothing began, or that is gone, is a tree by itself."""
        rows = self._sql.rows(PLACE, {"run_id": run_id})
        return PlaceInTree(*rows[0]) if rows else PlaceInTree(run_id, 0)

    def cap_of(self, run_id: uuid.UUID) -> uuid.UUID | None:
        """The run that has a cap for those below this one, if there is any."""
        rows = self._sql.rows(CAP, {"run_id": run_id})
        return rows[0][0] if rows else None

    def has_children(self, run_id: uuid.UUID) -> bool:
        """Whether any run began below this one."""
        return bool(self._sql.rows(HAS_CHILDREN, {"run_id": run_id})[0][0])

    def job_at_end(self, run_id: uuid.UUID) -> int | None:
        """The job of a run that has waited for those below it, when there is nothing left to wait for."""
        rows = self._sql.rows(LOOK, {"run_id": run_id})
        return int(rows[0][0]) if rows else None

    def send_awaits(self, run_id: uuid.UUID) -> None:
        """Write down that a run waits for those below it; so it is not open any more."""
        self._sql.send(AWAITS, {"run_id": run_id})

    def send_told(self, run_id: uuid.UUID, *, parent: bool = False, cap: bool = False) -> None:
        """Tell the run that this one began from that it is over, and that with the cap that there is room."""
        self._sql.send(TELL, {"run_id": run_id, "parent": parent, "cap": cap})

    def follow(self, run_id: uuid.UUID) -> int:
        """Have the open runs of a tree belong where the run that sets it up is at work; how many moved."""
        return len(self._sql.rows(FOLLOW, {"run_id": run_id}))

    def goes_on(self, run_id: uuid.UUID) -> None:
        """Have a run found that was over and goes on, though those above it are over.

        By a statement for each of these, as what is above one is not looked at before its lock is had.
        """
        while rows := self._sql.rows(GOES_ON, {"run_id": run_id}):
            run_id = rows[0][0]

    def ask_to_admit(self, run_id: uuid.UUID) -> None:
        """Tell the run that has the cap that others wait for room."""
        self._sql.rows(ASK, {"run_id": run_id})

    def admit(self, run_id: uuid.UUID, most: int) -> int:
        """Let as many runs begin as there is room for under the cap of this one, which is locked."""
        return len(self._sql.rows(ADMIT, {"run_id": run_id, "most": most}))
