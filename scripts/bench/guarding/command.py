"""The guard's command line: two commits, the measures, and what is said at the end."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import psycopg

from bench.guarding.sides import SideProcess, migrate
from bench.guarding.trees import WORKING_TREE, Unusable, differ, lay_out, resolved
from bench.guarding.verdict import Verdict, Word, judge
from bench.harness.servers import Server, open_server
from queue_workflows.errors import QwfError

# A full look has fifteen pairs; six are the fewest that can be sure to 95 %.
_ROUNDS: Final = 15
_FEWEST: Final = 6
_UNREACHABLE: Final = 69
_UNDECIDED: Final = 3
_BUSY: Final = 4
# As they are in `measures`, which only a side's process can import.
NAMES: Final = ("enqueue", "bulk", "drain", "drain-one", "drain-two", "drain-eight", "wake", "nodes")


class Busy(Exception):
    """Another copy measures on this machine."""


def main() -> int:
    """Compare: 0 no slower, 1 slower, 2 wrong input, 3 undecided, 4 another copy runs, 69 no server."""
    wanted = _parsed()
    signal.signal(signal.SIGTERM, _terminated)
    try:
        with _alone():
            return _compared(wanted)
    except KeyboardInterrupt:
        return _ended("interrupted: nothing is left behind", 130)
    except Busy as other:
        return _ended(str(other), _BUSY)
    except Unusable as wrong:
        return _ended(str(wrong), 2)
    except (psycopg.OperationalError, QwfError) as away:
        line = " ".join(str(away).split())
        return _ended(f"the server cannot be used: {line}", _UNREACHABLE)


def _compared(wanted: argparse.Namespace) -> int:
    names = (wanted.before, wanted.after)
    commits = [resolved(name) for name in names]
    with tempfile.TemporaryDirectory(prefix="qwf-guard-") as directory, ExitStack() as stack:
        trees = [Path(directory) / side for side in ("before", "after")]
        for commit, tree in zip(commits, trees, strict=True):
            lay_out(commit, tree)
        if not wanted.anyway and not differ(*trees):
            raise Unusable(
                f"{names[0]} and {names[1]} have the same package: change something first, "
                "or say --anyway to see what is noise here"
            )
        server = stack.enter_context(open_server(wanted.dsn))
        dsns = [server.empty_database() for _ in trees]
        for name, tree, dsn in zip(names, trees, dsns, strict=True):
            migrate(tree, dsn, name)
        sides = list(zip(names, trees, dsns, strict=True))
        found = {measure: _measured(wanted, measure, sides) for measure in wanted.only or NAMES}
        _print(wanted, found, server)
    words = {verdict.word for verdict in found.values()}
    if Word.SLOWER in words:
        return 1
    return _UNDECIDED if Word.UNDECIDED in words else 0


def _measured(wanted: argparse.Namespace, measure: str, sides: Sequence[tuple[str, Path, str]]) -> Verdict:
    seen: list[list[float]] = [[], []]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(SideProcess(tree, dsn, measure, quick=wanted.quick, name=name))
            for name, tree, dsn in sides
        ]
        for process in processes:
            process.opened()
        for number in range(wanted.rounds):
            # What comes second meets another machine, so they change places.
            for at in (0, 1) if number % 2 == 0 else (1, 0):
                seen[at].append(processes[at].round(wanted.by))
            pair = ", ".join(f"{values[-1] * 1e6:,.1f}" for values in seen)
            print(f"{measure}: {number + 1} of {wanted.rounds}: {pair} µs a job", file=sys.stderr, flush=True)
    return judge(*seen, limit=1 + wanted.limit / 100, confidence=wanted.confidence / 100)


def _print(wanted: argparse.Namespace, found: dict[str, Verdict], server: Server) -> None:
    around: dict[str, Any] = {
        "before": wanted.before,
        "after": wanted.after,
        "by": wanted.by,
        "limit": wanted.limit,
        "rounds": wanted.rounds,
        "postgres": server.version,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
    }
    if wanted.json:
        print(
            json.dumps({**around, "measures": {name: asdict(one) for name, one in found.items()}}, indent=2)
        )
        return
    print(", ".join(f"{name} {value}" for name, value in around.items()))
    for name, one in found.items():
        print(
            f"{name:10} {one.ratio:5.2f} of before, surely {one.low:.2f} to {one.high:.2f} "
            f"({one.confidence:.1%}): {one.word}"
        )


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/bench/guard",
        description="Compare two commits in turns, and fail where a job costs more than it did.",
        epilog="exit status: 0 no slower, 1 slower, 2 wrong input, 3 too noisy or too few rounds to say, "
        "4 another copy measures here, 69 no server, 130 and 143 ended by a signal",
    )
    parser.add_argument("before", nargs="?", default="main", help="a commit (main)")
    parser.add_argument("after", nargs="?", default=WORKING_TREE, help="another one (the working tree)")
    parser.add_argument("--only", action="append", choices=NAMES, help="this measure; may be repeated")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help=f"pairs of each measure ({_ROUNDS})")
    parser.add_argument("--limit", type=float, default=5.0, help="how many per cent slower may be (5)")
    parser.add_argument("--confidence", type=float, default=95.0, help="of each verdict, in per cent (95)")
    parser.add_argument(
        "--by",
        choices=("clock", "processor"),
        default="clock",
        help="what a job costs: time, or processors' time, ours and the server's",
    )
    parser.add_argument("--quick", action="store_true", help="few jobs a round: a look at whether it works")
    parser.add_argument("--anyway", action="store_true", help="also where nothing differs: what is noise")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--dsn", help="a server on which databases may be created; else an embedded one")
    wanted = parser.parse_args()
    if wanted.rounds < _FEWEST:
        parser.error(f"--rounds: at least {_FEWEST}, fewer pairs cannot be sure of anything")
    if not 50 < wanted.confidence < 100:
        parser.error("--confidence: between 50 and 100 per cent")
    if wanted.limit < 0:
        parser.error("--limit: per cent that a job may cost more, 0 or above")
    return wanted


@contextmanager
def _alone() -> Iterator[None]:
    """Two copies would measure each other."""
    path = Path(tempfile.gettempdir()) / f"qwf-guard-{os.getuid()}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 20).decode().strip()
        os.close(descriptor)
        raise Busy(f"another copy measures on this machine (process {holder}): wait for it") from None
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        yield
    finally:
        os.close(descriptor)


def _terminated(*_: object) -> None:
    sys.exit(_ended("terminated: nothing is left behind", 143))


def _ended(line: str, status: int) -> int:
    print(f"guard: {line}", file=sys.stderr, flush=True)
    return status
