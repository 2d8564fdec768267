"""Says where the time and the WAL of one job of each kind go, on a server of its own.

.venv/bin/python scripts/bench/cost.py [--quick] [--only NAME] [--json FILE]
.venv/bin/python scripts/bench/cost.py --page BEFORE.json AFTER.json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])


def main() -> int:
    """Measure, and print the page of it, or write it down."""
    from bench.costs.kinds import KINDS
    from bench.costs.page import page
    from bench.costs.server_side import SETTINGS
    from bench.harness.measuring import Bench
    from bench.harness.servers import open_server

    parser = argparse.ArgumentParser(description="Say where the time and the WAL of a job go.")
    parser.add_argument("--quick", action="store_true", help="few jobs of each kind: the figures are rough")
    parser.add_argument("--only", action="append", choices=list(KINDS), help="this kind; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured to a file")
    parser.add_argument("--page", nargs="+", type=Path, metavar="FILE", help="the page of such files")
    wanted = parser.parse_args()
    if wanted.page:
        print(page([json.loads(file.read_text()) for file in wanted.page]), end="")
        return 0
    with open_server(None, SETTINGS) as server:
        bench = Bench(server, wanted.quick, lambda text: print(text, file=sys.stderr, flush=True))
        costs: list[dict[str, Any]] = []
        measured = {
            "date": time.strftime("%Y-%m-%d"),
            "postgres": server.version,
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
            "costs": costs,
        }
        for name in wanted.only or KINDS:
            bench.say(name)
            costs.append(KINDS[name](bench).as_json)
    if wanted.json:
        wanted.json.write_text(json.dumps(measured))
    else:
        print(page([measured]), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
