"""When a server asks for less: what a job raised says so, and the limits that adapt are lowered.

A server does so by the statuses 429 and 503, which HTTP clients raise with their exceptions, and a job by
`RetryAfter`. It is about the keys that the job used at that moment: its own `limit_key`, the windows that the
exception left, and the rate that it took from last, or named itself. Those that adapt are lowered, once
for all jobs that had begun before that; see `repositories/limits/adapted`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg

from queue_workflows.engine.limits.wait_loop import Ask, Procedure
from queue_workflows.engine.outcomes import PutBack, RetryAfter

if TYPE_CHECKING:
    from queue_workflows.repositories.limits.adapted import Lowered

_log = logging.getLogger(__name__)

ASKS_FOR_LESS: Final = frozenset({429, 503})
# Where a status stands on the exceptions of HTTP clients, or on the response that they carry.
_STATUS: Final = ("status_code", "status", "code")
_CAUSES_LOOKED_AT: Final = 5
# How long it is believed that keys do not adapt.
_BELIEVED_S: Final = 10.0
_MOST_BELIEVED: Final = 1_000


class Refused(NamedTuple):
    """What was asked too much: the keys, and since when, or how long ago; a rate to block for a while."""

    keys: frozenset[str]
    since: datetime | float
    rate: str | None = None
    delay_s: float = 0.0


def asks_for_less(exc: BaseException) -> bool:
    """Whether a server, or a job in its name, said that it is asked too much."""
    if isinstance(exc, RetryAfter):
        return not isinstance(exc, PutBack)
    looked_at: BaseException | None = exc
    for _ in range(_CAUSES_LOOKED_AT):
        if looked_at is None:
            return False
        if not isinstance(looked_at, SystemExit) and _has_status(looked_at):
            return True
        looked_at = looked_at.__cause__
    return False


def _has_status(exc: BaseException) -> bool:
    # What an exception's own attributes do when they are looked at is not ours to bear.
    with suppress(Exception):
        for where in (exc, getattr(exc, "response", None)):
            for name in _STATUS:
                status = getattr(where, name, None)
                if isinstance(status, int) and status in ASKS_FOR_LESS:
                    return True
    return False


class UnadaptedKeys:
    """Keys of which it is known, for some seconds, that no limit of theirs adapts; most are such."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._until: dict[str, float] = {}

    def without(self, keys: Iterable[str]) -> list[str]:
        """The keys that may adapt."""
        now = self._clock()
        return [key for key in keys if self._until.get(key, now) <= now]

    def learn(self, asked: Iterable[str], adapting: Collection[str]) -> None:
        """Of the keys that were asked about only these adapt."""
        until = self._clock() + _BELIEVED_S
        with self._lock:
            if len(self._until) > _MOST_BELIEVED:
                self._until.clear()
            self._until.update((key, until) for key in asked if key not in adapting)


def lowering(unadapted: UnadaptedKeys, keys: Iterable[str], since: datetime | float) -> Procedure[None]:
    """Lower the limits of these keys that adapt."""
    asked = unadapted.without(keys)
    if not asked:
        return
    found: list[Lowered] = yield Ask(partial(_lower, asked, since))
    unadapted.learn(asked, {one.key for one in found})
    for one in found:
        if one.value is not None:
            what = "cap" if one.kind == "cap" else "rate"
            _log.warning(
                "the %s of %s is lowered to %.3g: its server asks for less", what, one.key, one.value
            )


def _lower(keys: list[str], since: datetime | float, connection: psycopg.Connection[Any]) -> list[Lowered]:
    # Most workers are never refused, and each would load it.
    from queue_workflows.repositories.limits.adapted import AdaptedRepository

    adapted = AdaptedRepository(connection)
    if isinstance(since, datetime):
        return adapted.lower(keys, since=since)
    return adapted.lower(keys, age_s=since)
