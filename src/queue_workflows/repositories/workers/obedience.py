"""Every worker beside what operators want of it: what it was asked, and whether it has done so."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from queue_workflows.repositories.workers.control import HOLDS, STRICTEST_FIRST, Control
from queue_workflows.states import DesiredState, JobFamily, WorkerState

# Of more workers only those are shown that were heard of last.
MOST: Final = 5_000
# worker: those with a heartbeat, on this host and queue, where `*` is any, up to a bound. control: what it
# has to obey now, by the words in which it asks itself. job: what it has held longest, by the rows, as its
# next beat may be seconds away.
_STANDING: Final = (
    """
SELECT
    worker.worker_id, worker.host_label, worker.queue, worker.pid, worker.state, worker.state_reason,
    job.family, job.id, worker.jobs_held, worker.current_model,
    worker.cached_models::text, worker.versions::text, worker.load::text, worker.control_version,
    worker.started_at, worker.last_seen, extract(epoch FROM statement_timestamp() - worker.last_seen)::float8,
    worker.last_flagged_dead_at IS NOT NULL,
    control.desired, control.version, control.host_label, control.queue, control.reason, control.actor,
    control.expires_at
FROM (SELECT * FROM worker_heartbeats AS worker WHERE {these} ORDER BY last_seen DESC LIMIT {most}) AS worker
LEFT JOIN LATERAL (
    SELECT * FROM worker_control WHERE {holds} ORDER BY {strictest_first} LIMIT 1
) AS control ON true
LEFT JOIN LATERAL (
    SELECT 'node' AS family, id, started_at FROM workflow_node_jobs
    WHERE status = 'running' AND claimed_by = worker.worker_id
    UNION ALL
    SELECT 'ingest', id, started_at FROM ingest_jobs
    WHERE status = 'running' AND claimed_by = worker.worker_id
    ORDER BY started_at
    LIMIT 1
) AS job ON true
ORDER BY worker.host_label, worker.queue, worker.started_at, worker.worker_id
""".replace(
        "{holds}",
        HOLDS.replace("%(host_label)s::text", "worker.host_label").replace("%(queue)s::text", "worker.queue"),
    )
    .replace("{strictest_first}", STRICTEST_FIRST)
    .replace("{most}", str(MOST))
)
STANDING: Final = _STANDING.replace(
    "{these}",
    """(%(host_label)s::text = '*' OR worker.host_label = %(host_label)s::text)
    AND (%(queue)s::text = '*' OR worker.queue = %(queue)s::text)""",
)
STANDING_OF_QUEUES: Final = _STANDING.replace("{these}", "worker.queue = ANY (%(queues)s::text[])")
STANDING_OF: Final = _STANDING.replace("{these}", "worker.worker_id = %(worker_id)s::text")

_DONE_AS: Final = {DesiredState.PAUSE: WorkerState.PAUSED, DesiredState.OFF: WorkerState.PARKED}
_WAITING: Final = frozenset(_DONE_AS.values())


class Obedience(StrEnum):
    """How far a worker is with what it was asked last."""

    PENDING = "pending"  # has not heard of it
    HEARD = "heard"  # is about to: it finishes its job first, or executes itself anew
    OBEYED = "obeyed"


@dataclass(frozen=True, slots=True)
class Standing:
    """A worker as it beat last, `age_s` ago, and what it has to obey (None: on)."""

    worker_id: str
    host_label: str
    queue: str
    pid: int
    state: WorkerState
    state_reason: str | None
    current_job_family: JobFamily | None
    current_job_id: int | None
    jobs_held: int
    current_model: str | None
    cached_models: list[Any]
    versions: dict[str, Any]
    load: dict[str, Any]
    control_version: int
    started_at: datetime
    last_seen: datetime
    age_s: float
    flagged_dead: bool
    control: Control | None

    @property
    def current_job(self) -> str | None:
        """The job that it is at, as commands take it."""
        return None if self.current_job_id is None else f"{self.current_job_family}:{self.current_job_id}"

    @property
    def app_version(self) -> str | None:
        """The version of the host app that it runs, if it says one."""
        version = self.versions.get("app")
        return None if version is None else str(version)

    @property
    def code(self) -> str | None:
        """The digest of what its code knows, which `worker_code` has; None where it tells nothing."""
        digest = self.versions.get("code")
        return None if digest is None else str(digest)

    @property
    def lacks(self) -> list[str]:
        """The tasks or modules that it met and does not know, so that it passes their jobs by."""
        return [str(name) for name in self.load.get("lacks", ())]

    @property
    def is_quarantined(self) -> bool:
        """Whether this is a device on which no worker is started, and no worker at all."""
        return self.state is WorkerState.QUARANTINED

    def obedience(self, version: int = 0) -> Obedience:
        """How far it is with what holds now; `version` is that of a change that it has to know as well."""
        if self.control_version < max(version, self.control.version if self.control else 0):
            return Obedience.PENDING
        wanted = self.control.desired if self.control else DesiredState.ON
        done = self.state not in _WAITING if wanted is DesiredState.ON else self.state is _DONE_AS[wanted]
        return Obedience.OBEYED if done else Obedience.HEARD


def standings(rows: Sequence[Sequence[Any]]) -> list[Standing]:
    """The rows of `STANDING`."""
    return [_standing(row) for row in rows]


def _standing(row: Sequence[Any]) -> Standing:
    values = list(row[:18])
    values[4] = WorkerState(values[4])
    values[6] = None if values[6] is None else JobFamily(values[6])
    values[10:13] = [json.loads(text) for text in values[10:13]]
    desired, *rest = row[18:]
    values.append(None if desired is None else Control(DesiredState(desired), *rest))
    return Standing(*values)
