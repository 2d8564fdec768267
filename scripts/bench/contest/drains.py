"""How quickly each drains a long queue of no-ops, with one process and with two, and in how much memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Final

import psutil

from bench.contest.contenders import OURS, Contender, burst_s, field
from bench.harness.figures import Figure, interleaved, ratio, spread
from bench.harness.measuring import Bench

# What a figure is held against: the ratio that is wanted beside such a peer.
Aims = Mapping[str, float]
# With 200,000 jobs the others would take minutes each round.
_QUICK_ONES: Final = ("graphile", "pgqueuer")
_MIB: Final = 1024 * 1024


def drain(bench: Bench) -> Sequence[Figure]:
    """20,000 jobs, one process and two; and the memory of a process right after them."""
    with ExitStack() as stack:
        taking_part = field(bench, stack, without=("dbos", "absurd"))
        memory: dict[str, list[float]] = {name: [] for name in taking_part}
        jobs = bench.much(20_000, 300)
        one = _rates(bench, taking_part, jobs, 1, memory=memory)
        two = _rates(bench, taking_part, jobs, 2)
    return [
        *beside(
            "drain",
            f"{jobs:,}, one process",
            "jobs/s",
            one,
            {"graphile": 1.2, "pgqueuer": 2.5},
            taking_part=taking_part,
        ),
        *beside(
            "drain", f"{jobs:,}, two processes", "jobs/s", two, {"graphile": 1.2}, taking_part=taking_part
        ),
        _two_by_one("drain", jobs, one, two),
        *beside("drain", "memory of a worker", "MiB", memory, {}, taking_part=taking_part),
    ]


def long_drain(bench: Bench) -> Sequence[Figure]:
    """200,000 jobs beside the quickest."""
    with ExitStack() as stack:
        slow = [name for name in bench.peers if name not in _QUICK_ONES]
        taking_part, jobs = field(bench, stack, without=slow), bench.much(200_000, 1_000)
        one = _rates(bench, taking_part, jobs, 1)
        two = _rates(bench, taking_part, jobs, 2)
    return [
        *beside(
            "long-drain", f"{jobs:,}, one process", "jobs/s", one, {"graphile": 1.3}, taking_part=taking_part
        ),
        *beside(
            "long-drain",
            f"{jobs:,}, two processes",
            "jobs/s",
            two,
            {"graphile": 1.2},
            taking_part=taking_part,
        ),
        _two_by_one("long-drain", jobs, one, two),
    ]


def _rates(
    bench: Bench,
    taking_part: Mapping[str, Contender],
    jobs: int,
    processes: int,
    *,
    memory: Mapping[str, list[float]] | None = None,
) -> dict[str, list[float]]:
    def rate(name: str, one: Contender) -> float:
        with one.working(processes) as workers:
            # Plans and caches are there afterwards.
            burst_s(one, workers, min(jobs, 500), bench.much(20, 10))
            took, done = burst_s(one, workers, jobs, bench.much(60, 10))
            if memory:
                memory[name].append(psutil.Process(workers[0].pid).memory_info().rss / _MIB)
        return done / took

    variants: dict[str, Callable[[], float]] = {
        name: partial(rate, name, one) for name, one in taking_part.items()
    }
    return interleaved(bench.amounts["rounds"], variants, bench.say)


def beside(
    measure: str,
    what: str,
    unit: str,
    seen: Mapping[str, Sequence[float]],
    aims: Aims,
    *,
    taking_part: Mapping[str, Contender] | None = None,
) -> list[Figure]:
    """Ours beside each of the others; by itself where there is nobody else."""
    ours = (measure, what + spread(seen[OURS]), median(seen[OURS]), unit)
    others = [name for name in seen if name != OURS]
    if not others:
        return [Figure(*ours)]
    return [
        Figure(
            *ours,
            (taking_part[name].words if taking_part else name) + spread(seen[name]),
            median(seen[name]),
            ratio(seen[OURS], seen[name]),
            aims.get(name),
        )
        for name in others
    ]


def _two_by_one(
    measure: str, jobs: int, one: Mapping[str, Sequence[float]], two: Mapping[str, Sequence[float]]
) -> Figure:
    return Figure(
        *(measure, f"{jobs:,}, two of our processes{spread(two[OURS])}", median(two[OURS]), "jobs/s"),
        *(f"one{spread(one[OURS])}", median(one[OURS]), ratio(two[OURS], one[OURS]), 1.0),
    )
