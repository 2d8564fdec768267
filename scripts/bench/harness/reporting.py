"""What the scripts of measures have in common: their options, one server, and the table at the end."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import psycopg

from bench import peers
from bench.contest import cores
from bench.harness.figures import Figure, as_json, table
from bench.harness.measuring import Bench, Measure
from bench.harness.servers import Server, open_server

# A full amount, that of a quick look, and what it is of.
Amount = tuple[int, int, str]


def report(
    description: str,
    measures: Mapping[str, Measure],
    *,
    beside_peers: bool = False,
    beside_all: bool = False,
    amounts: Mapping[str, Amount] | None = None,
    server_settings: Mapping[str, str] | None = None,
) -> int:
    """Run those measures that are asked for and print what they found; 1 if a missed target is to count.

    With `beside_peers` there is an option that installs the peers and has them measured too; with
    `beside_all` all that are installed are measured in any case. `amounts` are options of a script's own,
    `server_settings` parameters of an embedded server.
    """
    amounts = amounts or {}
    parser = _parser(description, list(measures), amounts)
    if beside_peers:
        parser.add_argument("--peers", action="store_true", help="install other queues and measure them too")
    if beside_all:
        _add_options_beside_all(parser)
    wanted = parser.parse_args()
    much: dict[str, int] = {
        name: getattr(wanted, name) or (quick if wanted.quick else full)
        for name, (full, quick, _) in amounts.items()
    }
    versions: Mapping[str, str] = {}
    if beside_peers and wanted.peers:
        _say("installing the peers")
        peers.install()
        versions = peers.installed()
    if beside_all:
        if wanted.install:
            peers.install(wanted.python)
        versions = _taking_part(wanted.without or ())
        if wanted.install:
            return 0
    kept = [cores.of(text) for text in wanted.cores] if beside_all and wanted.cores else None
    figures: list[Figure] = []
    with _opened(wanted.dsn, server_settings) as server:
        if kept:
            cores.keep_apart(server.database(), *kept)
        around = {
            "postgres": server.version,
            "fsync": server.fsync,
            "cores": os.cpu_count(),
            "load_before": round(os.getloadavg()[0], 1),
            "quick": wanted.quick,
            **({"cores_of_server": wanted.cores[0], "cores_of_clients": wanted.cores[1]} if kept else {}),
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


@contextmanager
def _opened(dsn: str | None, settings: Mapping[str, str] | None) -> Iterator[Server]:
    """A server, or a line that says why there is none."""
    with ExitStack() as stack:
        try:
            server = stack.enter_context(open_server(dsn, settings))
        except psycopg.OperationalError as away:
            raise SystemExit(f"the server cannot be used: {' '.join(str(away).split())}") from None
        yield server


def _taking_part(without: Sequence[str]) -> dict[str, str]:
    """The peers that are measured; of the others it is said why they are not."""
    versions, missing = peers.contenders()
    if unknown := next((name for name in without if name not in {**versions, **missing}), None):
        raise SystemExit(f"--without: there is no {unknown!r} among the queues that are measured")
    missing |= {name: "left out" for name in without if name in versions}
    for name, why in missing.items():
        _say(f"without {name}: {why}")
    return {name: number for name, number in versions.items() if name not in without}


def _add_options_beside_all(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--install", action="store_true", help="make the peers' environment, and end")
    parser.add_argument("--python", metavar="PROGRAM", help="the Python to make it with: oban wants 3.12")
    parser.add_argument("--without", action="append", metavar="PEER", help="leave this one out")
    parser.add_argument(
        "--cores", nargs=2, metavar=("SERVER", "CLIENTS"), help="the cores of each, such as 0-1 2-3"
    )


def _parser(
    description: str, measures: Sequence[str], amounts: Mapping[str, Amount]
) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a minute instead of a quarter of an hour")
    parser.add_argument("--only", action="append", choices=measures, help="this measure; may be repeated")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--strict", action="store_true", help="exit status 1 if a target is missed")
    parser.add_argument("--dsn", help="a server on which databases may be created; else an embedded one")
    for name, (full, quick, of) in amounts.items():
        said = f"{of}: {full:,}, or {quick:,} in a quick look"
        parser.add_argument(f"--{name}", type=int, metavar="N", help=said)
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
