"""How soon an idle worker begins what was just committed."""

from __future__ import annotations

import random
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

import psycopg

from bench.harness.figures import Figure, percentile
from bench.harness.measuring import Bench
from bench.harness.workers import ONE_AT_A_TIME, environment, working
from queue_workflows.db.listen.listener import ADVERTISE
from queue_workflows.repositories.claims.claim import CLAIM, claim_params
from queue_workflows.repositories.sql.low_water_marks import UNMARKED

ENQUEUE: Final = "INSERT INTO ingest_jobs (task_name, queue) VALUES ('clock', 'fetch') RETURNING id"
RESULT: Final = "SELECT result FROM ingest_jobs WHERE id = %s AND status = 'completed'"
LISTENERS: Final = """
SELECT count(*) FROM pg_locks JOIN pg_database AS here ON here.oid = database AND datname = current_database()
WHERE locktype = 'advisory' AND classid = qwf_wake_class() AND granted
"""
PATIENCE_S: Final = 300.0

# When the body of a job began, by its id, on the clock of this machine.
Began = Callable[[int], int]


def wakes(bench: Bench) -> Sequence[Figure]:
    """From the return of a commit to the first line of the body, beside a bare loop that does only that."""
    samples = bench.much(400, 10)
    seen: dict[str, list[float]] = {"one job at a time": [], "eight threads": [], "bare": []}
    with ExitStack() as stack:
        began: dict[str, tuple[psycopg.Connection[Any], Began]] = {}
        for name, options in (("one job at a time", ONE_AT_A_TIME), ("eight threads", ())):
            dsn, connection = stack.enter_context(bench.database())
            stack.enter_context(working(dsn, *options))
            began[name] = connection, partial(result, connection)
        bare_dsn, bare = stack.enter_context(bench.database())
        began["bare"] = bare, stack.enter_context(_bare_loop(bare_dsn))
        for connection, _ in began.values():
            until(partial(value, connection, LISTENERS))
        for number in range(samples):
            for name, (connection, begun) in began.items():
                seen[name].append(sample(connection, begun))
            if number % 100 == 99:
                bench.say(f"{number + 1} of {samples} wakes")
    return [
        _figure(f"commit to body, {name}, {words}", seen[name], seen["bare"], share, target)
        for name, targets in (("one job at a time", (1.5, 3.0)), ("eight threads", (None, None)))
        for words, share, target in (("median", 0.5, targets[0]), ("99 %", 0.99, targets[1]))
    ]


def _figure(
    what: str, ours: Sequence[float], base: Sequence[float], share: float, target: float | None
) -> Figure:
    mine, theirs = percentile(ours, share), percentile(base, share)
    return Figure("wakes", what, mine, "ms", "bare LISTEN loop", theirs, mine / theirs, target, at_most=True)


def sample(connection: psycopg.Connection[Any], began: Began) -> float:
    """Milliseconds; the pause before lets everybody go to sleep."""
    time.sleep(0.04 + random.random() * 0.04)
    job = value(connection, ENQUEUE)
    committed = time.monotonic_ns()
    return max(began(job) - committed, 1) / 1e6


def result(connection: psycopg.Connection[Any], job: int) -> int:
    """When the body of a job began, from its row."""
    # Looking at once would keep the very cores busy on which the worker is to wake up.
    time.sleep(0.02)
    return int(until(lambda: value(connection, RESULT, [job])))


def value(connection: psycopg.Connection[Any], query: str, params: Sequence[Any] = ()) -> Any:
    """The first value that a query gives, or None."""
    row = connection.execute(query, params).fetchone()
    return row[0] if row else None


def until(look: Callable[[], Any]) -> Any:
    """What it finds, as soon as it finds something."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := look()):
        if time.monotonic() > deadline:
            raise SystemExit("nobody woke up")
        time.sleep(0.01)
    return found


@contextmanager
def _bare_loop(dsn: str) -> Iterator[Began]:
    command = [sys.executable, "-m", "bench.worker.wakes", dsn]
    with subprocess.Popen(command, env=environment(dsn), stdout=subprocess.PIPE, text=True) as process:

        def began(job: int) -> int:
            assert process.stdout is not None
            if not select.select([process.stdout], [], [], PATIENCE_S)[0]:
                raise SystemExit("the bare loop did not wake up")
            found, moment = process.stdout.readline().split()
            if int(found) != job:
                raise SystemExit(f"the bare loop ran job {found} instead of {job}")
            return int(moment)

        try:
            yield began
        finally:
            process.kill()


def listen(dsn: str) -> None:
    """LISTEN, and claim with the engine's own statement; nothing that would make it safe."""
    statement = CLAIM["ingest"].encode()
    params = claim_params(
        "fetch", worker_id="bare", lease_s=3600.0, limit=1, alone=True, positions=UNMARKED
    ) | {"relaxed": True}
    with psycopg.connect(dsn, autocommit=True, prepare_threshold=0) as connection:
        connection.execute("SET plan_cache_mode = force_generic_plan")
        connection.execute("LISTEN ingest_job_ready")
        cursor = connection.cursor()
        cursor.execute(statement, params)
        connection.execute(ADVERTISE.replace("$1", "'fetch'"))
        while True:
            select.select([connection.pgconn.socket], [], [], 1.0)
            connection.pgconn.consume_input()
            while connection.pgconn.notifies():
                pass
            for row in cursor.execute(statement, params).fetchall():
                print(row[0], time.monotonic_ns(), flush=True)


if __name__ == "__main__":
    listen(sys.argv[1])
