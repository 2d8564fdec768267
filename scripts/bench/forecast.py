"""Measures how right forecasts are: it records loads, asks midway, and scores what then happened.

.venv/bin/python scripts/bench/forecast.py [--quick] [--only NAME] [--json] [--strict] [--dsn DSN]
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])


def main() -> int:
    """Run the measures that are wanted; 1 if a bound is missed and that is to count."""
    from bench.forecasts.measures import AMOUNTS, MEASURES
    from bench.harness.reporting import report

    return report("Measure how right forecasts are.", MEASURES, amounts=AMOUNTS)


if __name__ == "__main__":
    sys.exit(main())
