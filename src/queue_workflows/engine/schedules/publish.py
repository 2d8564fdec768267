"""Putting into force what this code declares, and keeping it there for as long as it should be."""

from __future__ import annotations

import logging
from typing import Any, Final

import psycopg

from queue_workflows.config import current_config
from queue_workflows.engine.schedules.declared import DeclaredSchedules
from queue_workflows.errors import ConfigurationError
from queue_workflows.repositories.schedules.declarations import DeclarationRepository

_log = logging.getLogger(__name__)

EVERY_S: Final = 10.0
_NEXT_TRY_S: Final = 1.0


class Declaring:
    """The declarations of this process: into force at its start, and again when nobody else's holds."""

    def __init__(self, declared: DeclaredSchedules | None, app: str | None = None) -> None:
        self._declared = declared
        self._app = app
        self._has_begun = declared is None
        self._not_ours: list[str] = []

    @property
    def has_begun(self) -> bool:
        """Whether what is declared here was put into force once, or is to leave to others."""
        return self._has_begun

    def check(self) -> None:
        """Refuse a queue that the host app does not have; it may name its queues after its schedules."""
        known = current_config().ingest_queues
        for one in self._declared.words if self._declared else ():
            if one["queue"] not in known:
                raise ConfigurationError(
                    f"the schedule {one['name']!r:.80} is for the queue {one['queue']!r},"
                    f" which is none of {', '.join(sorted(known))}",
                    advice="name it in configure(ingest_queues=…), or give the schedule another",
                )

    def keep(self, connection: psycopg.Connection[Any]) -> float:
        """Declare if it is time, and vouch for what is in force; how long until the next look."""
        if self._declared is None:
            return EVERY_S
        repository, owner, digest = (
            DeclarationRepository(connection),
            self._declared.owned_by(self._app),
            self._declared.digest,
        )
        repository.vouch(owner, digest)
        standing = repository.in_force(owner, digest)
        is_whole = standing.ours == len(self._declared.words) and not standing.others
        if not is_whole and not (self._has_begun and standing.others_alive):
            declared = repository.declare(owner, digest, self._declared.words)
            if not declared.done:
                return _NEXT_TRY_S
            self._tell(owner, declared.written, declared.gone)
        self._has_begun = True
        return EVERY_S

    def _tell(self, owner: str, written: list[str], gone: list[str]) -> None:
        assert self._declared is not None  # noqa: S101 - asked only where schedules are declared
        for name in gone:
            _log.info("schedule %s is not declared by %s any more: it ticks no more", name, owner)
        not_ours = [one["name"] for one in self._declared.words if one["name"] not in written]
        if not_ours != self._not_ours:
            for name in not_ours:
                _log.warning("schedule %s is another host app's, or locked: left as it is", name)
            self._not_ours = not_ours
        if written:
            _log.info("declared %d schedules of %s", len(written), owner)
