"""Whether a worker's memory stays where it was, however many jobs it did."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Final

import psutil

from bench.harness.figures import Figure
from bench.harness.measuring import Bench
from bench.harness.servers import said
from bench.harness.workers import ONE_AT_A_TIME, working
from bench.worker.rates import fill, settle

LEFT: Final = "SELECT count(*) FROM ingest_jobs WHERE status = 'queued'"


def memory(bench: Bench) -> Sequence[Figure]:
    """The resident memory of one worker after the first tenth of the jobs, and in the last one."""
    jobs = bench.much(200_000, 2_000)
    samples: list[tuple[float, int]] = []
    with bench.database() as (dsn, connection):
        fill(connection, jobs)
        settle(connection)
        with working(dsn, *ONE_AT_A_TIME, "--drain") as process:
            worker = psutil.Process(process.pid)
            while process.poll() is None and (left := said(connection, LEFT)):
                samples.append((1 - left / jobs, worker.memory_info().rss))
                if len(samples) % 100 == 0:
                    bench.say(f"{jobs - left:,} of {jobs:,} jobs")
                time.sleep(bench.much(500, 50) / 1000)
            if left := said(connection, LEFT):
                _, heard = process.communicate()
                raise SystemExit(
                    f"the worker ended by {process.returncode} before {left:,} jobs: {heard[-2000:]}"
                )
    early = median(rss for done, rss in samples if 0.1 <= done <= 0.3) / 2**20
    late = median(rss for done, rss in samples if done >= 0.8) / 2**20
    return [
        Figure(
            *("memory", f"after {jobs:,} jobs", late, "MiB", "after a tenth of them", early),
            *(late / early, 1.05, True),
        )
    ]
