"""Measures the engine beside every other queue that is installed, side by side in one run: ratios count.

.venv/bin/python scripts/bench/beside.py --install [--python python3.12]
.venv/bin/python scripts/bench/beside.py [--quick] [--only NAME] [--rounds N] [--cores SERVER CLIENTS]
    [--without PEER] [--json] [--strict] [--dsn DSN]
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])


def main() -> int:
    """Run the measures that are wanted; 1 if a target is missed and that is to count."""
    from bench.contest.drains import drain, long_drain
    from bench.contest.enqueues import at_once, enqueue
    from bench.contest.latencies import start
    from bench.contest.steps import steps
    from bench.harness.reporting import report

    return report(
        "Measure the engine beside other queues on Postgres, in rounds that take turns.",
        {
            "drain": drain,
            "long-drain": long_drain,
            "start": start,
            "enqueue": enqueue,
            "at-once": at_once,
            "steps": steps,
        },
        beside_all=True,
        amounts={"rounds": (7, 1, "rounds of each measure")},
    )


if __name__ == "__main__":
    sys.exit(main())
