"""Async jobs that wait: how many a second one worker brings to their ends, and what each takes of memory."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Final

import psutil

from bench import peers
from bench.harness.figures import Figure, interleaved, ratio, spread
from bench.harness.measuring import Bench
from bench.harness.servers import said
from bench.harness.workers import working
from bench.producing.crews import Crew
from bench.worker.wakes import LISTENERS, until

AT_ONCE: Final = 2_000
LASTS_S: Final = 1.0
FILL: Final = """
INSERT INTO ingest_jobs (task_name, queue, args)
SELECT 'asleep', 'fetch', jsonb_build_object('s', %(s)s::float8) FROM generate_series(1, %(count)s::integer)
"""
DONE: Final = "SELECT count(*) FROM ingest_jobs WHERE status = 'completed'"
PEER: Final = "pgqueuer"
_DONE_BY_PEER: Final = "SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'"
_WARM_UP: Final = 20
_PATIENCE_S: Final = 120.0


class Crowd:
    """A worker with many jobs at once that waits; `fill` enqueues in one transaction, `done` counts ends."""

    def __init__(self, pid: int, fill: Callable[[int], object], done: Callable[[], int]) -> None:
        self._process = psutil.Process(pid)
        self._fill = fill
        self._done = done
        # The first jobs bring what is loaded once.
        self.rate(_WARM_UP)
        self._idle = self._process.memory_info().rss
        self.kib_a_job: list[float] = []

    def rate(self, jobs: int) -> float:
        """Jobs a second, from the commit that enqueues them until the last end is stored."""
        before, most = self._done(), 0
        self._fill(jobs)
        began = time.monotonic()
        while self._done() < before + jobs:
            most = max(most, self._process.memory_info().rss)
            if time.monotonic() > began + _PATIENCE_S:
                raise SystemExit(f"{jobs:,} jobs did not end within {_PATIENCE_S:g} s")
            time.sleep(0.01)
        took = time.monotonic() - began
        if jobs > _WARM_UP:
            self.kib_a_job.append((most - self._idle) / min(jobs, AT_ONCE) / 1024)
        return jobs / took


def asleep(bench: Bench) -> Sequence[Figure]:
    """One worker that has 2,000 async jobs at once, each asleep for a second, beside a peer with as many."""
    amounts = (AT_ONCE // 10,) if bench.quick else (AT_ONCE, 5 * AT_ONCE)
    return [figure for jobs in amounts for figure in _beside_peer(bench, jobs, bench.much(7, 1))]


def _beside_peer(bench: Bench, jobs: int, rounds: int) -> Sequence[Figure]:
    with ExitStack() as stack:
        crowds = {"worker": stack.enter_context(_ours(bench))}
        if PEER in bench.peers:
            crowds[PEER] = stack.enter_context(_peers(bench))
        variants = {name: lambda crowd=crowd: crowd.rate(jobs) for name, crowd in crowds.items()}
        seen = interleaved(rounds, variants, bench.say)
        memory = {name: crowd.kib_a_job for name, crowd in crowds.items()}
    what = f"{jobs:,} jobs of {LASTS_S:g} s, {AT_ONCE:,} at once"
    return [
        _figure(bench, what, "jobs/s", seen, target=1.5),
        _figure(bench, what, "KiB a job", memory, target=0.5, at_most=True),
    ]


def _figure(
    bench: Bench, what: str, unit: str, seen: dict[str, list[float]], *, target: float, at_most: bool = False
) -> Figure:
    ours, base = seen["worker"], seen.get(PEER)
    if base is None:
        return Figure("asleep", what + spread(ours), median(ours), unit)
    peer = f"{PEER} {bench.peers[PEER]}, {AT_ONCE:,} tasks, batches of {AT_ONCE // 2:,}"
    return Figure(
        *("asleep", what + spread(ours), median(ours), unit),
        *(peer + spread(base), median(base), ratio(ours, base), target, at_most),
    )


@contextmanager
def _ours(bench: Bench) -> Iterator[Crowd]:
    with (
        bench.database() as (dsn, connection),
        working(dsn, "--concurrency", str(AT_ONCE), heard=subprocess.DEVNULL) as process,
    ):
        until(lambda: said(connection, LISTENERS))

        def fill(jobs: int) -> None:
            connection.execute(FILL, {"s": LASTS_S, "count": jobs})

        yield Crowd(process.pid, fill, lambda: int(said(connection, DONE)))


@contextmanager
def _peers(bench: Bench) -> Iterator[Crowd]:
    with bench.database() as (dsn, connection):
        peers.prepare(PEER, dsn)
        crew = Crew(peers.command("produce", PEER, dsn), peers.environment(), size=1)
        with crew as producer, peers.waiting(PEER, dsn, AT_ONCE, LASTS_S) as pid:
            yield Crowd(
                pid, lambda jobs: producer.moments("bulk", jobs), lambda: int(said(connection, _DONE_BY_PEER))
            )
