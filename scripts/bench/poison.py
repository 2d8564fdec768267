"""Works on good jobs with and without others among them that kill their worker, and compares.

    .venv/bin/python scripts/bench/poison.py --good 5000 --poison 500

Two supervised workers of eight, with the shipped settings. Exit status 1 if a good job did not complete or
was blamed for a crash, if a poison job did not fail with its own crash named, or if the good ones took more
than twice as long, or than `--bound` says.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if __name__ == "__main__":
    # Our directory off the path: `queue.py` in it would be everybody's module `queue`.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

if TYPE_CHECKING:
    from support.stages.poisoned import Stage

_GOOD_S = 0.05


def main() -> int:
    """Once without poison, once with it, and what became of each job."""
    tests = str(Path(__file__).resolve().parents[2] / "tests")
    # The stage and its tasks are those of the tests, and the workers import them too.
    sys.path.append(tests)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [tests, os.environ.get("PYTHONPATH", "")]))
    from support.stages.poisoned import mixed, stage

    from bench.harness.servers import open_server

    parser = argparse.ArgumentParser(description="Compare good jobs with and without poison among them.")
    parser.add_argument("--good", type=int, default=5000)
    parser.add_argument("--poison", type=int, default=500)
    parser.add_argument("--bound", type=float, default=2.0, help="how many times as long it may take")
    parser.add_argument("--within", type=float, default=1800.0, metavar="S", help="give up after so long")
    parser.add_argument("--dsn", help="a server on which databases may be created; else an embedded one")
    wanted = parser.parse_args()
    took = []
    ends: list[tuple[str, int, int]] = []
    with open_server(wanted.dsn) as server:
        for poison in (0, wanted.poison):
            with stage(server.database()) as there:
                there.jobs.enqueue_many(mixed(wanted.good, poison, seed=1, good_s=_GOOD_S))
                before = _cpu_s(there)
                took.append(there.good_done(within_s=wanted.within))
                used = _cpu_s(there) - before
                there.all_done(within_s=wanted.within)
                good, ends = there.ends("doze"), there.ends("poison")
                unnamed = there.unnamed()
                spent = f"{took[-1]:.1f} s and {used:.1f} s of processors"
                print(f"{poison} poison: {wanted.good} good ones in {spent}, {good}", flush=True)
    ratio = took[1] / took[0]
    print(f"poison: {ends}, {unnamed} of which do not name their own crash; ratio {ratio:.2f}")
    is_right = good == [("completed", 0, wanted.good)] and not unnamed and ratio <= wanted.bound
    is_right &= [(status, count) for status, _, count in ends] == [("failed", wanted.poison)]
    print("the bound is kept" if is_right else "THE BOUND IS NOT KEPT")
    return int(not is_right)


def _cpu_s(there: Stage) -> float:
    """What workers, their supervisor and the server have used so far, as far as it can be seen."""
    from bench.harness.servers import cpu_s

    supervisor = psutil.Process(there.supervisor.pid)
    spent = cpu_s(there.connection) or 0.0
    for process in [supervisor, *supervisor.children(recursive=True)]:
        with suppress(psutil.Error):
            spent += sum(process.cpu_times()[:4])
    return spent


if __name__ == "__main__":
    sys.exit(main())
