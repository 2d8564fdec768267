"""Measures ingest beside bare Postgres and other queues, in one run on one server: ratios count.

.venv/bin/python scripts/bench/ingest.py [--peers] [--quick] [--only NAME] [--json] [--strict] [--dsn DSN]
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])


def main() -> int:
    """Run the measures that are wanted; 1 if a target is missed and that is to count."""
    from bench.harness.reporting import report
    from bench.producing.enqueueing import bulk, single
    from bench.worker.asleep import asleep
    from bench.worker.draining import drain, head, processes
    from bench.worker.fairness import fairness
    from bench.worker.starting import start

    return report(
        "Measure ingest beside bare Postgres, and with --peers beside other queues.",
        {
            "drain": drain,
            "head": head,
            "processes": processes,
            "enqueue": single,
            "bulk": bulk,
            "start": start,
            "fairness": fairness,
            "asleep": asleep,
        },
        beside_peers=True,
    )


if __name__ == "__main__":
    sys.exit(main())
