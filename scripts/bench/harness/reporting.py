"""What the scripts of measures have in common: their options, one server, and the table at the end."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence

from bench import peers
from bench.harness.figures import Figure, as_json, table
from bench.harness.measuring import Bench, Measure
from bench.harness.servers import open_server

# A full amount, that of a quick look, and what it is of.
Amount = tuple[int, int, str]


def report(
    description: str,
    measures: Mapping[str, Measure],
    *,
    beside_peers: bool = False,
    amounts: Mapping[str, Amount] | None = None,
    server_settings: Mapping[str, str] | None = None,
) -> int:
    """Run those measures that are asked for and print what they found; 1 if a missed target is to count.

    With `beside_peers` there is an option that installs the peers and has them measured too; `amounts` are
    options of a script's own, `server_settings` parameters of an embedded server.
    """
    amounts = amounts or {}
    wanted = _arguments(description, list(measures), amounts, beside_peers=beside_peers)
    much: dict[str, int] = {
        name: getattr(wanted, name) or (quick if wanted.quick else full)
        for name, (full, quick, _) in amounts.items()
    }
    versions: Mapping[str, str] = {}
    if beside_peers and wanted.peers:
        _say("installing the peers")
        peers.install()
        versions = peers.installed()
    figures: list[Figure] = []
    with open_server(wanted.dsn, server_settings) as server:
        around = {
            "postgres": server.version,
            "fsync": server.fsync,
            "cores": os.cpu_count(),
            "load_before": round(os.getloadavg()[0], 1),
            "quick": wanted.quick,
            **much,
            **versions,
        }
        for name in wanted.only or measures:
            bench = Bench(
                server, wanted.quick, lambda text, name=name: _say(f"{name}: {text}"), versions, much
            )
            figures += measures[name](bench)
    around["load_after"] = round(os.getloadavg()[0], 1)
    if wanted.json:
        print(as_json(figures, **around))
    else:
        print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in around.items()))
        print(table(figures))
    return int(wanted.strict and any(figure.met is False for figure in figures))


def _arguments(
    description: str, measures: Sequence[str], amounts: Mapping[str, Amount], *, beside_peers: bool
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a minute instead of a quarter of an hour")
    parser.add_argument("--only", action="append", choices=measures, help="this measure; may be repeated")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--strict", action="store_true", help="exit status 1 if a target is missed")
    parser.add_argument("--dsn", help="a server on which databases may be created; else an embedded one")
    for name, (full, quick, of) in amounts.items():
        said = f"{of}: {full:,}, or {quick:,} in a quick look"
        parser.add_argument(f"--{name}", type=int, metavar="N", help=said)
    if beside_peers:
        parser.add_argument("--peers", action="store_true", help="install other queues and measure them too")
    return parser.parse_args()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
