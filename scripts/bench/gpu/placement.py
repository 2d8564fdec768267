"""Workers with models that are dear to load: which of them gets which job, and what that comes to."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import psycopg

from bench.gpu.models import LOADS, PLACE, SCALE
from bench.harness.figures import Figure, interleaved, percentile, ratio
from bench.harness.measuring import Bench
from bench.harness.servers import said
from bench.harness.workers import supervising
from queue_workflows.repositories import NewNodeJob, NodeJobRepository, RunRepository
from queue_workflows.repositories.claims.claim_by_model import AffinityRepository, Preference
from queue_workflows.repositories.sql.low_water_marks import PRIORITIES

WORKERS: Final = 4
CLAIMS: Final = 50
# Jobs of a model whose turn in popularity is n come 1/n as often as those of the first.
POPULARITY: Final = tuple(1 / (number + 1) for number in range(len(LOADS)))
JOBS_S: Final = (1.0, 3.0)
# So many come a second, as the clock of the machines runs: more than can be done in the order of age.
RATE: Final = 40.0
MAX_WAIT_S: Final = 60.0
IDLE: Final = "SELECT count(*) FROM worker_heartbeats WHERE state = 'idle' AND queue = 'gpu'"
OPEN: Final = "SELECT count(*) FROM workflow_node_jobs WHERE status <> 'completed'"
SECONDS: Final = """
SELECT extract(epoch FROM max(finished_at) - min(created_at))::float8 FROM workflow_node_jobs
"""
WAITS: Final = """
SELECT extract(epoch FROM started_at - run_at)::float8 FROM workflow_node_jobs
WHERE required_model = coalesce(%s, required_model)
"""
_PATIENCE_S: Final = 1800.0


class Arrival(NamedTuple):
    """A job, and when it comes."""

    at_s: float
    model: int
    takes_s: float


class Outcome(NamedTuple):
    """What became of all of them: loads, seconds until the last was done, waits of all and of the rarest."""

    swaps: int
    makespan_s: float
    waits_s: list[float]
    rarest_s: list[float]


def affinity(bench: Bench) -> Sequence[Figure]:
    """Twenty models of Zipf's popularity over four workers, in both orders."""
    count = bench.much(600, 24)
    arrivals = _arrivals(count, RATE, seed=1)
    patience = {"QWF_AFFINITY_MAX_WAIT_S": str(MAX_WAIT_S / SCALE)}
    by_age = _worked_off(bench, arrivals, {"QWF_AFFINITY_MAX_WAIT_S": "0"})
    bench.say(f"in the order of age {by_age.swaps} loads, {by_age.makespan_s:.1f} s")
    warm = _worked_off(bench, arrivals, patience)
    bench.say(f"by what is loaded {warm.swaps} loads, {warm.makespan_s:.1f} s")
    what = f"{count:,} jobs of {len(LOADS)} models, {WORKERS} workers"

    def beside(name: str, ours: float, base: float, unit: str, target: float | None = None) -> Figure:
        at_most = target is not None
        return Figure(
            *("affinity", f"{what}: {name}", ours, unit, "by age"),
            *(base, ours / max(base, 1e-9), target, at_most),
        )

    return [
        beside("loads", warm.swaps, by_age.swaps, "", 0.35),
        beside("until all are done", warm.makespan_s, by_age.makespan_s, "s", 0.6),
        beside("median wait", median(warm.waits_s), median(by_age.waits_s), "s"),
        beside("99 % of the waits", percentile(warm.waits_s, 0.99), percentile(by_age.waits_s, 0.99), "s"),
        beside(
            "99 % of the waits for the rarest",
            *(percentile(warm.rarest_s, 0.99), percentile(by_age.rarest_s, 0.99), "s", 1.5),
        ),
    ]


def leaving(bench: Bench) -> Sequence[Figure]:
    """Four models, four workers, and time enough: whether it pays to leave a job to who has its model."""
    count = bench.much(80, 12)
    rng = random.Random(2)
    arrivals = [Arrival(number * 0.4, rng.randrange(WORKERS), 0.02) for number in range(count)]
    at_once = _worked_off(bench, arrivals, {"QWF_AFFINITY_YIELD_S": "0"})
    left = _worked_off(bench, arrivals, {})
    what = f"{count} jobs of {WORKERS} models, {WORKERS} workers that mostly idle"
    return [
        Figure(
            *("leaving", f"{what}: loads", left.swaps, "", "taken by whoever is first", at_once.swaps),
            *(left.swaps / max(at_once.swaps, 1), 1.0, True),
        ),
        Figure(
            *("leaving", f"{what}: until all are done", left.makespan_s, "s", "taken by whoever is first"),
            *(at_once.makespan_s, left.makespan_s / at_once.makespan_s),
        ),
    ]


