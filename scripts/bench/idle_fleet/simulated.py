"""What idle workers with an agent on each host send, sent by few processes: the server cannot tell.

A host has four connections: of its agent, which each second asks for all and writes the heartbeats of a
fifth of them; of its supervisor, which reads these; of the guardian of the worker that is first in line; and
of that worker's claims, at rest.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import psycopg

from bench.harness.figures import Figure
from bench.harness.measuring import Bench
from bench.idle_fleet.cost import cost
from queue_workflows.config import DsnChoice
from queue_workflows.db.connections.engine import Database
from queue_workflows.engine.upkeep.tick import look_with
from queue_workflows.repositories import HeartbeatRepository, IngestJobRepository
from queue_workflows.repositories.claims.by_host_lock import HOST_LOCK
from queue_workflows.repositories.sql.connection import Questions
from queue_workflows.roles.agent.rounds import Place, Rounds
from queue_workflows.settings import Settings, load_settings

SIMULATED: Final = {"simulated": (1_000, 100, "idle workers of which the statements are sent")}
EACH: Final = 25
_BEAT_S: Final = 5
# Of so many workers each looks this seldom for what to sweep.
_SWEEPS_EVERY: Final = 5
_THREADS: Final = 8
_QUEUE: Final = "fetch"


@dataclass
class _Host:
    label: str
    agent: psycopg.Connection[Any]
    supervisor: psycopg.Connection[Any]
    guardian: psycopg.Connection[Any]
    claims: psycopg.Connection[Any]

    def __post_init__(self) -> None:
        self.rounds, self.questions = Rounds(), Questions(self.guardian)
        self.workers = [f"{self.label}:{_QUEUE}:{number}" for number in range(EACH)]
        self.turn = 0

    def second(self, settings: Settings) -> None:
        """What the host asks in one second."""
        self.turn += 1
        for number, worker_id in enumerate(self.workers[1:]):
            if number % _BEAT_S == self.turn % _BEAT_S:
                self.rounds.beat(worker_id, self._said(number))
        self.rounds.ask(self.agent, [Place(self.label, _QUEUE)])
        jobs = IngestJobRepository(self.guardian)
        if self.turn % _BEAT_S == 0:
            beat = HeartbeatRepository(self.guardian).beating(self.workers[0], **self._said(0))
            self.questions.add(beat)
        self.questions.add(jobs.watching([], host_label=self.label, queue=_QUEUE))
        if self.turn % _SWEEPS_EVERY == 0:
            look_with(self.questions, settings)
        self.questions.add(jobs.finding(_QUEUE, holds=(HOST_LOCK, "unknown_task")))
        self.questions.ask()
        HeartbeatRepository(self.supervisor).signs(self.workers)

    def _said(self, number: int) -> Any:
        return {
            "host_label": self.label,
            "queue": _QUEUE,
            "pid": 1000 + number,
            "state": "idle",
            "versions": {"queue_workflows": "0.1.0", "python": "3.11.2", "code": "0" * 32},
            "load": {"rss_mb": 55, "threads": 3},
        }


def simulated(bench: Bench) -> Sequence[Figure]:
    """What the server is at for so many workers, 25 a host."""
    count = bench.amounts["simulated"]
    hosts, seconds = max(1, count // EACH), bench.much(60, 15)
    name = f"{hosts * EACH} simulated workers on {hosts} hosts"
    settings = load_settings()
    with bench.database() as (dsn, connection), ExitStack() as stack:
        database = stack.enter_context(
            closing(Database(DsnChoice(dsn, "bench"), role="bench", settings=settings))
        )

        def opened() -> psycopg.Connection[Any]:
            return stack.enter_context(closing(database.connect(autocommit=True, hot=True)))

        there = [_Host(f"host-{number}", *(opened() for _ in range(4))) for number in range(hosts)]
        bench.say(f"{4 * hosts} connections are open")
        with ThreadPoolExecutor(_THREADS) as threads:
            until = time.monotonic() + seconds + 15
            running = [
                threads.submit(_play, there[number::_THREADS], settings, until) for number in range(_THREADS)
            ]
            time.sleep(8)
            figures = cost(connection, name, seconds)
            late = max(one.result() for one in running)
    return [*figures, Figure("fleet", f"{name}: the longest second", late, "s")]


def _play(hosts: Sequence[_Host], settings: Settings, until: float) -> float:
    """The hosts' seconds, spread over each second; how long the longest took."""
    random, longest = Random(), 0.0
    due = {host.label: time.monotonic() + random.random() for host in hosts}
    while (now := time.monotonic()) < until:
        for host in hosts:
            if due[host.label] <= now:
                host.second(settings)
                longest = max(longest, time.monotonic() - due[host.label])
                due[host.label] += 1
        time.sleep(0.005)
    return longest
