"""The claim of the queue `hooks`: by host, and background hooks apart from the others.

A run of hooks belongs to the host of its first claim, where its files are. That claim writes so on the run,
in its own statement, with the run's row locked; a claim that finds that lock taken passes the job by, so of
two hosts that claim from one run at once only one gets any of it, and nobody waits for an orchestrator.

Where hosts share the directory of a run, its jobs have `*` for a host, which is no host's label: each host
claims them, within a priority after those of its own runs, and they stay so. The run's own row then names the
directory instead, by `*` and the mark that is in it (see `hooks/attempt/shared_directory`).

A suspect is claimed by a worker that has no other hook in the foreground; see `claims/sweep` for what makes a
job one. In the background it is on trial: until it has outlived what it may be doubted for, its worker begins
no other that was ever doubted, so that of several the one that kills is the only one to blame.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

from queue_workflows.repositories.claims.claim import with_claimed
from queue_workflows.repositories.claims.end import alike_and_claim, any_and_claim
from queue_workflows.repositories.claims.repository import Claims
from queue_workflows.repositories.claims.sweep import PROMOTE_HELD, SHARED_BEFORE, TRUSTED, promotion_params
from queue_workflows.repositories.jobs.nodes import NodeJobRepository
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.arrays import array, texts
from queue_workflows.repositories.sql.claimed_job import ClaimedJob, ClaimedNodeJob, Fence
from queue_workflows.repositories.sql.families import NODE, per_family
from queue_workflows.repositories.sql.table import LONGEST_PAGE

# For which host a job is that any host may claim, as its node has this input; no host's label.
ANY_HOST: Final = "*"
SHARED_DIRECTORY: Final = "shared_directory"
# What a listener has as an input that is there for all runs of a tree.
FOR_TREE: Final = "for_tree"
# seen: the first jobs that nobody else is claiming, within a priority those of this host's runs before those
# of runs with a shared directory, and these before those of runs that are no host's yet, or are this one's
# since; each is looked up, where by EXISTS all of them may be read. runs: those that are no host's yet,
# locked and looked at again. pinned: the ones that become this host's. siblings: what else of them waits
# already. next: the jobs of `seen` in runs that are this host's, or any host's.
NEXT: Final = """seen AS MATERIALIZED (
    SELECT job.id, job.run_id, place.host = '' AS is_free
    FROM unnest('{9,8,7,6,5,4,3,2,1,0}'::smallint[]) AS level (priority)
    CROSS JOIN (VALUES (1, %(host)s::text), (2, '*'), (3, '')) AS place (turn, host)
    CROSS JOIN LATERAL (
        SELECT id, run_id FROM {table} AS job
        WHERE COALESCE(status = 'queued' AND queue = 'hooks', false)
            AND COALESCE(pinned_host, '') = place.host
            AND background = %(background)s::boolean AND priority = level.priority
            AND (%(alone)s::boolean OR NOT suspect)
            AND (place.host <> '' OR (
                SELECT run.pinned_host <> %(host)s::text FROM workflow_runs AS run
                WHERE run.id = job.run_id
                LIMIT 1
            ) IS NOT TRUE)
        ORDER BY position
        LIMIT %(limit)s::bigint
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS job
    LIMIT %(limit)s::bigint
), runs AS MATERIALIZED (
    SELECT id, pinned_host FROM workflow_runs
    WHERE id = ANY (ARRAY(SELECT run_id FROM seen WHERE is_free))
        AND (pinned_host IS NULL OR pinned_host = %(host)s::text)
    FOR NO KEY UPDATE SKIP LOCKED
), pinned AS (
    UPDATE workflow_runs SET pinned_host = %(host)s::text
    WHERE id = ANY (ARRAY(SELECT id FROM runs WHERE pinned_host IS NULL))
    RETURNING id
), siblings AS (
    UPDATE {table} SET pinned_host = %(host)s::text
    WHERE id = ANY (ARRAY(
        SELECT sibling.id FROM pinned CROSS JOIN LATERAL (
            SELECT id FROM {table} AS job
            WHERE run_id = pinned.id AND queue = 'hooks' AND pinned_host IS NULL
                AND status IN ('queued', 'scheduled') AND id <> ALL (ARRAY(SELECT id FROM seen))
            ORDER BY node_id
            LIMIT 1000
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS sibling
    ))
), next AS MATERIALIZED (
    SELECT id FROM seen WHERE NOT is_free OR run_id = ANY (ARRAY(SELECT id FROM runs))
)"""
# As every claim, and it writes down which host has the job, unless any host may have it.
_CLAIMING: Final = """UPDATE {table} AS job SET
    status = 'running', attempt = job.attempt + 1, claimed_by = %(worker_id)s::text, progress = NULL,
    pinned_host = CASE WHEN job.pinned_host = '*' THEN '*' ELSE %(host)s::text END,
    started_at = statement_timestamp(),
    lease_expires_at = statement_timestamp() + make_interval(secs => %(lease_s)s::float8)
WHERE job.id = ANY (ARRAY(SELECT id FROM next))"""
_CLAIM: Final = """
WITH {next}
{claiming} AND {asynchronously}
RETURNING {claimed}
"""
CLAIM: Final = with_claimed(per_family(_CLAIM, next=NEXT, claiming=_CLAIMING))[NODE.name]


# In the background: a suspect, or the others; beside one on trial those that were never suspects.
_DOUBTED: Final = f"""suspect = %(suspect)s::boolean AND (NOT %(beside)s::boolean
OR CASE WHEN queue = 'hooks' THEN jsonb_array_length(jsonb_path_query_array(
errors, '$[*] ? (@.kind == "worker_lost" && @.shared_in == $generation)',
jsonb_build_object('generation', generation))) END < {TRUSTED})"""
CLAIM_BEHIND: Final = CLAIM.replace("(%(alone)s::boolean OR NOT suspect)", _DOUBTED)
# next: what waits in the background of runs of which the worker holds some already, looked up by run.
# In words that the indexes of what waits do not serve: those would be read past all that is of other runs.
NEXT_OF_RUNS: Final = """next AS MATERIALIZED (
    SELECT job.id FROM unnest(%(runs)s::uuid[]) AS held (run_id) CROSS JOIN LATERAL (
        SELECT id FROM {table} AS job
        WHERE job.run_id = held.run_id
            AND COALESCE(status = 'queued' AND queue = 'hooks' AND pinned_host = %(host)s::text, false)
            AND background AND (%(alone)s::boolean OR NOT suspect)
        ORDER BY position + 0
        LIMIT %(limit)s::bigint
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS job
    LIMIT %(limit)s::bigint
)"""
CLAIM_OF_RUNS: Final = with_claimed(per_family(_CLAIM, next=NEXT_OF_RUNS, claiming=_CLAIMING))[
    NODE.name
].replace("(%(alone)s::boolean OR NOT suspect)", _DOUBTED)
# The open run of these trees of which a hook waits in the background for longest, on this host.
NEXT_OF_TREES: Final = """
SELECT job.run_id FROM workflow_runs AS run CROSS JOIN LATERAL (
    SELECT run_id, priority, position FROM workflow_node_jobs AS job
    WHERE job.run_id = run.id
        AND COALESCE(status = 'queued' AND queue = 'hooks' AND pinned_host = %(host)s::text, false)
        AND background
    ORDER BY priority DESC, position + 0
    LIMIT 1
) AS job
WHERE run.set_up_by = ANY (%(trees)s::uuid[]) AND run.finished_at IS NULL AND run.status = 'running'
ORDER BY job.priority DESC, job.position
LIMIT 1
"""
# A trial is short, for one that kills at once; twice as long after each further death.
TRUST: Final = per_family(
    """
UPDATE {table} SET suspect = false
WHERE id = %(job_id)s::bigint AND status = 'running' AND attempt = %(attempt)s::integer
    AND claimed_by = %(claimed_by)s::text
    AND started_at < statement_timestamp()
        - make_interval(secs => 5 * 2 ^ GREATEST({shared_before} - {trusted}, 0))
RETURNING id
""",
    shared_before=SHARED_BEFORE,
    trusted=str(TRUSTED),
)[NODE.name]


END_AND_CLAIM: Final = any_and_claim(next=NEXT, claiming=_CLAIMING)[NODE.name]
END_ALIKE_AND_CLAIM: Final = alike_and_claim(next=NEXT, claiming=_CLAIMING)[NODE.name]
# The first in line of the foreground here, whichever worker may claim it; in the order of NEXT.
HEAD: Final = """
SELECT job.suspect FROM unnest('{9,8,7,6,5,4,3,2,1,0}'::smallint[]) AS level (priority)
CROSS JOIN (VALUES (1, %(host)s::text), (2, '*'), (3, '')) AS place (turn, host)
CROSS JOIN LATERAL (
    SELECT suspect FROM workflow_node_jobs
    WHERE COALESCE(status = 'queued' AND queue = 'hooks', false) AND COALESCE(pinned_host, '') = place.host
        AND background = %(background)s::boolean AND priority = level.priority
    ORDER BY position
    LIMIT 1
) AS job
LIMIT 1
"""
# held: an attempt in the background that has begun, locked, so that what is told of its end comes after this.
# It is told once; the dispatcher lets pass what waits for that.
TELL_READY: Final = """
WITH held AS MATERIALIZED (
    SELECT run_id, id, generation, attempt FROM workflow_node_jobs
    WHERE id = %(job_id)s::bigint AND status = 'running' AND attempt = %(attempt)s::integer
        AND claimed_by = %(claimed_by)s::text
    FOR NO KEY UPDATE
)
INSERT INTO workflow_dispatch_events (run_id, node_job_id, generation, attempt, kind)
SELECT run_id, id, generation, attempt, 'ready' FROM held
ON CONFLICT (node_job_id, generation, attempt, kind) DO NOTHING
"""
# What a foreground hook may not begin beside, of its run: where either of two runs alone in its step, a retry
# and the other; and of what was run again after its run was over, what comes before it and is still to end.
NOT_BESIDE: Final = """
SELECT other.id FROM workflow_node_jobs AS this CROSS JOIN LATERAL (
    SELECT * FROM workflow_node_jobs AS job WHERE job.run_id = this.run_id OFFSET 0
) AS other
WHERE this.id = %(id)s::bigint AND other.id <> this.id AND other.queue = 'hooks'
AND NOT other.background AND (
    other.status = 'running' AND (this.attempt > 1 OR other.attempt > 1)
        AND 'true' IN (this.inputs ->> 'alone', other.inputs ->> 'alone')
    OR LEAST(this.generation, other.generation) > 1
        AND (other.status IN ('queued', 'running') OR COALESCE(other.hold_reason = 'step_taken', false))
        AND (other.step < this.step OR other.step = this.step AND other.id < this.id
            AND 'true' IN (this.inputs ->> 'alone', other.inputs ->> 'alone'))
)
ORDER BY other.id
LIMIT 1
"""
# Why a background hook is skipped that had not begun when its run was sealed.
NOTHING_LEFT: Final = "its run is sealed: there is nothing left that it could run beside"
# Background hooks of runs that are sealed, of these.
OF_SEALED_RUNS: Final = """
SELECT job.id FROM workflow_node_jobs AS job
WHERE job.id = ANY (%(ids)s::bigint[]) AND job.background AND (
    SELECT run.seal_requested_at FROM workflow_runs AS run WHERE run.id = job.run_id LIMIT 1
) IS NOT NULL
"""
# setup: the run that has set up this one's tree, if one of its hooks has this lock too. runs: this run, or
# all that are open in that tree. Then the attempts at work of their hooks that have the lock together.
SHARERS: Final = """
WITH setup AS (
    SELECT set_up_by AS id FROM workflow_runs
    WHERE id = %(run_id)s::uuid AND EXISTS (
        SELECT FROM workflow_node_jobs AS job
        WHERE job.run_id = workflow_runs.set_up_by AND job.inputs ->> 'shared_lock' = %(lock)s::text
        LIMIT 1
    )
), runs AS MATERIALIZED (
    SELECT %(run_id)s::uuid AS id
    UNION
    SELECT run.id FROM setup CROSS JOIN LATERAL (
        SELECT id FROM workflow_runs WHERE set_up_by = setup.id AND finished_at IS NULL OFFSET 0
    ) AS run
)
SELECT job.id, job.attempt, job.claimed_by FROM runs CROSS JOIN LATERAL (
    SELECT id, attempt, claimed_by, inputs FROM workflow_node_jobs
    WHERE run_id = runs.id AND status = 'running' OFFSET 0
) AS job
WHERE job.inputs ->> 'shared_lock' = %(lock)s::text
"""
# run: that of a job which is held here and cannot be run here, and whether it is this host's for nothing:
# nothing of it has ended or failed, nor been begun by another worker, nor claimed that this one could run.
# In a tree that another run has set up it belongs where that one does.
# unpinned: it is anybody's then. freed: so is what waits of it; the held job belongs where its run does.
LET_GO: Final = """
WITH run AS MATERIALIZED (
    SELECT id, pinned_host, COALESCE(pinned_host = %(host)s::text, true) AND COALESCE(set_up_by = id, true)
        AND NOT EXISTS (
        SELECT FROM workflow_node_jobs AS job WHERE job.run_id = run.id AND queue = 'hooks' AND attempt > 0
            AND (status IN ('completed', 'failed', 'skipped', 'cancelled') OR failures > 0 OR crash_count > 0
                OR status = 'running' AND claimed_by <> %(claimed_by)s::text
                OR plugin || '/' || node_module <> ALL (%(unknown)s::text[]))
    ) AS is_free
    FROM workflow_runs AS run WHERE id = %(run_id)s::uuid FOR NO KEY UPDATE
), unpinned AS (
    UPDATE workflow_runs SET pinned_host = NULL
    WHERE id = ANY (ARRAY(SELECT id FROM run WHERE is_free AND pinned_host IS NOT NULL))
), freed AS (
    UPDATE workflow_node_jobs AS job SET pinned_host = CASE WHEN NOT run.is_free THEN run.pinned_host END
    FROM run
    WHERE job.run_id = %(run_id)s::uuid AND job.pinned_host = %(host)s::text AND (
        run.is_free AND job.status IN ('queued', 'scheduled')
        OR job.id = %(id)s::bigint AND job.status = 'running' AND job.attempt = %(attempt)s::integer
            AND job.claimed_by = %(claimed_by)s::text
    )
)
SELECT is_free FROM run
"""
LABELS: Final = """
SELECT DISTINCT plugin || '/' || node_module FROM workflow_node_jobs
WHERE run_id = %(run_id)s::uuid AND queue = 'hooks' AND attempt > 0 AND plugin IS NOT NULL
"""
# A worker that fetches what is on hold fetches only what it may claim.
_PROMOTE_HELD: Final = PROMOTE_HELD[NODE.name].replace(
    "AND queue = %(queue)s::text",
    "AND queue = %(queue)s::text AND COALESCE(pinned_host, %(host)s::text) IN (%(host)s::text, '*')",
)
# run: it forgets its host, or the mark of its shared directory, so that the next attempt may mark another.
# below: the open runs of a tree that it has set up; where its session begins anew, they follow that. freed:
# what of these waits for the host. A job that runs there ends there, and its retry may be anybody's.
UNPIN: Final = """
WITH found AS MATERIALIZED (
    SELECT id, pinned_host FROM workflow_runs WHERE id = %(run_id)s::uuid FOR NO KEY UPDATE
), run AS (
    UPDATE workflow_runs SET pinned_host = NULL
    WHERE id = ANY (ARRAY(SELECT id FROM found WHERE pinned_host IS NOT NULL))
    RETURNING id
), below AS (
    UPDATE workflow_runs SET pinned_host = NULL
    WHERE set_up_by = ANY (ARRAY(SELECT id FROM run)) AND finished_at IS NULL AND id <> %(run_id)s::uuid
        AND NOT EXISTS (
            SELECT FROM workflow_node_jobs
            WHERE run_id = %(run_id)s::uuid AND background AND finished_at IS NULL
                AND inputs ->> 'at_seal' = 'kill'
        )
    RETURNING id
), freed AS (
    UPDATE workflow_node_jobs SET pinned_host = NULL
    WHERE run_id = ANY (ARRAY(SELECT id FROM run UNION SELECT id FROM below)) AND pinned_host <> '*'
    RETURNING id
), logged AS (
    INSERT INTO audit_log (actor, action, subject_kind, subject_id, reason, details)
    SELECT %(actor)s::text, 'run.unpin', 'run', found.id::text, %(why)s::text,
        jsonb_build_object('host', found.pinned_host)
    FROM found JOIN run ON run.id = found.id
)
SELECT found.pinned_host, (SELECT count(*) FROM freed) FROM found
"""
DIRECTORY_MARK: Final = "SELECT pinned_host FROM workflow_runs WHERE id = %(run_id)s::uuid"
# The first attempt that comes with a mark decides for its run.
MARK_DIRECTORY: Final = """
UPDATE workflow_runs SET pinned_host = '*' || %(mark)s::text
WHERE id = %(run_id)s::uuid AND pinned_host IS NULL AND EXISTS (
    SELECT FROM workflow_node_jobs
    WHERE id = %(job_id)s::bigint AND status = 'running' AND attempt = %(attempt)s::integer
        AND claimed_by = %(claimed_by)s::text
)
"""


class HookJobRepository(NodeJobRepository):
    """Node jobs as a worker of hooks sees them; `at` says on which host."""

    _claims: ClassVar[Claims] = Claims(CLAIM, CLAIM, END_AND_CLAIM, END_ALIKE_AND_CLAIM)
    _beside: ClassVar[Mapping[str, Any]] = {"host": "", "background": False}

    @classmethod
    def at(cls, host: str) -> type[HookJobRepository]:
        """The repository of a worker on this host."""
        beside = {"host": check.text("host", host), "background": False}
        return type(cls.__name__, (cls,), {"_beside": beside})

    def claim_background(
        self,
        *,
        worker_id: str,
        lease_s: float,
        limit: int,
        suspect: bool = False,
        beside: bool = False,
        runs: Collection[uuid.UUID] | None = None,
    ) -> list[ClaimedNodeJob]:
        """Take the next background hooks for `lease_s` seconds, in the order in which they are to begin.

        A `suspect`, which is on trial then, or others; `beside` one on trial, none that ever was a suspect.
        Those of these `runs` only, if any are named.
        """
        params = {
            **self._beside,
            "background": True,
            "suspect": suspect,
            "beside": beside,
            "worker_id": check.text("worker_id", worker_id),
            "lease_s": check.seconds("lease_s", lease_s),
            "limit": check.whole("limit", limit, 1, check.SMALLINT_MAX),
            "relaxed": self._sql.commits_each,
        }
        if runs is None:
            return self._claim_by(CLAIM_BEHIND, params)
        return self._claim_by(CLAIM_OF_RUNS, params | {"runs": array(map(str, runs))})

    def claim_again(self, jobs: Sequence[ClaimedJob], *, lease_s: float) -> frozenset[int]:
        """None: what is forgotten with a hook's claim may be that its run is pinned to this host."""
        del jobs, lease_s
        return frozenset()

    def next_of_trees(self, trees: Collection[uuid.UUID]) -> set[uuid.UUID]:
        """The next run of these trees that has a background hook to begin, if there is any."""
        params = {"host": self._beside["host"], "trees": array(map(str, trees))}
        return {run_id for (run_id,) in self._sql.rows(NEXT_OF_TREES, params)}

    def trust(self, fence: Fence) -> bool:
        """End the trial of a suspect in the background if it has lived through it; whether it has."""
        return bool(self._sql.rows(TRUST, fence._asdict()))

    def has_suspect(self, queue: str, *, but: Sequence[str] = ()) -> bool:
        """Whether the first in line on this host waits for a worker that is alone; it keeps its place."""
        rows = self._sql.rows(HEAD, self._beside)
        return bool(rows and rows[0][0])

    def promote_held(self, reason: str, keys: Iterable[str], *, queue: str, limit: int = LONGEST_PAGE) -> int:
        """Queue what waits for one of these keys and may be claimed on this host; how many."""
        params = promotion_params(reason, keys, queue=queue, limit=limit)
        return len(self._sql.rows(_PROMOTE_HELD, {**params, **self._beside}))

    def let_go(self, job: ClaimedNodeJob, knows: Callable[[str], bool]) -> bool:
        """Free the run of a job that cannot be run here from this host, if nothing of it has begun here.

        `knows` says of a hook, by plugin and name, whether this worker can run it. Whether it was freed.
        """
        labels = [label for (label,) in self._sql.rows(LABELS, {"run_id": job.run_id})]
        unknown = texts(label for label in labels if not knows(label))
        params = {**self._beside, **job.fence._asdict(), "id": job.id, "run_id": job.run_id}
        rows = self._sql.rows(LET_GO, params | {"unknown": unknown})
        return bool(rows and rows[0][0])

    def tell_ready(self, fence: Fence) -> None:
        """Let begin what waits for the beginning of this attempt; nothing if it is another's by now."""
        self._sql.send(TELL_READY, fence._asdict())

    def not_beside(self, job_id: int) -> int | None:
        """A job of its run beside which this one may not begin, if there is one."""
        rows = self._sql.rows(NOT_BESIDE, {"id": job_id})
        return rows[0][0] if rows else None

    def sharers(self, run_id: uuid.UUID, lock: str) -> list[Fence]:
        """The hooks of a run that are at work and share this lock with each other."""
        return [Fence(*row) for row in self._sql.rows(SHARERS, {"run_id": run_id, "lock": lock})]

    def sealed(self, ids: list[int]) -> set[int]:
        """Which of these are background hooks of a sealed run."""
        return {job_id for (job_id,) in self._sql.rows(OF_SEALED_RUNS, {"ids": ids})}

    def directory_mark(self, run_id: uuid.UUID) -> str | None:
        """The mark of the directory that hosts share for this run; None until a hook of it has begun."""
        rows = self._sql.rows(DIRECTORY_MARK, {"run_id": run_id})
        return rows[0][0].removeprefix(ANY_HOST) if rows and rows[0][0] else None

    def mark_directory(self, job: ClaimedNodeJob, mark: str) -> str | None:
        """Have the run of a job go by this mark, unless it goes by one already; by which it goes."""
        params = {**job.fence._asdict(), "run_id": job.run_id, "mark": check.text("mark", mark)}
        self._sql.send(MARK_DIRECTORY, params)
        return self.directory_mark(job.run_id)

    def unpin(
        self, run_id: uuid.UUID, *, actor: str, reason: str | None = None
    ) -> tuple[str | None, int] | None:
        """Free a run from its host: which that was, if any, and how many jobs; None without such a run.

        Of a run with a shared directory, from the mark of that: it is given with `*` before it.
        """
        params = {
            "run_id": run_id,
            "actor": check.text("actor", actor),
            "why": check.text_or_none("reason", reason, max_bytes=check.TEXT_BYTES),
        }
        rows = self._sql.rows(UNPIN, params)
        return (rows[0][0], rows[0][1]) if rows else None
