"""Kills real workers at random while they work, and then accounts for every job.

    .venv/bin/python scripts/bench/soak.py --minutes 10 --seed 1

Exit status 1 if a job is missing, was ended twice, has a result that no attempt of it wrote down, or failed
without having been in as many killed workers as it takes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":
    # Our directory off the path: `queue.py` in it would be everybody's module `queue`.
    sys.path[0] = str(Path(__file__).resolve().parents[1])


def main() -> int:
    """Soak for so long, drain, and print the account."""
    from bench.harness.servers import open_server
    from bench.kills.accounts import account, watch_ends
    from bench.kills.chaos import Chaos

    parser = argparse.ArgumentParser(description="Kill workers at random, then account for every job.")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="the same choices for one seed")
    parser.add_argument("--dsn", help="a server on which databases may be created; else an embedded one")
    wanted = parser.parse_args()
    with open_server(wanted.dsn) as server, tempfile.TemporaryDirectory(prefix="qwf-soak-") as directory:
        ledger = Path(directory) / "ledger"
        dsn = server.database()
        watch_ends(dsn)
        with Chaos(dsn, ledger, seed=wanted.seed) as chaos:
            chaos.run(wanted.minutes * 60)
            chaos.drain()
        found = account(dsn, ledger, chaos.enqueued)
        for name, number in {**chaos.did, **found.lines}.items():
            print(f"{name:42} {number:8,}")
        print("every job is accounted for" if found.is_right else "THE ACCOUNT IS WRONG")
    return int(not found.is_right)


if __name__ == "__main__":
    sys.exit(main())
