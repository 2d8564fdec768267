"""One maintenance tick: promote what is due, take back what lapsed, let out of lanes what has room, now and
then see to silent workers, and seldom to operators' wishes that have lapsed and to slots that nobody uses.

Every role does it, so that none has to exist; as there may be hundreds of them, a tick with nothing to do is
one look. The first to come does it for all: the others find the lock taken and come again later. Each
statement is a transaction of its own, so that a process stopped or cut off between two of them does not keep
the others away.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from queue_workflows.engine.limits.lane_upkeep import LaneWalk, free_left_by
from queue_workflows.engine.telemetry import count_lost
from queue_workflows.repositories.claims.sweep import PROMOTED_AT_ONCE, RECLAIMED_AT_ONCE
from queue_workflows.repositories.claims.sweep_look import Sweepable, look, looking
from queue_workflows.repositories.jobs.ingest import IngestJobRepository
from queue_workflows.repositories.jobs.nodes import NodeJobRepository
from queue_workflows.repositories.limits.slots import SlotRepository
from queue_workflows.repositories.sql.connection import Questions
from queue_workflows.repositories.workers.control import WorkerControlRepository
from queue_workflows.repositories.workers.heartbeats import HeartbeatRepository
from queue_workflows.settings import DAY_S, Settings
from queue_workflows.states import JobFamily, JobStatus

_log = logging.getLogger(__name__)

EVERY_S: Final = 1.0
# Silence is slow, and each look reads all workers: one tick in so many, by chance.
_SILENCE_ONE_IN: Final = 5
# Lapsed wishes harm nobody: in the quarter of an hour.
_LAPSED_ONE_IN: Final = 900
_FORGOTTEN_AFTER_S: Final = DAY_S


@dataclass(frozen=True, slots=True)
class Swept:
    """What a tick did, and when the next one should come."""

    promoted: int = 0
    reclaimed: int = 0
    next_in_s: float = EVERY_S


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look before a tick has shown."""

    sweepable: Mapping[str, Sweepable]
    is_anybody_silent: bool


def look_with(
    questions: Questions, settings: Settings, *, chance: Callable[[], float] = random.random
) -> Callable[[], Seen]:
    """Have a look asked for with other questions; what gives the answer after that."""
    sweepable = questions.add(looking())
    if chance() * _SILENCE_ONE_IN >= 1:
        return lambda: Seen(sweepable(), is_anybody_silent=False)
    stale_s = settings.stale_heartbeat_s
    silent = questions.add(
        HeartbeatRepository(questions.handle).finding_silent(
            older_than_s=stale_s, forgets_after_s=max(_FORGOTTEN_AFTER_S, stale_s)
        )
    )
    return lambda: Seen(sweepable(), is_anybody_silent=silent())


def sweep(
    connection: psycopg.Connection[Any],
    settings: Settings,
    *,
    recovered_s: float | None,
    lanes: LaneWalk | None = None,
    seen: Seen | None = None,
    chance: Callable[[], float] = random.random,
) -> Swept:
    """One tick on a connection in autocommit; `recovered_s` is how long ago the caller got through again.

    A caller that keeps `lanes` between the ticks comes to all lanes, however many there are; one that has
    looked already says what it has `seen`.
    """
    longest = max(settings.lease_s, *settings.lease_s_by_queue.values())
    promoted = reclaimed = 0
    full = False
    sweepable = look(connection) if seen is None else seen.sweepable
    if any(of.news for of in sweepable.values()):
        # Before what is due is promoted, which they are then.
        full = _wake_by_news(connection)
        sweepable = look(connection)
    for repository in (NodeJobRepository(connection), IngestJobRepository(connection)):
        of = sweepable[repository.family.name]
        due = repository.promote(in_turn=True) if of.due else 0
        taken = []
        if of.lapsed:
            taken = repository.reclaim(
                max_crashes=settings.max_crashes,
                lease_s=longest,
                recovered_s=recovered_s,
                beat_s=settings.beat_s,
                in_turn=True,
            )
        if taken:
            free_left_by(connection, [one.lost_worker for one in taken])
            count_lost((one.queue for one in taken), JobFamily(repository.family.name))
        for one in taken:
            level = logging.ERROR if one.status is JobStatus.FAILED else logging.WARNING
            _log.log(level, "job %d of lost worker %s is %s", one.id, one.lost_worker, one.status)
        promoted, reclaimed = promoted + due, reclaimed + len(taken)
        full = full or due >= PROMOTED_AT_ONCE or len(taken) >= RECLAIMED_AT_ONCE
    (lanes or LaneWalk()).step(connection, [name for name, of in sweepable.items() if of.lanes])
    if chance() * _SILENCE_ONE_IN < 1 if seen is None else seen.is_anybody_silent:
        _see_to_the_silent(connection, settings.stale_heartbeat_s, recovered_s)
    if chance() * _LAPSED_ONE_IN < 1:
        WorkerControlRepository(connection).forget_lapsed(for_s=_FORGOTTEN_AFTER_S)
        SlotRepository(connection).forget(for_s=_FORGOTTEN_AFTER_S)
        _forget_declared(connection)
    return Swept(promoted, reclaimed, 0.0 if full else EVERY_S)


def _wake_by_news(connection: psycopg.Connection[Any]) -> bool:
    """Wake durable functions by events and ends; whether there may be more. Imported where there are any.

    A right that is missing leaves them to a sweep that has it, and keeps nobody from work.
    """
    from queue_workflows.engine.upkeep.news import wake_by_news

    try:
        return wake_by_news(connection)
    except psycopg.errors.InsufficientPrivilege as refused:
        said = " ".join(str(refused).split())
        _log.error("durable functions are not woken: %s; apply docs/deploy/grants.sql after an upgrade", said)
        return False


def _forget_declared(connection: psycopg.Connection[Any]) -> None:
    """Forget host apps that have left, what holds no limit down, old models; imported for this alone."""
    from queue_workflows.repositories.limits.adapted import AdaptedRepository
    from queue_workflows.repositories.limits.declarations import LimitDeclarationRepository
    from queue_workflows.repositories.workers.model_memory import ModelMemoryRepository

    AdaptedRepository(connection).forget()
    ModelMemoryRepository(connection).forget()
    LimitDeclarationRepository(connection).forget()


def _see_to_the_silent(
    connection: psycopg.Connection[Any], stale_s: float, recovered_s: float | None
) -> None:
    """Flag workers that hold jobs and say nothing, for supervisors to end; forget those away for a day.

    After an outage everybody looks silent, and has time to beat again before a word is said.
    """
    heartbeats = HeartbeatRepository(connection)
    if recovered_s is None or recovered_s > stale_s:
        for worker_id in heartbeats.flag_silent(older_than_s=stale_s):
            _log.warning("worker %s holds jobs and was not heard of for %g s", worker_id, stale_s)
    heartbeats.forget(older_than_s=max(_FORGOTTEN_AFTER_S, stale_s))