def flat(bench: Bench) -> Sequence[Figure]:
    """The claim alone, where as many rows as it looks at wait for each of 500 models, and where many do."""
    few, many, rounds = 10_000, bench.much(1_000_000, 20_000), bench.much(11, 1)
    with bench.database() as (_, some), bench.database() as (_, full):
        for connection, count in ((some, few), (full, many)):
            _store(connection, count)
        seen = interleaved(
            rounds, {"few": lambda: _claims_ms(some), "many": lambda: _claims_ms(full)}, bench.say
        )
    return [
        Figure(
            *("flat", f"a claim over {many:,} of 500 models, {rounds} rounds", median(seen["many"]), "ms"),
            *(f"over {few:,}", median(seen["few"]), ratio(seen["many"], seen["few"]), 1.5, True),
        )
    ]


def _arrivals(count: int, rate: float, *, seed: int) -> list[Arrival]:
    """The models of the jobs, equal in each round; each model at least once."""
    rng = random.Random(seed)
    models = [*range(len(LOADS)), *rng.choices(range(len(LOADS)), POPULARITY, k=count - len(LOADS))]
    rng.shuffle(models)
    times = accumulate(rng.expovariate(rate) for _ in models)
    return [
        Arrival(at_s, model, rng.uniform(*JOBS_S) / SCALE) for at_s, model in zip(times, models, strict=True)
    ]


def _worked_off(bench: Bench, arrivals: Sequence[Arrival], settings: Mapping[str, str]) -> Outcome:
    """All of them through shipped workers that a shipped supervisor keeps."""
    with bench.database() as (dsn, connection), TemporaryDirectory() as place:
        loads = Path(place) / "loads"
        loads.touch()
        settings = {"QWF_APP": "bench.gpu.models", PLACE: str(loads), **settings}
        with supervising(dsn, "--worker", f"gpu:{WORKERS}", settings=settings):
            _until(lambda: said(connection, IDLE) == WORKERS)
            _send(connection, arrivals)
            _until(lambda: said(connection, OPEN) == 0)
        waits, rarest = (
            [row[0] for row in connection.execute(WAITS, [model])] for model in (None, f"m{len(LOADS) - 1}")
        )
        return Outcome(
            len(loads.read_text().splitlines()), float(said(connection, SECONDS)), waits, rarest or waits
        )


def _send(connection: psycopg.Connection[Any], arrivals: Sequence[Arrival]) -> None:
    """Each at its time."""
    run = RunRepository(connection).insert("painting", spec={}, spec_hash="h").id
    repository, began = NodeJobRepository(connection), time.monotonic()
    for number, (at_s, model, takes_s) in enumerate(arrivals):
        time.sleep(max(began + at_s - time.monotonic(), 0))
        repository.insert_many(
            [
                NewNodeJob(
                    run_id=run,
                    node_id=f"n{number}",
                    node_module="paint",
                    queue="gpu",
                    required_model=f"m{model}",
                    inputs={"s": takes_s},
                )
            ]
        )


def _store(connection: psycopg.Connection[Any], count: int) -> None:
    run = RunRepository(connection).insert("painting", spec={}, spec_hash="h").id
    connection.execute("SET session_replication_role = replica")
    connection.execute(
        "INSERT INTO workflow_node_jobs (run_id, node_id, map_index, queue, required_model)"
        " SELECT %s, 'n', n, 'gpu', 'm' || (n %% 500) FROM generate_series(1, %s) AS n",
        [run, count],
    )
    connection.execute("RESET session_replication_role")
    connection.execute("VACUUM ANALYZE workflow_node_jobs")


def _claims_ms(connection: psycopg.Connection[Any]) -> float:
    """The median of many, each by a worker that has other models loaded."""
    connection.execute("SET plan_cache_mode = force_generic_plan")
    repository, took = AffinityRepository(connection), []
    for number in range(CLAIMS):
        preference = Preference(
            warm=(f"m{number % 500}", f"m{(number + 7) % 500}"),
            oldest=() if number % 10 else PRIORITIES,
            yield_s=0.5,
        )
        began = time.perf_counter()
        repository.ask("gpu", preference, worker_id="w", lease_s=300.0)()
        took.append((time.perf_counter() - began) * 1000)
    return median(took[CLAIMS // 10 :])


def _until(look: Any) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not look():
        if time.monotonic() > deadline:
            raise SystemExit("the workers did not get through")
        time.sleep(0.05)
