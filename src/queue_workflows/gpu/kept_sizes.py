"""Sizes of models in the database: stored as this worker sees them, learned from what all have seen."""

from __future__ import annotations

import logging
from typing import Any, Final

import psycopg
from psycopg import errors

from queue_workflows.gpu.cache import ModelCache
from queue_workflows.gpu.model_sizes import Seen
from queue_workflows.repositories.workers.model_memory import ModelMemoryRepository

_log = logging.getLogger(__name__)

EVERY_S: Final = 10.0
LEARN_EVERY_S: Final = 60.0
# A right that is missing is not there a moment later.
_REFUSED_S: Final = 300.0


class KeptSizes:
    """The sizes of one worker's models, kept by its guarding thread."""

    def __init__(self, models: ModelCache) -> None:
        self._models = models
        self._learn_at = float("-inf")

    def keep(self, connection: psycopg.Connection[Any], now: float) -> float:
        """Store what is new, and learn what others have seen; how long until the next time."""
        sizes = self._models.sizes
        if sizes.kind is None:
            return LEARN_EVERY_S
        try:
            self._keep(ModelMemoryRepository(connection), sizes.kind, now)
        except (errors.InsufficientPrivilege, errors.UndefinedTable) as refused:
            _log.error(
                "what models take is not kept: %s; apply docs/deploy/grants.sql after an upgrade",
                " ".join(str(refused).split()),
            )
            return _REFUSED_S
        return EVERY_S

    def _keep(self, repository: ModelMemoryRepository, kind: str, now: float) -> None:
        sizes = self._models.sizes
        fresh = sizes.unsaved()
        stored = 0
        try:
            for model, load_mb, peak_mb in fresh:
                spec = self._models.registry.known(model)
                repository.store(
                    model,
                    kind,
                    load_mb=load_mb[::-1],
                    peak_mb=[] if peak_mb is None else [peak_mb],
                    declared_mb=None if spec is None else spec.vram_mb,
                )
                stored += 1
        finally:
            # What the database did not take is not lost, as one of them may be what made a job fail.
            sizes.put_back(fresh[stored:])
        if fresh or now >= self._learn_at:
            self._learn_at = now + LEARN_EVERY_S
            sizes.learn(
                Seen(one.model, tuple(one.load_mb), tuple(one.peak_mb), one.loads)
                for one in repository.read(device=kind)
            )
