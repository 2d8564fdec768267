"""How soon an idle worker begins what was just committed, with eight threads and one job at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Final

from bench.contest.contenders import OURS
from bench.contest.drains import beside
from bench.harness.figures import Figure, percentile
from bench.harness.measuring import Bench
from bench.harness.servers import said
from bench.harness.workers import ONE_AT_A_TIME, working
from bench.worker.starting import EVERY_S, peer_sampler, sample_ours
from bench.worker.wakes import LISTENERS, until

# Those that are told of a job; the others look now and then.
WOKEN: Final = ("graphile", "pgqueuer", "procrastinate", "chancy", "oban")
ONE: Final = "ours, one at a time"
_IN_A_ROW: Final = 20


def start(bench: Bench) -> Sequence[Figure]:
    """From the return of a commit to the first line of the body; a job every 50 ms, some in a row each."""
    rounds = bench.amounts["rounds"]
    with ExitStack() as stack:
        samplers: dict[str, Callable[[], float]] = {}
        for name, options in ((OURS, ()), (ONE, ONE_AT_A_TIME)):
            dsn, connection = stack.enter_context(bench.database())
            stack.enter_context(working(dsn, *options))
            until(partial(said, connection, LISTENERS))
            samplers[name] = partial(sample_ours, connection)
        for name in WOKEN:
            if name in bench.peers:
                samplers[name] = peer_sampler(bench, stack, name)
        medians: dict[str, list[float]] = {name: [] for name in samplers}
        lasts: dict[str, list[float]] = {name: [] for name in samplers}
        for turn in range(rounds):
            for name, sampled in samplers.items():
                seen = [_paced(sampled) for _ in range(bench.much(5, 1) * _IN_A_ROW)]
                medians[name].append(median(seen))
                lasts[name].append(percentile(seen, 0.99))
            bench.say(f"{turn + 1} of {rounds} rounds: " + _said(medians))
    return [*_figures(bench, "median", medians), *_figures(bench, "99 %", lasts)]


def _paced(sampled: Callable[[], float]) -> float:
    began = time.monotonic()
    seen = sampled()
    time.sleep(max(0.0, began + EVERY_S - time.monotonic()))
    return seen


def _said(seen: dict[str, list[float]]) -> str:
    return ", ".join(f"{name} {values[-1]:.2f}" for name, values in seen.items())


def _figures(bench: Bench, share: str, seen: dict[str, list[float]]) -> list[Figure]:
    """Both of ours beside each peer; the aim is to be no slower than the best of them known."""
    against = {"median": "graphile", "99 %": "pgqueuer"}[share]
    figures = []
    for ours, words in ((OURS, "eight threads"), (ONE, "one at a time")):
        those = {OURS: seen[ours]} | {name: values for name, values in seen.items() if name in bench.peers}
        versions = {f"{name} {bench.peers[name]}": those.pop(name) for name in list(those) if name != OURS}
        figures += [
            Figure(
                **{
                    **vars(one),
                    "target": 1.0 if one.against.startswith(against) else None,
                    "at_most": True,
                }
            )
            for one in beside("start", f"{words}, {share}", "ms", those | versions, {})
        ]
    return figures
