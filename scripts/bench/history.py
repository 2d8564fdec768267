"""Measures what a long history costs: claims, lists, failures, statistics beside it; pruning it; by months.

.venv/bin/python scripts/bench/history.py [--quick] [--only NAME] [--json] [--strict] [--dsn DSN] [--rows N]
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])


def main() -> int:
    """Run the measures that are wanted; 1 if a bound is missed and that is to count."""
    from bench.harness.reporting import report
    from bench.past.measures import AMOUNTS, beside, months, prune, reads

    measures = {"reads": reads, "prune": prune, "months": months, "beside": beside}
    return report("Measure what a long history costs.", measures, amounts=AMOUNTS)


if __name__ == "__main__":
    sys.exit(main())
