"""Measures the operator's page on a database with a long history, against the bounds that it was built to.

.venv/bin/python scripts/bench/web.py [--quick] [--only NAME] [--json] [--strict] [--dsn DSN] [--rows N]
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])


def main() -> int:
    """Run the measures that are wanted; 1 if a bound is missed and that is to count."""
    from bench.harness.reporting import report
    from bench.operator_page.measures import AMOUNTS, filters, first_load, large_runs, pages, tabs

    return report(
        "Measure the operator's page on a database with a long history.",
        {
            "pages": pages,
            "filters": filters,
            "large-runs": large_runs,
            "tabs": tabs,
            "first-load": first_load,
        },
        amounts=AMOUNTS,
    )


if __name__ == "__main__":
    sys.exit(main())
