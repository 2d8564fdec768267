"""Measures what a fleet of idle workers costs the server: connections, transactions, processor time.

.venv/bin/python scripts/bench/fleet.py [--quick] [--only NAME] [--json] [--dsn DSN] [--workers N] [--hosts N]
    [--simulated N]

The workers are real, each a process of some 50 MB, below a supervisor for each host that is played here. Of
those that are simulated the statements are sent, by as many connections as their hosts have.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])


def main() -> int:
    """Run the measures that are wanted; 1 if a target is missed and that is to count."""
    from bench.harness.reporting import report
    from bench.idle_fleet.real import AMOUNTS, SERVER, apart, together
    from bench.idle_fleet.simulated import SIMULATED, simulated

    return report(
        "Measure what a fleet of idle workers costs.",
        {"apart": apart, "together": together, "simulated": simulated},
        amounts={**AMOUNTS, **SIMULATED},
        server_settings=SERVER,
    )


if __name__ == "__main__":
    sys.exit(main())
