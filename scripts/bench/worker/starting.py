"""How soon an idle worker begins a job, when one comes every 50 ms."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import IO, Any, Final

import psycopg

from bench import peers
from bench.harness.figures import Figure, percentile
from bench.harness.measuring import Bench
from bench.harness.servers import said
from bench.harness.workers import working
from bench.producing.crews import Crew
from bench.worker.draining import CREW
from bench.worker.wakes import ENQUEUE, LISTENERS, PATIENCE_S, result, until, value

EVERY_S: Final = 0.05
_IN_A_ROW: Final = 20


def start(bench: Bench) -> Sequence[Figure]:
    """From the return of a commit to the first line of the body; each in turn has some jobs in a row."""
    turns = bench.much(20, 1)
    with bench.database() as (dsn, connection), ExitStack() as stack:
        stack.enter_context(working(dsn, *CREW))
        until(lambda: said(connection, LISTENERS))
        samplers: dict[str, Callable[[], float]] = {"worker": lambda: sample_ours(connection)}
        for name in peers.WOKEN:
            if name in bench.peers:
                samplers[name] = peer_sampler(bench, stack, name)
        seen: dict[str, list[float]] = {name: [] for name in samplers}
        for turn in range(turns):
            for name, sampled in samplers.items():
                for _ in range(_IN_A_ROW):
                    began = time.monotonic()
                    seen[name].append(sampled())
                    time.sleep(max(0.0, began + EVERY_S - time.monotonic()))
            bench.say(f"{(turn + 1) * _IN_A_ROW} of {turns * _IN_A_ROW} jobs each")
    return [
        figure
        for words, share, bound in (("median", 0.5, 1.2), ("99 %", 0.99, 3.0))
        for figure in _figures(bench, seen, words, share, bound)
    ]


def _figures(
    bench: Bench, seen: dict[str, list[float]], words: str, share: float, bound: float
) -> list[Figure]:
    ours = percentile(seen["worker"], share)
    what = f"commit to body, a job every 50 ms, {words}"
    others = {name: percentile(samples, share) for name, samples in seen.items() if name != "worker"}
    return [
        Figure("start", what, ours, "ms", "bound", bound, ours / bound, 1.0, at_most=True),
        *(
            Figure("start", what, ours, "ms", f"{name} {bench.peers[name]}", theirs, ours / theirs)
            for name, theirs in others.items()
        ),
    ]


def sample_ours(connection: psycopg.Connection[Any]) -> float:
    """Milliseconds from a commit to the body."""
    job = value(connection, ENQUEUE)
    committed = time.monotonic_ns()
    return max(result(connection, job) - committed, 1) / 1e6


def peer_sampler(bench: Bench, stack: ExitStack, name: str) -> Callable[[], float]:
    """Milliseconds from a peer's commit to the body, with a worker and a producer that stay."""
    dsn = bench.server.database()
    peers.prepare(name, dsn)
    crew = stack.enter_context(Crew(peers.command("produce", name, dsn), peers.environment(), size=1))
    told = stack.enter_context(peers.telling(name, dsn))
    # The job that its producer began with; the worker has started once that has run.
    _line(told)

    def sampled() -> float:
        _, committed = crew.moments("single", 1)
        return max(int(_line(told)) - committed, 1) / 1e6

    return sampled


def _line(told: IO[str]) -> str:
    if not select.select([told], [], [], PATIENCE_S)[0]:
        raise SystemExit("a peer's worker did not wake up")
    return told.readline()
