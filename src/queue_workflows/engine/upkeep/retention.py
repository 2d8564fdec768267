"""Deletes what is older than the retention, a part at a time, so that it never gets in the way of work.

What moves to a history by months is moved in the same turn, before it.

A part of ingest jobs, then one of runs, whatever either has left. Each begins where the one before it ended,
so what a part reads grows with what it prunes and not with what is kept.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import psycopg
from psycopg.errors import InsufficientPrivilege, IntegrityError

from queue_workflows import clock as time
from queue_workflows.engine.upkeep.history import HistoryMoving
from queue_workflows.repositories.limits.rates import RateRepository
from queue_workflows.repositories.retention import (
    JOBS_AT_ONCE,
    RUNS_AT_ONCE,
    Moments,
    OldJob,
    OldRun,
    PruningRepository,
    RetentionTimes,
)
from queue_workflows.repositories.sql.families import FAMILIES, INGEST, NODE, Family
from queue_workflows.settings import DAY_S, Settings

_log = logging.getLogger(__name__)

EVERY_S: Final = 60.0
# Between two full parts, so that others get to work.
_NEXT_PART_S: Final = 0.2
# Rows that lie on one page are emptied in turns: those of a turn find the room that the turn before has left,
# stay on their page, and are written to no index.
_TURNS: Final = 4
# How far a part comes back for what somebody held; what is held for longer goes when its key would.
_BACK_FOR_HELD: Final = timedelta(hours=1)
# Runs that were passed by are looked at again: nobody tells when what refers to them is gone.
_AGAIN_AFTER_S: Final = 3600.0
_REFUSED_S: Final = 300.0


class Pruning:
    """What one process remembers of its pruning: how far it has come with each kind."""

    def __init__(self, settings: Settings) -> None:
        self._times = RetentionTimes.of(settings)
        self._ingest = _IngestPruning()
        self._runs = _RunPruning()
        self._history = HistoryMoving(settings)
        self._orphans = [_OrphanSteps(family) for family in FAMILIES]
        self._after_bucket = ""

    def prune(self, connection: psycopg.Connection[Any]) -> float:
        """One part of each kind, on a connection in autocommit; when the next one should come.

        A right that is missing keeps what is old, and nobody from work.
        """
        try:
            return self._prune(connection)
        except InsufficientPrivilege as refused:
            _log.error(
                "nothing old is deleted: %s; apply docs/deploy/grants.sql after an upgrade",
                " ".join(str(refused).split()),
            )
            return _REFUSED_S

    def _prune(self, connection: psycopg.Connection[Any]) -> float:
        self._after_bucket = RateRepository(connection).forget(
            for_s=max(self._times.kept_s, DAY_S), after=self._after_bucket
        )
        repository = PruningRepository(connection, **self._times._asdict())
        # Of both each time: a backlog of one kind is no reason to keep the other.
        is_more = [self._history.move(connection)]
        is_more += [kind.prune(repository) for kind in (self._ingest, self._runs)]
        is_more += [repository.delete_events() >= JOBS_AT_ONCE]
        is_more += [orphans.prune(repository) for orphans in self._orphans]
        return _NEXT_PART_S if any(is_more) else EVERY_S


class _OrphanSteps:
    """Steps of durable functions of which the job is gone: a walk over all of a family, once a day."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._after = 0
        self._at = 0.0

    def prune(self, repository: PruningRepository) -> bool:
        """One part; whether there may be more."""
        if time.monotonic() < self._at:
            return False
        last = repository.delete_orphan_steps(self._family, self._after)
        if last is None:
            self._at = time.monotonic() + DAY_S
        self._after = last or 0
        return last is not None


class _IngestPruning:
    """Ingest jobs: those that go with their keys first, then those without one and those that are emptied."""

    def __init__(self) -> None:
        # Where the next part begins: of what is deleted whatever it is, and of the rest.
        self._oldest: datetime | None = None
        self._since: datetime | None = None
        # Where to come back to for what somebody held, after the last part that is full.
        self._back_to: datetime | None = None
        # Behind jobs that something else refers to, until they are looked at again.
        self._passed: datetime | None = None
        self._again_at = 0.0

    def prune(self, repository: PruningRepository) -> bool:
        """One part; whether there may be more."""
        if self._delete_oldest(repository):
            return True
        moments = repository.moments(INGEST)
        since = _later(self._since, moments.mark)
        old = repository.old_ingest(since)
        done, kept = _deleted_or_emptied(repository, old)
        is_full = len(old) >= JOBS_AT_ONCE
        seen_to = old[-1].finished_at if old else moments.old
        held = [job.finished_at for job in old if job.id not in done | kept]
        if old and (held or self._back_to):
            self._back_to = max(min(filter(None, [self._back_to, *held])), seen_to - _BACK_FOR_HELD)
        if done | kept:
            repository.move_mark(INGEST, self._back_to or seen_to)
        if is_full:
            # Behind what is held as well, though all of a part be that, and have ended at one moment.
            self._since = seen_to if done or seen_to != since else seen_to + timedelta.resolution
        else:
            self._since, self._back_to = self._back_to or moments.old, None
        return is_full

    def _delete_oldest(self, repository: PruningRepository) -> bool:
        """Jobs that go with their keys; whether there may be more."""
        if time.monotonic() >= self._again_at:
            self._passed = None
        since = _later(self._oldest, self._passed)
        try:
            ended = repository.delete_ingest(since)
        except IntegrityError:
            ended = self._delete_one_by_one(repository, since)
        # From the first row on again once all are gone: some may have been held.
        self._oldest = max(ended) if len(ended) >= JOBS_AT_ONCE else None
        return self._oldest is not None

    def _delete_one_by_one(self, repository: PruningRepository, since: datetime | None) -> list[datetime]:
        """A part in which something refers to a job; when those of it ended, deleted or not."""
        old = repository.oldest_ingest(since)
        _, kept = _each(repository.delete_oldest_ingest, [job.id for job in old])
        if kept:
            if self._passed is None:
                self._again_at = time.monotonic() + _AGAIN_AFTER_S
            self._passed = old[-1].finished_at + (timedelta.resolution if old[-1].id in kept else timedelta())
        return [job.finished_at for job in old]


