"""Steps a second of durable functions, beside those of DBOS and Absurd, on one server in turns.

    python scripts/bench/durable.py --peers /path/to/python [--functions 300] [--rounds 3]
    python scripts/bench/durable.py --waking [--sleepers 100000] [--jobs 20000] [--rounds 3]

`--peers` is the interpreter of an environment with `dbos`, `absurd-sdk`, `absurdctl` and psycopg. Each round
has each of them work off so many functions of ten steps that do nothing, by one worker process with a hundred
at once; the clock runs from its first stored step to its last end. `--waking` is about sleepers, and
about what the looks for events cost plain jobs: see `bench/steps/waking.py`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

SCRIPTS: Final = Path(__file__).resolve().parents[1]
# In the place of this folder, of which `queue` would hide the standard one.
sys.path[:1] = [str(SCRIPTS), str(SCRIPTS.parent / "src")]

import psycopg  # noqa: E402

from bench.harness.servers import Server, open_server  # noqa: E402

STEPS: Final = 10
_PATIENCE_S: Final = 300.0


class Contender(NamedTuple):
    """What runs functions, and how its tables say that one has begun, and how many have ended."""

    module: str
    begun: str
    done: str


CONTENDERS: Final = {
    "queue_workflows": Contender(
        "bench.steps.ours",
        "SELECT EXISTS (SELECT FROM durable_steps)",
        "SELECT count(*) FROM ingest_jobs WHERE status = 'completed'",
    ),
    "absurd": Contender(
        "bench.steps.absurd_steps",
        "SELECT EXISTS (SELECT FROM absurd.c_fetch)",
        "SELECT count(*) FROM absurd.t_fetch WHERE state = 'completed'",
    ),
    "dbos": Contender(
        "bench.steps.dbos_steps",
        "SELECT EXISTS (SELECT FROM dbos.operation_outputs)",
        "SELECT count(*) FROM dbos.workflow_status WHERE status = 'SUCCESS'",
    ),
}


def rate(server: Server, name: str, python: str, functions: int) -> float:
    """Steps a second of one of them, in a database of its own."""
    contender, dsn = CONTENDERS[name], server.database()
    paths = [str(SCRIPTS), *([str(SCRIPTS.parent / "src")] if name == "queue_workflows" else [])]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [python, "-m", contender.module]
    subprocess.run([*command, "prepare", dsn], check=True, env=env, stdout=subprocess.DEVNULL)
    subprocess.run([*command, "fill", dsn, str(functions)], check=True, env=env)
    with psycopg.connect(dsn, autocommit=True) as connection:
        worker = subprocess.Popen([*command, "work", dsn], env=env, stderr=subprocess.DEVNULL)
        try:
            began = _when(connection, contender.begun, 1)
            ended = _when(connection, contender.done, functions)
        finally:
            worker.terminate()
            worker.wait()
    return functions * STEPS / (ended - began)


def _when(connection: psycopg.Connection[tuple[int]], question: str, least: int) -> float:
    give_up = time.monotonic() + _PATIENCE_S
    while True:
        row = connection.execute(question.encode()).fetchone()
        now = time.monotonic()
        if row is not None and int(row[0]) >= least:
            return now
        if now > give_up:
            raise SystemExit(f"it did not happen within {_PATIENCE_S:g} s: {question}")
        time.sleep(0.01)


def main() -> None:
    """Measure in turns, and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", help="the interpreter of the peers' environment")
    parser.add_argument("--waking", action="store_true", help="measure how late sleepers wake")
    parser.add_argument("--sleepers", type=int, default=100_000)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--functions", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    if given.waking:
        from bench.steps.waking import measure

        with open_server(None) as server:
            measure(server, sleepers=given.sleepers, jobs=given.jobs, rounds=given.rounds)
        return
    if given.peers is None:
        parser.error("give --peers, or --waking")
    rates: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    with open_server(None) as server:
        print(f"PostgreSQL {server.version}, fsync {'on' if server.fsync else 'off'}")
        for number in range(given.rounds):
            for name in CONTENDERS:
                python = sys.executable if name == "queue_workflows" else given.peers
                rates[name].append(rate(server, name, python, given.functions))
                print(f"round {number + 1}: {name} {rates[name][-1]:,.0f} steps a second", flush=True)
    ours = statistics.median(rates["queue_workflows"])
    for name, found in rates.items():
        median = statistics.median(found)
        print(f"{name}: {median:,.0f} steps a second, {ours / median:.2f} times as many here")


if __name__ == "__main__":
    main()
