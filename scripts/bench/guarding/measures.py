"""What one side measures, in a process of its own that has its tree's package: what so many jobs cost.

Only public names of the package are used, so that an older commit can be measured too. A measure opens what
it needs and gives the function of one round. Its workers stay from round to round and wait on an empty queue,
which then is filled in one transaction: their start does not count.
"""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

import psutil
import psycopg

from bench.harness.workers import ONE_AT_A_TIME, orchestrating, working
from queue_workflows import enqueue_ingest_job, enqueue_many, start_run
from queue_workflows.repositories import NewIngestJob
from queue_workflows.workflow.document.load import load_document

FILL: Final = """
INSERT INTO ingest_jobs (task_name, queue, args)
SELECT 'noop', 'fetch', '{"n": 1}' FROM generate_series(1, %s)
"""
OPEN: Final = "SELECT EXISTS (SELECT FROM ingest_jobs WHERE status IN ('queued', 'running'))"
TOOK: Final = """
SELECT EXTRACT(epoch FROM max(finished_at) - min(started_at))::float8 FROM ingest_jobs
WHERE status = 'completed'
"""
CLOCK: Final = "INSERT INTO ingest_jobs (task_name, queue) VALUES ('clock', 'fetch') RETURNING id"
BEGAN: Final = "SELECT result FROM ingest_jobs WHERE id = %s AND status = 'completed'"
OPEN_RUNS: Final = "SELECT EXISTS (SELECT FROM workflow_runs WHERE finished_at IS NULL)"
BACKENDS: Final = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
PATIENCE_S: Final = 300.0


@dataclass(frozen=True)
class Cost:
    """Of a round: seconds by the clock, and of processors (ours and the server's), for so many jobs."""

    clock_s: float
    processor_s: float
    jobs: int


Round = Callable[[], Cost]