def _deleted_or_emptied(repository: PruningRepository, old: Sequence[OldJob]) -> tuple[set[int], set[int]]:
    """What was, and what stays as something refers to it.

    Deletions first: they leave room on the pages of what is emptied.
    """
    keyless, kept = [job.id for job in old if not job.has_key], set[int]()
    try:
        done = repository.delete_old_ingest(keyless)
    except IntegrityError:
        done, kept = _each(repository.delete_old_ingest, keyless)
    with_key = sorted(job.id for job in old if job.has_key)
    for turn in range(_TURNS):
        done |= repository.strip_ingest(with_key[turn::_TURNS])
    return done, kept


def _each(delete: Callable[[Collection[int]], set[int]], ids: Sequence[int]) -> tuple[set[int], set[int]]:
    """Jobs that were deleted one by one, and those that a host app's foreign key forbids to delete."""
    done, kept, said = set[int](), set[int](), ""
    for job_id in ids:
        try:
            done |= delete([job_id])
        except IntegrityError as held:
            kept.add(job_id)
            said = said or str(held)
    if kept:
        _log.warning("%d old ingest jobs stay, because something refers to them: %s", len(kept), said)
    return done, kept


class _RunPruning:
    """Runs with their jobs: those that go with their keys, those without one, and what waited for these."""

    def __init__(self) -> None:
        # Runs that something else refers to, and those of which it may be gone by now.
        self._kept_by_others: set[uuid.UUID] = set()
        self._again: set[uuid.UUID] = set()
        # Runs above those that went, to be looked at next.
        self._parents: set[uuid.UUID] = set()
        self._oldest: datetime | None = None
        self._since: datetime | None = None
        self._again_at = 0.0

    def prune(self, repository: PruningRepository) -> bool:
        """One part; whether there may be more."""
        moments = repository.moments(NODE)
        if time.monotonic() >= self._again_at:
            self._oldest, self._again_at = None, time.monotonic() + _AGAIN_AFTER_S
            self._again |= self._kept_by_others
            self._kept_by_others.clear()
        # By their ids, a part at a time: the mark has passed by those without a key.
        self._parents |= {self._again.pop() for _ in range(min(len(self._again), RUNS_AT_ONCE))}
        but = self._kept_by_others
        parents = repository.old_parents(self._parents, but)
        oldest = repository.old_runs(but, self._oldest)
        since = _later(self._since, moments.mark)
        young = repository.old_runs_without_key(but, since) if len(oldest) < RUNS_AT_ONCE else []
        found = {run.id: run for run in (*parents, *oldest, *young)}
        self._parents = {run.id for run in parents}
        if found and repository.delete_jobs(found):
            return True
        gone = self._delete(repository, found)
        self._parents = {run.parent_run_id for run in gone if run.parent_run_id is not None}
        passed = {run.id for run in gone} | self._kept_by_others
        self._oldest = _seen_to(oldest, passed, moments.oldest)
        if len(oldest) < RUNS_AT_ONCE:
            self._since = _seen_to(young, passed, moments.old)
            self._note(repository, young, moments)
        return bool(gone or self._again) or max(len(oldest), len(young)) >= RUNS_AT_ONCE

    def _delete(self, repository: PruningRepository, found: dict[uuid.UUID, OldRun]) -> list[OldRun]:
        gone = []
        for run in found.values():
            try:
                if repository.delete_run(run.id):
                    gone.append(run)
            except IntegrityError as held:
                self._kept_by_others.add(run.id)
                _log.warning("run %s is old and stays, because something refers to it: %s", run.id, held)
        return gone

    def _note(self, repository: PruningRepository, young: Sequence[OldRun], moments: Moments) -> None:
        """Move the mark as far as runs were pruned."""
        if young and self._since is not None:
            seen_to = min(young[-1].finished_at, self._since)
            if moments.mark is None or seen_to > moments.mark:
                repository.move_mark(NODE, seen_to)


def _seen_to(found: Sequence[OldRun], passed: Collection[uuid.UUID], end: datetime) -> datetime:
    """Where the next look begins: at the first that is still there, or after those that were found."""
    left = [run.finished_at for run in found if run.id not in passed]
    if left:
        return min(left)
    return found[-1].finished_at if len(found) >= RUNS_AT_ONCE else end


def _later(one: datetime | None, other: datetime | None) -> datetime | None:
    """The later of two moments, either of which may be unknown."""
    return max((moment for moment in (one, other) if moment is not None), default=None)
