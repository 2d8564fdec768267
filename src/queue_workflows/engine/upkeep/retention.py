"""Deletes what is older than the retention, a part at a time, so that it never gets in the way of work."""

from __future__ import annotations

import logging
import uuid
from typing import Any, Final

import psycopg
from psycopg.errors import IntegrityError

from queue_workflows.repositories.limits.rates import RateRepository
from queue_workflows.repositories.retention import JOBS_AT_ONCE, RUNS_AT_ONCE, PruningRepository
from queue_workflows.settings import Settings

_log = logging.getLogger(__name__)

EVERY_S: Final = 60.0
# Between two full parts, so that others get to work.
_NEXT_PART_S: Final = 0.2
_DAY_S: Final = 86_400.0


class Pruning:
    """What one process remembers of its pruning: runs that something else holds on to, the last bucket."""

    def __init__(self, settings: Settings) -> None:
        self._kept_s = settings.retention_days * _DAY_S
        self._ttl_s = settings.dedupe_ttl_days * _DAY_S
        self._kept_by_others: set[uuid.UUID] = set()
        self._after_bucket = ""

    def prune(self, connection: psycopg.Connection[Any]) -> float:
        """One part of each kind, on a connection in autocommit; when the next one should come."""
        self._after_bucket = RateRepository(connection).forget(
            for_s=max(self._kept_s, _DAY_S), after=self._after_bucket
        )
        repository = PruningRepository(connection, kept_s=self._kept_s, ttl_s=self._ttl_s)
        ingest = max(repository.delete_ingest(), repository.strip_ingest())
        # Of both each time: a backlog of one kind is no reason to keep the other.
        is_more = self._prune_runs(repository) or ingest >= JOBS_AT_ONCE
        return _NEXT_PART_S if is_more else EVERY_S

    def _prune_runs(self, repository: PruningRepository) -> bool:
        runs = repository.old_runs(self._kept_by_others)
        if not runs:
            return False
        if repository.delete_jobs(runs):
            return True
        deleted = False
        for run_id in runs:
            try:
                deleted |= repository.delete_run(run_id)
            except IntegrityError as held:
                self._kept_by_others.add(run_id)
                _log.warning("run %s is old and stays, because something refers to it: %s", run_id, held)
        # A run goes after those below it.
        return deleted or len(runs) >= RUNS_AT_ONCE
