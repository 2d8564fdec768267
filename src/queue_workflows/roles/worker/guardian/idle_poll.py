"""The poll of an idle worker: the guardian's, as it asks the server each second anyway, in one transaction.

Where it finds something, the main thread is woken and claims. Where it finds nothing the main thread asks
nothing, for as long as what was seen is not older than a poll and a half: should the guardian wait for an
answer, the main thread polls itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Final

from queue_workflows import clock as time
from queue_workflows.config import GPU_QUEUE, HOOKS_QUEUE
from queue_workflows.engine.registry.tasks import UNKNOWN_TASK
from queue_workflows.repositories.claims.by_host_lock import HOST_LOCK
from queue_workflows.repositories.claims.hold_lease import Found
from queue_workflows.repositories.sql.connection import Questions
from queue_workflows.roles.worker.claims.terms import ClaimTerms

# How old what was seen may be, in polls.
_POLLS: Final = 1.5
# Of these queues much may be queued that this worker does not claim, so its main thread polls itself.
_OWN_POLLS: Final = frozenset({GPU_QUEUE, HOOKS_QUEUE})
# What an idle worker looks for among the jobs on hold.
_HOLDS: Final = (HOST_LOCK, UNKNOWN_TASK)


class IdlePoll:
    """Asked by the guardian; what it has seen is read by the main thread."""

    def __init__(self, terms: ClaimTerms, poll_s: float, rng: Random) -> None:
        self._terms = terms
        self._poll_s = poll_s
        self._rng = rng
        self._due = 0.0
        self._seen = -math.inf, Found(queued=True, held=frozenset())
        self._has_found = False

    def ask_with(self, questions: Questions, now: float, until: float) -> Callable[[], bool] | None:
        """Poll with other questions if that is due by then; whether there is something, once answered."""
        if self._terms.queue in _OWN_POLLS or until < self._due:
            return None
        self._due = now + self._poll_s * (0.75 + self._rng.random() / 2)
        answer = questions.add(
            self._terms.repository(questions.handle).finding(self._terms.queue, holds=_HOLDS)
        )

        def heard() -> bool:
            return self.told(now, answer())

        return heard

    def told(self, at: float, found: Found) -> bool:
        """Take what was found at this moment, once; whether there is something."""
        self._seen = at, found
        self._has_found = self._has_found or found.queued
        return found.queued

    def has_found_nothing(self, now: float) -> bool:
        """Whether the queue was empty a moment ago."""
        at, found = self._seen
        return now - at <= self._poll_s * _POLLS and not found.queued

    def holds_nothing(self, reason: str) -> bool:
        """Whether a moment ago no job of any queue was on hold for this reason."""
        at, found = self._seen
        return time.monotonic() - at <= self._poll_s * _POLLS and reason not in found.held

    def take_found(self) -> bool:
        """Whether there was something since this was asked last."""
        found, self._has_found = self._has_found, False
        return found
