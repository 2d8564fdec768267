"""Measures what a hook costs beside starting its script bare: what counts are the ratios.

.venv/bin/python scripts/bench/hooks.py [--quick] [--only NAME] [--json] [--strict] [--dsn DSN]
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])


def main() -> int:
    """Run the measures that are wanted; 1 if a target is missed and that is to count."""
    from bench.harness.reporting import report
    from bench.hook_scripts.commands import at_once, process
    from bench.hook_scripts.hook_runs import shipped
    from bench.hook_scripts.suite import suite

    measures = {"process": process, "at-once": at_once, "shipped": shipped, "suite": suite}
    return report("Measure what a hook costs.", measures)


if __name__ == "__main__":
    sys.exit(main())
