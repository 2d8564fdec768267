"""Moves ingest jobs that are over to a history by months, or back, a batch at a time, where that is wanted.

A batch is one transaction, so a mover that is killed has moved all of it or nothing. Any number may move.
"""

from __future__ import annotations

import logging
import math
from datetime import datetime
from typing import Any, Final

import psycopg
from psycopg.errors import InsufficientPrivilege, LockNotAvailable, ObjectNotInPrerequisiteState

from queue_workflows import clock as time
from queue_workflows.db.connections.failures import DATABASE_AWAY
from queue_workflows.repositories.history import HistoryRepository, Mode
from queue_workflows.settings import DAY_S, Settings

_log = logging.getLogger(__name__)

# Of months that are to go: so many in one turn, each under a lock that readers wait for.
_MONTHS_AT_ONCE: Final = 3
# Between two tries for a lock that somebody's long read keeps from us, as all that comes to read waits behind
# each of them: longer after each that failed.
_FIRST_PAUSE_S: Final = 60.0
_LONGEST_PAUSE_S: Final = 900.0


class _LockTries:
    """When to ask again for a lock that was not to be had."""

    def __init__(self) -> None:
        self._pause_s = 0.0
        self._at = -math.inf

    def is_due(self) -> bool:
        """Whether it may be asked for now."""
        return time.monotonic() >= self._at

    def had(self) -> None:
        """Begin with the shortest pause again."""
        self._pause_s = 0.0

    def refused(self) -> None:
        """Wait, twice as long as the last time."""
        self._pause_s = min(max(_FIRST_PAUSE_S, 2 * self._pause_s), _LONGEST_PAUSE_S)
        self._at = time.monotonic() + self._pause_s


class HistoryMoving:
    """What one process remembers of its moving: how far it has come, in the direction that there is."""

    def __init__(self, settings: Settings) -> None:
        self._after_s = settings.history_after_days * DAY_S
        self._kept_s = settings.retention_days * DAY_S
        self._mode: Mode | None = None
        # Up to where it has looked: by when jobs ended as they move, by their ids as they come back.
        self._since: datetime | None = None
        self._after = 0
        self._refused = ""
        self._to_drop = _LockTries()
        self._to_move = _LockTries()

    def move(self, connection: psycopg.Connection[Any]) -> bool:
        """One batch on a connection in autocommit; whether there may be more to do at once.

        What the database refuses leaves jobs where they are, and nobody from work.
        """
        try:
            return self._move(connection)
        except psycopg.Error as refused:
            if isinstance(refused, DATABASE_AWAY) and not isinstance(refused, ObjectNotInPrerequisiteState):
                raise
            said = " ".join(str(refused).split())
            if isinstance(refused, InsufficientPrivilege):
                said += "; apply docs/deploy/grants.sql after an upgrade"
            if said != self._refused:
                _log.error("no job is moved: %s", said)
            self._refused = said
            return False

    def _move(self, connection: psycopg.Connection[Any]) -> bool:
        repository = HistoryRepository(connection)
        mode = repository.mode()
        if mode != self._mode:
            self._mode, self._since, self._after = mode, None, 0
        if mode is None:
            return False
        self._drop(repository)
        if mode.is_by_months:
            return self._to_move.is_due() and self._move_some(repository)
        last = repository.bring_some_back(self._after)
        self._after = last or 0
        return last is not None

    def _move_some(self, repository: HistoryRepository) -> bool:
        try:
            moved = repository.move(self._since, after_s=self._after_s)
        except LockNotAvailable:
            _log.info("a month of history is to be made, and somebody reads the others: later")
            self._to_move.refused()
            return False
        self._to_move.had()
        self._since = moved.seen_to
        return moved.is_more

    def _drop(self, repository: HistoryRepository) -> None:
        if not self._to_drop.is_due():
            return
        for _ in range(_MONTHS_AT_ONCE):
            try:
                name = repository.drop_month(kept_s=self._kept_s)
            except LockNotAvailable:
                _log.info("a month of history is to be dropped, and somebody reads it: later")
                self._to_drop.refused()
                return
            self._to_drop.had()
            if name is None:
                return
            _log.info("dropped %s, a month of history", name)
