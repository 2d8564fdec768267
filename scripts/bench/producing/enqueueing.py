"""What enqueueing costs a producer: job by job, and many at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import psycopg

from bench.harness import pgbench
from bench.harness.figures import Figure, interleaved, ratio, spread
from bench.harness.measuring import Bench
from bench.harness.servers import said
from bench.harness.workers import environment
from bench.producing.producers import library, peer

COPY: Final = "COPY ingest_jobs (task_name, queue, args) FROM STDIN"
COPY_KEYED: Final = "COPY ingest_jobs (task_name, queue, args, dedupe_key) FROM STDIN"
# An import commits batch by batch; between the first and the last one lie all but the last one's rows.
IMPORTED: Final = """
WITH last AS (SELECT max(created_at) AS at, min(created_at) AS first FROM ingest_jobs)
SELECT (count(*) FILTER (WHERE created_at < at)) / EXTRACT(epoch FROM at - first)::float8
FROM ingest_jobs, last GROUP BY at, first
"""


def single(bench: Bench) -> Sequence[Figure]:
    """Each job in a transaction of its own: one producer, and ten at once; three in a quick look."""
    return [*_producers(bench, 1), *_producers(bench, bench.much(10, 3))]


def _producers(bench: Bench, size: int) -> Sequence[Figure]:
    each, rounds = bench.much(4_000, 200) // size, bench.much(11, 1)
    with bench.database() as (dsn, _), ExitStack() as stack:
        ours = stack.enter_context(library(dsn, size))
        others = {name: stack.enter_context(peer(bench, name, size)) for name in bench.peers}

        def bare() -> float:
            script = pgbench.ENQUEUE
            return pgbench.tps(bench.server.bindir, dsn, script, transactions=each, clients=size)

        variants: dict[str, Callable[[], float]] = {
            "library": lambda: ours.rate("autocommit", each),
            "asyncpg": lambda: ours.rate("asyncpg", each),
            "pgbench": bare,
            **{name: partial(crew.rate, "single", each) for name, crew in others.items()},
        }
        seen = interleaved(rounds, variants, bench.say)
    what = f"{size} at once" if size > 1 else "one producer, a commit each"
    return [
        *_beside(bench, "enqueue", what, seen, base="library", bare=("pgbench", "pgbench INSERT", 0.7)),
        *_by_asyncpg(bench, "enqueue", what, seen),
    ]


def bulk(bench: Bench) -> Sequence[Figure]:
    """Many jobs in one transaction, with keys and without, and from a file."""
    jobs, rounds = bench.much(100_000, 2_000), bench.much(7, 1)
    with bench.database() as (dsn, connection), ExitStack() as stack:
        ours = stack.enter_context(library(dsn))
        others = {name: stack.enter_context(peer(bench, name)) for name in bench.peers if name != "dbos"}
        file = stack.enter_context(tempfile.NamedTemporaryFile("w", suffix=".jsonl"))
        for number in range(4 * jobs):
            file.write(json.dumps({"task_name": "noop", "queue": "fetch", "args": {"n": number}}) + "\n")
        file.flush()

        def emptied(measured: Callable[[], float]) -> float:
            connection.execute("TRUNCATE ingest_jobs")
            return measured()

        variants: dict[str, Callable[[], float]] = {
            "library": lambda: ours.rate("bulk", jobs),
            "asyncpg": lambda: ours.rate("asyncpg-bulk", jobs),
            "keyed": lambda: ours.rate("keyed", jobs),
            "import": lambda: _imported(dsn, connection, Path(file.name)),
            "COPY": lambda: copied(connection, COPY, jobs),
            "COPY, keyed": lambda: copied(connection, COPY_KEYED, jobs),
        }
        variants = {name: partial(emptied, measured) for name, measured in variants.items()}
        slow = {name: partial(crew.rate, "bulk", jobs // 10) for name, crew in others.items()}
        seen = interleaved(rounds, variants | slow, bench.say)
    return [
        *_beside(bench, "bulk", f"enqueue_many, {jobs:,}", seen, base="library", bare=("COPY", "COPY", 0.5)),
        *_by_asyncpg(bench, "bulk", "enqueue_many", seen),
        _figure("bulk", "enqueue_many with keys", seen, "keyed", ("COPY, keyed", "COPY, keyed", 0.5)),
        _figure("bulk", "qwf queue import", seen, "import", ("COPY", "COPY", 0.5)),
    ]


def _by_asyncpg(bench: Bench, measure: str, what: str, seen: dict[str, list[float]]) -> list[Figure]:
    """The awaited verb through asyncpg, beside the verb through psycopg and beside pgqueuer."""
    against: list[tuple[str, str, float | None]] = [("library", "psycopg", None)]
    if "pgqueuer" in seen:
        against.append(("pgqueuer", f"pgqueuer {bench.peers['pgqueuer']}", None))
    return [_figure(measure, f"{what}, asyncpg", seen, "asyncpg", one) for one in against]


def _beside(
    bench: Bench,
    measure: str,
    what: str,
    seen: dict[str, list[float]],
    *,
    base: str,
    bare: tuple[str, str, float | None],
) -> list[Figure]:
    names = [name for name in bench.peers if name in seen]
    versions = [(name, f"{name} {bench.peers[name]}", None) for name in names]
    return [_figure(measure, what, seen, base, against) for against in (bare, *versions)]


def _figure(
    measure: str, what: str, seen: dict[str, list[float]], ours: str, against: tuple[str, str, float | None]
) -> Figure:
    name, words, target = against
    return Figure(
        *(measure, what + spread(seen[ours]), median(seen[ours]), "jobs/s", words + spread(seen[name])),
        *(median(seen[name]), ratio(seen[ours], seen[name]), target),
    )


def copied(connection: psycopg.Connection[Any], statement: str, jobs: int) -> float:
    """The text is made beforehand: what is measured is the server."""
    keyed = statement == COPY_KEYED
    text = "".join(f'noop\tfetch\t{{"n":{n}}}' + (f"\tkey-{n}\n" if keyed else "\n") for n in range(jobs))
    began = time.monotonic()
    with connection.cursor().copy(statement) as copy:
        copy.write(text)
    return jobs / (time.monotonic() - began)


def _imported(dsn: str, connection: psycopg.Connection[Any], file: Path) -> float:
    command = [sys.executable, "-m", "queue_workflows", "queue", "import", str(file)]
    ran = subprocess.run(
        command, env=environment(dsn), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
    )
    if ran.returncode:
        raise SystemExit(f"the import failed: {os.fsdecode(ran.stderr)[-2000:]}")
    return float(said(connection, IMPORTED))
