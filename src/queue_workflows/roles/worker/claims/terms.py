"""On what terms a worker claims; they hold for as long as it lives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from queue_workflows.config import HOOKS_QUEUE, RESERVED_QUEUES
from queue_workflows.engine.limits.held_host_locks import KeptLocks
from queue_workflows.engine.limits.held_slots import KeptSlots
from queue_workflows.engine.limits.offered_host_locks import LockOffers
from queue_workflows.engine.registry.ingest_task import IngestTask
from queue_workflows.engine.registry.published_names import PublishedNames
from queue_workflows.engine.registry.tasks import current_tasks
from queue_workflows.gpu.affinity import Affinity
from queue_workflows.gpu.cache import ModelCache
from queue_workflows.repositories.claims.repository import ClaimableRepository
from queue_workflows.repositories.sql.checks import PayloadLimits
from queue_workflows.roles.identity import Identity
from queue_workflows.settings import Settings


@dataclass(frozen=True, slots=True)
class ClaimTerms:
    """What a worker claims, as which worker, and for how long at a time."""

    repository: type[ClaimableRepository[Any, Any]]
    queue: str
    worker_id: str
    lease_s: float
    limits: PayloadLimits
    kept: KeptSlots = field(default_factory=KeptSlots)
    locks: KeptLocks = field(default_factory=KeptLocks)
    offers: LockOffers = field(default_factory=LockOffers)
    models: ModelCache | None = None
    affinity: Affinity | None = None
    # Tasks that say a key or a lock of all their jobs; as more are registered, they are here.
    tasks: Mapping[str, IngestTask[..., Any]] = field(default_factory=dict)
    # What this worker tells that it knows, and the names that it met and does not.
    published: PublishedNames | None = None

    @property
    def lacked(self) -> tuple[str, ...]:
        """The tasks or modules that claims pass by, as this worker met them and does not know them."""
        return () if self.published is None else self.published.lacked

    @property
    def host(self) -> str:
        """The label of the host that it works on."""
        return self.worker_id.partition(":")[0]

    @property
    def takes_offers(self) -> bool:
        """Whether it claims from a hold; not hooks, which are one host's, nor in the order of models."""
        return self.queue != HOOKS_QUEUE and self.affinity is None

    @classmethod
    def of(
        cls,
        identity: Identity,
        settings: Settings,
        repository: type[ClaimableRepository[Any, Any]],
        models: ModelCache | None = None,
        affinity: Affinity | None = None,
    ) -> Self:
        """The terms of one worker."""
        return cls(
            repository,
            identity.queue,
            identity.worker_id,
            settings.lease_for(identity.queue),
            PayloadLimits(settings.payload_max_bytes, settings.payload_max_depth),
            locks=KeptLocks(settings.lock_dir),
            models=models,
            affinity=affinity,
            tasks=current_tasks().with_options if identity.queue not in RESERVED_QUEUES else {},
            published=PublishedNames.of(settings, identity.queue),
        )
