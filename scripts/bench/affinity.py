"""Measures what preferring loaded models comes to, beside the same engine in the order of age.

.venv/bin/python scripts/bench/affinity.py [--quick] [--only NAME] [--json] [--strict] [--dsn DSN]
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])


def main() -> int:
    """Run the measures that are wanted; 1 if a target is missed and that is to count."""
    from bench.gpu.placement import affinity, flat, leaving
    from bench.harness.reporting import report

    return report(
        "Measure what preferring loaded models comes to, beside the same engine in the order of age.",
        {"affinity": affinity, "leaving": leaving, "flat": flat},
    )


if __name__ == "__main__":
    sys.exit(main())
