"""What the host agent asks once a second for all workers that rest, in one transaction."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from queue_workflows.config import RESERVED_QUEUES
from queue_workflows.engine.registry.tasks import UNKNOWN_TASK
from queue_workflows.errors import QwfError
from queue_workflows.repositories.claims.by_host_lock import HOST_LOCK
from queue_workflows.repositories.claims.repository import ClaimableRepository
from queue_workflows.repositories.claims.sweep_look import Sweepable, looking
from queue_workflows.repositories.jobs.ingest import IngestJobRepository
from queue_workflows.repositories.jobs.nodes import NodeJobRepository
from queue_workflows.repositories.sql.connection import Questions
from queue_workflows.repositories.workers.heartbeats import HeartbeatRepository, Said
from queue_workflows.roles.agent_link.watch import STALE_S, Told

_log = logging.getLogger(__name__)

# What is due or lapsed in so many rounds running nobody sweeps; a lane may stand for long all the same.
_LEFT_ROUNDS: Final = 2
_LEFT_LANES_ROUNDS: Final = 10


@dataclass(frozen=True, slots=True)
class Place:
    """The workers of one queue of a host, for which the operator's wish is one."""

    host_label: str
    queue: str


class Rounds:
    """The questions, prepared once for each connection; and the heartbeats that wait for the next round."""

    def __init__(self) -> None:
        self._questions: Questions | None = None
        self._beats: dict[str, tuple[float, Said]] = {}
        # The workers that the server has no row of, as the last round has shown.
        self.unknown: list[str] = []
        self._left = self._left_lanes = 0

    def beat(self, worker_id: str, said: Said, at: float) -> None:
        """Write this heartbeat of that moment in the next round; the last of each worker counts."""
        self._beats[worker_id] = at, said

    def forget(self, worker_id: str) -> None:
        """Write nothing for a worker that speaks for itself again, or is gone."""
        self._beats.pop(worker_id, None)

    def ask(
        self, connection: psycopg.Connection[Any], places: Iterable[Place], now: float
    ) -> dict[Place, Told]:
        """What there is to tell of each place; the heartbeats are written then."""
        if self._questions is None or self._questions.handle is not connection:
            self._questions = Questions(connection)
        questions, beats = self._questions, self._beats
        self._beats = {}
        checked = self._checked(connection, beats, now)
        unknown = questions.add(HeartbeatRepository(connection).beating_all(checked)) if checked else None
        asked = {
            place: (
                questions.add(of(connection).watching([], host_label=place.host_label, queue=place.queue)),
                questions.add(of(connection).finding(place.queue, holds=(HOST_LOCK, UNKNOWN_TASK))),
            )
            for place in places
            for of in (_repository_of(place.queue),)
        }
        sweepable = questions.add(looking())
        questions.ask()
        self.unknown = [] if unknown is None else unknown()
        self._note_left(sweepable().values())
        return {place: Told(watched(), found()) for place, (watched, found) in asked.items()}

    def _note_left(self, sweepable: Iterable[Sweepable]) -> None:
        families = list(sweepable)
        is_left = any(of.due or of.lapsed or of.news for of in families)
        self._left = self._left + 1 if is_left else 0
        self._left_lanes = self._left_lanes + 1 if any(of.lanes for of in families) else 0

    def take_left(self) -> bool:
        """Whether what there is to sweep was left there, so that one that rests is to see to it.

        The first in line sweeps for all that rest, but it may be stopped, or get no answer.
        """
        if self._left < _LEFT_ROUNDS and self._left_lanes < _LEFT_LANES_ROUNDS:
            return False
        self._left = self._left_lanes = 0
        return True

    def _checked(
        self, connection: psycopg.Connection[Any], beats: dict[str, tuple[float, Said]], now: float
    ) -> list[dict[str, Any]]:
        """What the server will have of them, and is no old news: what is wrong with one harms no other."""
        heartbeats, checked = HeartbeatRepository(connection), []
        for worker_id, (at, said) in sorted(beats.items()):
            try:
                if (age_s := max(0.0, now - at)) <= STALE_S:
                    checked.append(heartbeats.resting(worker_id, said, age_s=age_s))
            except (QwfError, KeyError, TypeError) as wrong:
                _log.warning("a heartbeat of %s is not written: %s", worker_id, wrong)
        return checked


def _repository_of(queue: str) -> type[ClaimableRepository[Any, Any]]:
    return NodeJobRepository if queue in RESERVED_QUEUES else IngestJobRepository
