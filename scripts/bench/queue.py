"""Measures the shipped worker beside bare `pgbench`, in one run on one server: what counts are the ratios.

.venv/bin/python scripts/bench/queue.py [--quick] [--only NAME] [--json] [--strict] [--dsn DSN]
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    # Our directory off the path: in it this file would be everybody's module `queue`.
    sys.path[0] = str(Path(__file__).resolve().parents[1])


def main() -> int:
    """Run the measures that are wanted; 1 if a target is missed and that is to count."""
    from bench.figures import Figure, as_json, table
    from bench.measuring import Bench, Measure
    from bench.memory import memory
    from bench.producers import producers
    from bench.rates import flat, one_worker, snapshot
    from bench.restart import restart
    from bench.servers import open_server
    from bench.wakes import wakes

    measures: dict[str, Measure] = {
        "worker": one_worker,
        "flat": flat,
        "snapshot": snapshot,
        "producers": producers,
        "wakes": wakes,
        "memory": memory,
        "restart": restart,
    }
    wanted = _arguments(list(measures))
    figures: list[Figure] = []
    with open_server(wanted.dsn) as server:
        around = {
            "postgres": server.version,
            "fsync": server.fsync,
            "cores": os.cpu_count(),
            "load_before": round(os.getloadavg()[0], 1),
            "quick": wanted.quick,
        }
        for name in wanted.only or measures:
            bench = Bench(server, wanted.quick, lambda text, name=name: _say(f"{name}: {text}"))
            figures += measures[name](bench)
    around["load_after"] = round(os.getloadavg()[0], 1)
    if wanted.json:
        print(as_json(figures, **around))
    else:
        print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in around.items()))
        print(table(figures))
    return int(wanted.strict and any(figure.met is False for figure in figures))


def _arguments(measures: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the worker beside bare pgbench.")
    parser.add_argument("--quick", action="store_true", help="a minute instead of a quarter of an hour")
    parser.add_argument("--only", action="append", choices=measures, help="this measure; may be repeated")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--strict", action="store_true", help="exit status 1 if a target is missed")
    parser.add_argument("--dsn", help="a server on which databases may be created; else an embedded one")
    return parser.parse_args()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
