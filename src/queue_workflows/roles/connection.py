"""The database as a role without jobs has it: reached, lost, and reached again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from random import Random
from typing import Any, Final

import psycopg

from queue_workflows.db.connections.kept_line import Line

_log = logging.getLogger(__name__)

_RETRY_S: Final = 0.5


class RoleConnection:
    """One connection of a role; after an outage the next caller gets another."""

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection[Any]],
        *,
        role: str,
        wait: Callable[[float], object],
        rng: Random,
    ) -> None:
        """`wait` is how the role waits, so that a signal ends that too."""
        self._line = Line(connect)
        self._role = role
        self._wait = wait
        self._rng = rng
        self._back_at: float | None = None
        self.is_cut_off = False
        # When it answered last.
        self.answered_at = time.monotonic()

    @property
    def recovered_s(self) -> float | None:
        """How long ago the last outage ended, if there was one."""
        return None if self._back_at is None else time.monotonic() - self._back_at

    @property
    def obstacle(self) -> str | None:
        """What keeps this role from its work, for a probe; None if nothing does."""
        return "the database is away" if self.is_cut_off else None

    def connected(self) -> psycopg.Connection[Any]:
        """The connection; a new one if the last was let go of."""
        connection = self._line.connected()
        if self.is_cut_off:
            self.is_cut_off, self._back_at = False, time.monotonic()
            _log.info("the database is back")
        return connection

    def lost(self, exc: Exception) -> None:
        """Let go of the connection, as nobody knows what it is at, and wait a little before the next try."""
        self._line.let_go()
        if not self.is_cut_off:
            _log.warning("the %s has no database: %s", self._role, " ".join(str(exc).split()))
        self.is_cut_off = True
        self._wait(_RETRY_S * (0.5 + self._rng.random()))

    def cut_if_unanswered(self, after_s: float) -> None:
        """Let go, from another thread, of a server that gives no answer: a network may swallow them all."""
        self._line.cut_if_unanswered(after_s)

    def close(self) -> None:
        """Let go of the connection."""
        self._line.let_go()
