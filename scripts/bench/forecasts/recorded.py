"""A load that was worked off, and what was foretold of it on the way."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import psycopg

from bench.forecasts.loads import KEY, KEY_CAP, Job, Shape
from bench.harness.measuring import Bench
from bench.harness.servers import said
from bench.harness.workers import working
from bench.worker.wakes import LISTENERS, until
from queue_workflows.db.connections.snapshot_read import at_one_moment
from queue_workflows.engine.forecast.plays import Span
from queue_workflows.repositories import LimitRepository, NewIngestJob, enqueue_many
from queue_workflows.repositories.explain.explain_job import Circumstances, ExplainingRepository
from queue_workflows.repositories.forecast.queue_now import QueueNow
from queue_workflows.repositories.sql.families import INGEST
from queue_workflows.views.forecast.drain import queue_forecast, read_queue
from queue_workflows.views.forecast.job import forecast_of

QUEUE: Final = "fetch"
SETTINGS: Final = {"QWF_APP": "bench.forecasts.tasks"}
WORKERS, SLOTS = 2, 4
STALE_S: Final = 30.0
# A forecast is asked for when so much of the load is done, each time of so many jobs too.
ASKED_AT: Final = (0.2, 0.5)
JOBS_ASKED: Final = 6
_PATIENCE_S: Final = 300.0
_OPEN: Final = "SELECT count(*) FROM ingest_jobs WHERE finished_at IS NULL AND priority = 5"
_WAITING: Final = """
SELECT id FROM ingest_jobs WHERE status IN ('queued', 'scheduled') AND priority = 5 ORDER BY id
"""
_TIMES: Final = """
SELECT id, extract(epoch FROM started_at)::float8, extract(epoch FROM finished_at)::float8 FROM ingest_jobs
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """What was foretold, and what happened; both in seconds since it was asked."""

    kind: str
    span: Span | None
    happened_s: float

    @property
    def is_held(self) -> bool:
        """Whether the range held what happened."""
        return self.span is not None and self.span.low_s <= self.happened_s <= self.span.high_s

    @property
    def error(self) -> float:
        """How far off the middle was, as a share of what happened."""
        assert self.span is not None
        return abs(self.span.middle_s - self.happened_s) / max(self.happened_s, 0.1)


@dataclass
class _Asked:
    """What was read at one moment."""

    at: float
    now: QueueNow
    waiting: Sequence[int]
    jobs: dict[int, Circumstances]


def record(bench: Bench, shape: Shape, *, seed: int, jobs: int) -> list[Answer]:
    """Work a history off, then as many jobs again, and ask on the way."""
    chance = Random(seed)
    with bench.database() as (dsn, connection), ExitStack() as stack:
        LimitRepository(connection).set(KEY, KEY_CAP, actor="bench")
        for _ in range(WORKERS):
            stack.enter_context(
                working(
                    dsn,
                    "--concurrency",
                    str(SLOTS),
                    settings=SETTINGS,
                    heard=subprocess.DEVNULL,
                )
            )
        until(lambda: said(connection, LISTENERS))
        enqueue(connection, shape.jobs(chance, jobs // 2))
        urgent = _Urgent(connection, shape.urgent_per_s, chance)
        _wait_until(connection, 0, urgent)
        enqueue(connection, shape.jobs(chance, jobs))
        asked = []
        for done in ASKED_AT:
            _wait_until(connection, round(jobs * (1 - done)), urgent)
            asked.append(_ask(connection, chance))
        _wait_until(connection, 0, urgent)
        times = {job: (start, end) for job, start, end in connection.execute(_TIMES).fetchall()}
    return [answer for one in asked for answer in _answers(one, times)]


def enqueue(connection: psycopg.Connection[Any], jobs: Iterator[Job]) -> None:
    """All of them in one transaction."""
    enqueue_many(
        [
            NewIngestJob(
                task_name=one.task,
                queue=QUEUE,
                args={"s": one.s},
                limit_key=one.limit_key,
                priority=one.priority,
            )
            for one in jobs
        ],
        conn=connection,
    )


class _Urgent:
    """Jobs of a higher priority, which come in at a pace while the others are worked off."""

    def __init__(self, connection: psycopg.Connection[Any], per_s: float, chance: Random) -> None:
        self._connection, self._per_s, self._chance = connection, per_s, chance
        self._next = time.monotonic()

    def come_in(self) -> None:
        """Enqueue those of which it is time."""
        while self._per_s and time.monotonic() >= self._next:
            self._next += self._chance.expovariate(self._per_s)
            enqueue(self._connection, iter([Job("quick", self._chance.uniform(0.2, 0.6), priority=7)]))


def _wait_until(connection: psycopg.Connection[Any], still_open: int, urgent: _Urgent | None = None) -> None:
    give_up = time.monotonic() + _PATIENCE_S
    while int(said(connection, _OPEN)) > still_open:
        if time.monotonic() > give_up:
            raise SystemExit(f"the load was not worked off within {_PATIENCE_S:g} s")
        if urgent is not None:
            urgent.come_in()
        time.sleep(0.02)


def _ask(connection: psycopg.Connection[Any], chance: Random) -> _Asked:
    """Read all that an answer is made from; it is made when the load is done, to take no time from that."""
    with at_one_moment(connection):
        at = float(said(connection, "SELECT extract(epoch FROM transaction_timestamp())::float8"))
        now = read_queue(connection, QUEUE, stale_s=STALE_S)
        waiting = [job for (job,) in connection.execute(_WAITING).fetchall()]
        explaining = ExplainingRepository(connection)
        jobs = chance.sample(waiting, min(JOBS_ASKED, len(waiting)))
        found = {job: explaining.circumstances(INGEST, job) for job in jobs}
    return _Asked(at, now, waiting, {job: there for job, there in found.items() if there is not None})


def _answers(one: _Asked, times: dict[int, tuple[float, float]]) -> Iterator[Answer]:
    if not one.waiting:
        return
    drained_s = max(times[job][1] for job in one.waiting) - one.at
    yield Answer("drain", queue_forecast(one.now).now.span, drained_s)
    for job, there in one.jobs.items():
        found, (start, end) = forecast_of(one.now, there), times[job]
        yield Answer("start", found.begins, start - one.at)
        yield Answer("end", found.ends, end - one.at)
