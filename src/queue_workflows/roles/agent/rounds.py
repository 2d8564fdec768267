"""What the host agent asks once a second for all workers that rest, in one transaction."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import psycopg

from queue_workflows.config import RESERVED_QUEUES
from queue_workflows.engine.registry.tasks import UNKNOWN_TASK
from queue_workflows.errors import QwfError
from queue_workflows.repositories.claims.by_host_lock import HOST_LOCK
from queue_workflows.repositories.claims.repository import ClaimableRepository
from queue_workflows.repositories.jobs.ingest import IngestJobRepository
from queue_workflows.repositories.jobs.nodes import NodeJobRepository
from queue_workflows.repositories.sql.connection import Questions
from queue_workflows.repositories.workers.heartbeats import HeartbeatRepository, Said
from queue_workflows.roles.agent_link.watch import Told

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """The workers of one queue of a host, for which the operator's wish is one."""

    host_label: str
    queue: str


class Rounds:
    """The questions, prepared once for each connection; and the heartbeats that wait for the next round."""

    def __init__(self) -> None:
        self._questions: Questions | None = None
        self._beats: dict[str, Said] = {}

    def beat(self, worker_id: str, said: Said) -> None:
        """Write this heartbeat in the next round; the last of each worker counts."""
        self._beats[worker_id] = said

    def ask(self, connection: psycopg.Connection[Any], places: Iterable[Place]) -> dict[Place, Told]:
        """What there is to tell of each place; the heartbeats are written then."""
        if self._questions is None or self._questions.handle is not connection:
            self._questions = Questions(connection)
        questions, beats = self._questions, self._beats
        self._beats = {}
        if beats:
            questions.add(HeartbeatRepository(connection).beating_all(self._checked(connection, beats)))
        asked = {
            place: (
                questions.add(of(connection).watching([], host_label=place.host_label, queue=place.queue)),
                questions.add(of(connection).finding(place.queue, holds=(HOST_LOCK, UNKNOWN_TASK))),
            )
            for place in places
            for of in (_repository_of(place.queue),)
        }
        questions.ask()
        return {place: Told(watched(), found()) for place, (watched, found) in asked.items()}

    def _checked(self, connection: psycopg.Connection[Any], beats: dict[str, Said]) -> list[dict[str, Any]]:
        """What the server will have of them: what is wrong with one is nothing to the others."""
        heartbeats, checked = HeartbeatRepository(connection), []
        for worker_id, said in sorted(beats.items()):
            try:
                checked.append(heartbeats.resting(worker_id, said))
            except (QwfError, KeyError, TypeError) as wrong:
                _log.warning("a heartbeat of %s is not written: %s", worker_id, wrong)
        return checked


def _repository_of(queue: str) -> type[ClaimableRepository[Any, Any]]:
    return NodeJobRepository if queue in RESERVED_QUEUES else IngestJobRepository
