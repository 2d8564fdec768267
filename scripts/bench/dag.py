"""Measures runs of workflows beside the plain queue, in one run on one server: what counts are the ratios.

.venv/bin/python scripts/bench/dag.py [--quick] [--only NAME] [--json] [--strict] [--dsn DSN]
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])


def main() -> int:
    """Run the measures that are wanted; 1 if a target is missed and that is to count."""
    from bench.harness.reporting import report
    from bench.runs.dispatching import dispatching
    from bench.runs.graphs import chain, diamonds, fan_out, for_each

    return report(
        "Measure runs of workflows beside the plain queue.",
        {
            "chain": chain,
            "fan-out": fan_out,
            "for-each": for_each,
            "diamonds": diamonds,
            "dispatch": dispatching,
        },
    )


if __name__ == "__main__":
    sys.exit(main())
