"""Measures the shipped worker beside bare `pgbench`, in one run on one server: what counts are the ratios.

.venv/bin/python scripts/bench/queue.py [--quick] [--only NAME] [--json] [--strict] [--dsn DSN]
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # Our directory off the path: in it this file would be everybody's module `queue`.
    sys.path[0] = str(Path(__file__).resolve().parents[1])


def main() -> int:
    """Run the measures that are wanted; 1 if a target is missed and that is to count."""
    from bench.harness.reporting import report
    from bench.producing.producers import producers
    from bench.worker.idle import idle
    from bench.worker.latency import latency
    from bench.worker.memory import memory
    from bench.worker.pooled import pooled
    from bench.worker.rates import flat, one_worker, snapshot
    from bench.worker.restart import restart
    from bench.worker.wakes import wakes

    return report(
        "Measure the worker beside bare pgbench.",
        {
            "worker": one_worker,
            "flat": flat,
            "snapshot": snapshot,
            "producers": producers,
            "wakes": wakes,
            "pooled": pooled,
            "idle": idle,
            "latency": latency,
            "memory": memory,
            "restart": restart,
        },
    )


if __name__ == "__main__":
    sys.exit(main())
