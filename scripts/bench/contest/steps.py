"""Workflows of one step that keeps its result: ours beside DBOS and Absurd."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from subprocess import DEVNULL
from typing import Any, Final

import psycopg

from bench import peers
from bench.contest.contenders import OURS, Peer
from bench.contest.drains import beside
from bench.harness.figures import Figure, interleaved
from bench.harness.measuring import Bench
from bench.harness.servers import said
from bench.harness.workers import orchestrating, working
from bench.producing.crews import Crew
from bench.worker.wakes import until
from queue_workflows import start_run
from queue_workflows.workflow.document.load import load_document

TAKING_PART: Final = ("dbos", "absurd")
ENDED: Final = "SELECT count(*) FROM workflow_runs WHERE finished_at IS NOT NULL"


def steps(bench: Bench) -> Sequence[Figure]:
    """So many are started by one producer while a worker (ours: and an orchestrator) works them off.

    From the first start to the last end: what it takes to start one is a part of it.
    """
    jobs = bench.much(1_000, 20)
    with ExitStack() as stack:
        variants: dict[str, Callable[[], float]] = {OURS: _ours(bench, stack, jobs)}
        for name in TAKING_PART:
            if name in bench.peers:
                variants[name] = _theirs(bench, stack, name, jobs)
        seen = interleaved(bench.amounts["rounds"], variants, bench.say)
    return beside("steps", f"{jobs:,} workflows of one step", "/s", seen, {})


def _ours(bench: Bench, stack: ExitStack, jobs: int) -> Callable[[], float]:
    dsn, connection = stack.enter_context(bench.database())
    document = load_document({"name": "step", "nodes": [{"id": "once", "module": "noop"}]})

    def rate() -> float:
        with orchestrating(dsn), working(dsn, queue="cpu", heard=DEVNULL):
            start_run(document, conn=connection)
            until(lambda: said(connection, ENDED))
            connection.execute("TRUNCATE workflow_runs CASCADE")
            began = time.monotonic()
            for _ in range(jobs):
                start_run(document, conn=connection)
            return _ended(connection, ENDED, jobs, began)

    return rate


def _theirs(bench: Bench, stack: ExitStack, name: str, jobs: int) -> Callable[[], float]:
    one = Peer(name, bench.peers[name], *stack.enter_context(bench.database()))
    command = partial(peers.command, "produce", name, one.dsn)
    crew = stack.enter_context(Crew(command(), peers.environment(), size=1))

    def rate() -> float:
        one.empty()
        with one.working(1):
            began = time.monotonic()
            crew.rate("step", jobs)
            return _ended(one.connection, one.done_query, jobs, began)

    return rate


def _ended(connection: psycopg.Connection[Any], query: str, jobs: int, began: float) -> float:
    until(lambda: said(connection, query) >= jobs)
    return jobs / (time.monotonic() - began)
