"""What this process declares in code of limits and of tasks: put into force at its start, and kept there.

The limits are the setting `limits`; of the tasks it is what others depend on, so that a job which any program
enqueues has its key and its lock. How two versions of a host app get along is told in
`repositories/limits/declarations`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import errors

from queue_workflows.engine.registry.tasks import TaskRegistry, current_tasks
from queue_workflows.repositories.limits.declarations import LimitDeclarationRepository

if TYPE_CHECKING:
    from queue_workflows.settings import Settings

_log = logging.getLogger(__name__)

EVERY_S: Final = 10.0
_NEXT_TRY_S: Final = 1.0
# A right that is missing is not there a moment later.
_REFUSED_S: Final = 300.0
DEFAULT_OWNER: Final = "app"
# Until then a new version of the host app is taking the place of an old one.
ROLLS_OUT_S: Final = 600.0


class LimitDeclaring:
    """The limits and tasks of this process, in the name of its host app."""

    def __init__(
        self,
        owner: str,
        limits: Mapping[str, Any],
        tasks: TaskRegistry,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`owner` is the module of the wiring: two wirings of one package are two apps, and both hold."""
        self._owner = owner
        self._limits = [limits[key].words for key in sorted(limits)]
        self._tasks = tasks
        self._has_begun = False
        self._now = now
        self._overruled_at: float | None = None
        self._has_told = False

    @classmethod
    def of(cls, settings: Settings, app: str | None) -> LimitDeclaring:
        """What the settings and the registered tasks say."""
        return cls(app or settings.app or DEFAULT_OWNER, settings.limits, current_tasks())

    def keep(self, connection: psycopg.Connection[Any]) -> float:
        """Declare if it is time, and vouch for what is in force; how long until the next look."""
        try:
            return self._keep(LimitDeclarationRepository(connection), connection)
        except (errors.InsufficientPrivilege, errors.UndefinedTable) as refused:
            _log.error(
                "limits and tasks of %s are not declared: %s; apply docs/deploy/grants.sql after an upgrade",
                self._owner,
                " ".join(str(refused).split()),
            )
            return _REFUSED_S

    def _keep(self, repository: LimitDeclarationRepository, connection: psycopg.Connection[Any]) -> float:
        tasks = self._tasks.declared()
        digest = _digest([self._limits, tasks])
        found = repository.in_force(self._owner, digest)
        if found is not None and found.is_ours:
            repository.vouch(self._owner, digest)
            self._overruled_at, self._has_told = None, False
        elif found is None and not self._limits and not tasks:
            return EVERY_S
        elif found is None or not self._has_begun or not found.is_alive:
            declared = repository.declare(self._owner, digest, limits=self._limits, tasks=tasks)
            if not declared.done:
                return _NEXT_TRY_S
            self._overruled_at, self._has_told = None, False
            _forget_unadapted(connection)
            _log.info("declared %d limits and %d tasks of %s", len(self._limits), len(tasks), self._owner)
            for key in declared.gone:
                _log.info("the limit of %s is not declared by %s any more", key, self._owner)
        else:
            self._tell_if_it_stays_so()
        self._has_begun = True
        return EVERY_S

    def _tell_if_it_stays_so(self) -> None:
        """Warn once where two versions go on beside each other for longer than a deploy takes."""
        now = self._now()
        self._overruled_at = now if self._overruled_at is None else self._overruled_at
        if self._has_told or now - self._overruled_at < ROLLS_OUT_S:
            return
        _log.warning(
            "what this process declares of limits and tasks is not in force: another process of %s declares "
            "otherwise, and has run beside this one for %d minutes. The one that started last holds, so each "
            "restart changes what holds: give all the same declarations, or the odd ones an app of their own",
            self._owner,
            (now - self._overruled_at) // 60,
        )
        self._has_told = True


def _forget_unadapted(connection: psycopg.Connection[Any]) -> None:
    """What is declared no more holds no limit down; imported for a new version alone."""
    from queue_workflows.repositories.limits.adapted import AdaptedRepository

    AdaptedRepository(connection).forget()


def _digest(words: object) -> str:
    """A digest that every process reckons alike."""
    text = json.dumps(words, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
