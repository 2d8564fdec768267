"""The claim of the queue `hooks`: by host, and background hooks apart from the others.

A run of hooks belongs to the host of its first claim, where its files are. That claim writes so on the run,
in its own statement, with the run's row locked; who finds that lock taken passes the job by, so of two
hosts that claim from one run at once only one gets any of it, and nobody waits for an orchestrator.

A hook runs in a process of its own, so one that crashed with its worker did not crash it: there are no
suspects here.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from queue_workflows.repositories import fields as check
from queue_workflows.repositories.claimable import Claims
from queue_workflows.repositories.claimed import ClaimedNodeJob, loaded
from queue_workflows.repositories.claiming import CLAIMING, with_claimed
from queue_workflows.repositories.ending import AND_CLAIM, ENDED, GIVEN, GIVEN_ONE
from queue_workflows.repositories.families import NODE, per_family
from queue_workflows.repositories.node_jobs import NodeJobRepository

QUEUE: Final = "hooks"

# seen: the first jobs that nobody else is claiming, within a priority those of this host's runs before those
# of runs that are no host's yet, or are this one's since. runs: those of the latter, locked and looked at
# again. pinned: the ones that become this host's. siblings: what else of them waits already. next: the jobs
# of `seen` whose run is this host's.
NEXT: Final = """seen AS MATERIALIZED (
    SELECT job.id, job.run_id, place.host = '' AS is_free
    FROM unnest('{9,8,7,6,5,4,3,2,1,0}'::smallint[]) AS level (priority)
    CROSS JOIN (VALUES (1, %(host)s::text), (2, '')) AS place (turn, host)
    CROSS JOIN LATERAL (
        SELECT id, run_id FROM {table} AS job
        WHERE status = 'queued' AND queue = 'hooks' AND COALESCE(pinned_host, '') = place.host
            AND background = %(background)s::boolean AND priority = level.priority
            AND (place.host <> '' OR NOT EXISTS (
                SELECT FROM workflow_runs AS run
                WHERE run.id = job.run_id AND run.pinned_host <> %(host)s::text
            ))
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
_CLAIMING: Final = CLAIMING.replace(
    "progress = NULL,", "progress = NULL, suspect = false, pinned_host = %(host)s::text,"
)
CLAIM: Final = with_claimed(
    per_family(
        """
WITH {next}
{claiming} AND {asynchronously}
RETURNING {claimed}
""",
        next=NEXT,
        claiming=_CLAIMING,
    )
)[NODE.name]


def _beside_the_end(given: str) -> str:
    statements = per_family(AND_CLAIM, given=given, ending=ENDED, next=NEXT, claiming=_CLAIMING)
    return with_claimed(statements)[NODE.name]


END_AND_CLAIM: Final = _beside_the_end(GIVEN)
END_ONE_AND_CLAIM: Final = _beside_the_end(GIVEN_ONE)
# Background hooks of runs that are sealed, of these.
SEALED: Final = """
SELECT job.id FROM workflow_node_jobs AS job
WHERE job.id = ANY (%(ids)s::bigint[]) AND job.background AND (
    SELECT run.seal_requested_at FROM workflow_runs AS run WHERE run.id = job.run_id LIMIT 1
) IS NOT NULL
"""
# freed: what of the run waits for the host. Who runs there ends there, and its retry may be anybody's.
UNPIN: Final = """
WITH found AS MATERIALIZED (
    SELECT id, pinned_host FROM workflow_runs WHERE id = %(run_id)s::uuid FOR NO KEY UPDATE
), run AS (
    UPDATE workflow_runs SET pinned_host = NULL
    WHERE id = ANY (ARRAY(SELECT id FROM found WHERE pinned_host IS NOT NULL))
    RETURNING id
), freed AS (
    UPDATE workflow_node_jobs SET pinned_host = NULL
    WHERE run_id = ANY (ARRAY(SELECT id FROM run)) AND pinned_host IS NOT NULL
    RETURNING id
), logged AS (
    INSERT INTO audit_log (actor, action, subject_kind, subject_id, reason, details)
    SELECT %(actor)s::text, 'run.unpin', 'run', found.id::text, %(why)s::text,
        jsonb_build_object('host', found.pinned_host)
    FROM found JOIN run ON run.id = found.id
)
SELECT found.pinned_host, (SELECT count(*) FROM freed) FROM found
"""


class HookJobRepository(NodeJobRepository):
    """Node jobs as a worker of hooks sees them; `at` says on which host."""

    _claims: ClassVar[Claims] = Claims(CLAIM, END_AND_CLAIM, END_ONE_AND_CLAIM)
    _beside: ClassVar[Mapping[str, Any]] = {"host": "", "background": False}

    @classmethod
    def at(cls, host: str) -> type[HookJobRepository]:
        """The repository of a worker on this host."""
        beside = {"host": check.text("host", host), "background": False}
        return type(cls.__name__, (cls,), {"_beside": beside})

    def claim_background(self, *, worker_id: str, lease_s: float, limit: int) -> list[ClaimedNodeJob]:
        """Take the next background hooks for `lease_s` seconds, in the order in which they are to begin."""
        params = {
            **self._beside,
            "background": True,
            "worker_id": check.text("worker_id", worker_id),
            "lease_s": check.seconds("lease_s", lease_s),
            "limit": check.whole("limit", limit, 1, check.SMALLINT_MAX),
            "relaxed": self._sql.commits_each,
        }
        return loaded(ClaimedNodeJob, self._sql.rows(CLAIM, params))

    def head_is_suspect(self, queue: str) -> bool:
        """Never: no hook brings its worker down."""
        return False

    def sealed(self, ids: list[int]) -> set[int]:
        """Which of these are background hooks whose run is sealed."""
        return {job_id for (job_id,) in self._sql.rows(SEALED, {"ids": ids})}

    def unpin(
        self, run_id: uuid.UUID, *, actor: str, reason: str | None = None
    ) -> tuple[str | None, int] | None:
        """Free a run from its host: which that was, if any, and how many jobs; None without such a run."""
        params = {
            "run_id": run_id,
            "actor": check.text("actor", actor),
            "why": check.text_or_none("reason", reason, max_bytes=check.TEXT_BYTES),
        }
        rows = self._sql.rows(UNPIN, params)
        return (rows[0][0], rows[0][1]) if rows else None
