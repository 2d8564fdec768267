"""What a run waits for that nobody runs: an orchestrator that advances it, workers of its queues."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from queue_workflows.db.connections.engine import Database
from queue_workflows.db.connections.failures import DATABASE_AWAY
from queue_workflows.db.connections.snapshot_read import KeptConnection
from queue_workflows.engine.watch.run_view import NodeOverview, RunOverview
from queue_workflows.repositories.reports.presence import PresenceRepository
from queue_workflows.states import JobStatus, NodeState, RunStatus

# What is missing at first may just be starting. A look comes each second at the latest, and with the start of
# a command two seconds are not over when it tells.
_PATIENCE_S: Final = 0.6
# A node that has started a run waits for that.
_STARTED: Final = frozenset({NodeState.ACTIVE, JobStatus.AWAITING_INPUT, JobStatus.RUNNING, JobStatus.QUEUED})


@dataclass(frozen=True, slots=True)
class MissingRoles:
    """The roles that nobody runs, which a run cannot go on without."""

    orchestrator: bool = False
    queues: tuple[str, ...] = ()


class RoleWatch:
    """Asks at each look at a run what is missing."""

    def __init__(
        self, database: Database, *, stale_s: float, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._kept = KeptConnection(database)
        self._stale_s = stale_s
        self._now = now
        self._from = now() + _PATIENCE_S

    def look(self, seen: RunOverview) -> MissingRoles:
        """What is missing now; nothing in the first moment, or while the database is away."""
        if self._now() < self._from or seen.is_over:
            return MissingRoles()
        try:
            presence = PresenceRepository(self._kept.connection())
            below = presence.waited_for_below(seen.id) if _has_runs_below(seen) else []
            queues = tuple(sorted({*waited_for(seen), *below}))
            present = presence.of(queues, stale_s=self._stale_s)
        except DATABASE_AWAY:
            return MissingRoles()
        unserved = tuple(queue for queue in queues if queue not in present.served)
        return MissingRoles(not present.has_orchestrator, unserved)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.__exit__()


def waited_for(seen: RunOverview) -> tuple[str, ...]:
    """The queues of the workers that the run needs next: of what is queued, or of what it begins with."""
    if seen.status == RunStatus.QUEUED:
        needed = [node for node in seen.nodes if not node.parents]
    else:
        needed = [node for node in seen.nodes if _is_queued(node)]
    return tuple(sorted({node.queue for node in needed if node.queue is not None}))


def _has_runs_below(seen: RunOverview) -> bool:
    """Whether a node of it may have started a run that is not over."""
    return any(node.type == "workflow" and node.state in _STARTED for node in seen.nodes)


def _is_queued(node: NodeOverview) -> bool:
    """Whether a worker could take a job of it now, and none is at one."""
    elements = node.elements
    if elements is None:
        return node.state == JobStatus.QUEUED
    return node.state == NodeState.ACTIVE and not node.activities and elements.ended < elements.total