@dataclass(frozen=True)
class Side:
    """One tree's database, and what is closed when a measure is over."""

    dsn: str
    connection: psycopg.Connection[Any]
    quick: bool
    stack: ExitStack

    def much(self, full: int, quick: int) -> int:
        """How much to do."""
        return quick if self.quick else full

    def value(self, query: str, *parameters: Any) -> Any:
        """The first value of a query's row, or None."""
        row = self.connection.execute(query.encode(), parameters).fetchone()
        return row[0] if row else None

    def until(self, looked: Callable[[], Any]) -> Any:
        """What it finds, as soon as it finds something."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := looked()):
            if time.monotonic() > deadline:
                raise SystemExit(f"nothing happened for {PATIENCE_S:.0f} s")
            time.sleep(0.01)
        return found

    def empty(self) -> None:
        """Leave no job and no run of the round before."""
        self.connection.execute("TRUNCATE ingest_jobs, workflow_runs CASCADE")

    def worker(self, *options: str, queue: str = "fetch") -> subprocess.Popen[str]:
        """A worker that stays until the measure is over."""
        return self.stack.enter_context(working(self.dsn, *options, queue=queue, heard=subprocess.DEVNULL))

    def spent_s(self, processes: Sequence[subprocess.Popen[str]] = ()) -> float:
        """Seconds of processors so far: of this process, of those, and of what serves this database here."""
        pids = [one for (one,) in self.connection.execute(BACKENDS)]
        ours = [process.pid for process in processes]
        return sum(map(_spent_s, ours)) + sum(_spent_s(pid, "postgres") for pid in pids) + time.process_time()


def _spent_s(pid: int, name: str = "") -> float:
    """Nothing where there is no such process: the server may be on another machine."""
    try:
        process = psutil.Process(pid)
        times = process.cpu_times() if name in process.name() else None
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system) if times else 0.0


def enqueue(side: Side) -> Round:
    """Jobs that are enqueued in a transaction each."""
    jobs = side.much(2_000, 50)

    def act() -> None:
        for number in range(jobs):
            enqueue_ingest_job("noop", queue="fetch", args={"n": number}, conn=side.connection)

    return partial(_enqueued, side, act, jobs)


def bulk(side: Side) -> Round:
    """Jobs that are enqueued in one call."""
    jobs = side.much(20_000, 500)
    new = [NewIngestJob(task_name="noop", queue="fetch", args={"n": number}) for number in range(jobs)]
    return partial(_enqueued, side, lambda: enqueue_many(new, conn=side.connection), jobs)


def drain(side: Side) -> Round:
    """One worker of eight on a queue of no-ops."""
    return partial(_drained, side, side.much(20_000, 500), [side.worker()])


def drain_one(side: Side) -> Round:
    """One worker that does one job at a time."""
    return partial(_drained, side, side.much(2_000, 50), [side.worker(*ONE_AT_A_TIME)])


def drain_two(side: Side) -> Round:
    """Two workers of eight."""
    return partial(_drained, side, side.much(20_000, 500), [side.worker(), side.worker()])


def drain_eight(side: Side) -> Round:
    """Eight workers of eight, more than most machines that measure have cores."""
    return partial(_drained, side, side.much(20_000, 500), [side.worker() for _ in range(8)])


def wake(side: Side) -> Round:
    """From a commit to the first line of the body, an idle worker; by the clock it is the median."""
    samples, worker = side.much(40, 3), side.worker()

    def act() -> Cost:
        side.empty()
        before, seen = side.spent_s([worker]), []
        for _ in range(samples):
            time.sleep(0.03)
            job = side.value(CLOCK)
            committed = time.monotonic_ns()
            time.sleep(0.01)
            seen.append(max(side.until(partial(side.value, BEGAN, job)) - committed, 1) / 1e9)
        return Cost(statistics.median(seen) * samples, side.spent_s([worker]) - before, samples)

    return act


def nodes(side: Side) -> Round:
    """A run of nodes that all are open at once, with a worker and an orchestrator."""
    count = side.much(200, 10)
    drawn = [{"id": f"n{number}", "module": "noop"} for number in range(count)]
    document = load_document({"name": "nodes", "nodes": drawn})
    orchestrator = side.stack.enter_context(orchestrating(side.dsn))
    processes = [orchestrator, side.worker(queue="cpu")]

    def act() -> Cost:
        side.empty()
        before, began = side.spent_s(processes), time.monotonic()
        start_run(document, conn=side.connection)
        side.until(lambda: not side.value(OPEN_RUNS))
        return Cost(time.monotonic() - began, side.spent_s(processes) - before, count)

    return act


MEASURES: Final[Mapping[str, Callable[[Side], Round]]] = {
    "enqueue": enqueue,
    "bulk": bulk,
    "drain": drain,
    "drain-one": drain_one,
    "drain-two": drain_two,
    "drain-eight": drain_eight,
    "wake": wake,
    "nodes": nodes,
}


def main(dsn: str, name: str, how: str) -> None:
    """Open a measure, say so, and do a round for each line that comes in; the first one is a warm-up."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with ExitStack() as stack, psycopg.connect(dsn, autocommit=True) as connection:
        act = MEASURES[name](Side(dsn, connection, how == "quick", stack))
        act()
        print("ready", flush=True)
        for _ in sys.stdin:
            print(json.dumps(asdict(act())), flush=True)


def _enqueued(side: Side, act: Callable[[], Any], jobs: int) -> Cost:
    side.empty()
    before, began = side.spent_s(), time.monotonic()
    act()
    return Cost(time.monotonic() - began, side.spent_s() - before, jobs)


def _drained(side: Side, jobs: int, workers: Sequence[subprocess.Popen[str]]) -> Cost:
    side.empty()
    before = side.spent_s(workers)
    side.connection.execute(FILL, [jobs])
    side.until(lambda: not side.value(OPEN))
    return Cost(side.value(TOOK), side.spent_s(workers) - before, jobs)


if __name__ == "__main__":
    main(*sys.argv[1:])
