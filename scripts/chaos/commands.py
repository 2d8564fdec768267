"""The command line of the attack: histories by the thousand, one again, a smaller one, the scenarios."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from chaos.generator import generate
from chaos.histories import History, load, save

FOUND: Final = Path("chaos-found")
# Histories for each processor, and how often a campaign says how far it is.
_AT_ONCE: Final = 3
_SAID_EVERY_S: Final = 15.0


class Slot:
    """A server, a launcher and a proxy, for one history after the other."""

    def __init__(self, stack: ExitStack, seed: int) -> None:
        from chaos.launcher import Launcher
        from chaos.proxy import Proxy
        from chaos.servers import ChaosServer
        from queue_workflows.testing.runs import new_run

        self._place = stack.enter_context(new_run()).directory / "histories"
        self._launcher = Launcher()
        stack.callback(self._launcher.close)
        self._server = ChaosServer(stack.enter_context(new_run(in_memory=True)), stack, "s")
        self._proxy = Proxy(self._server.socket, seed=seed)
        stack.callback(self._proxy.close)
        self._count = 0

    def judged(self, history: History) -> tuple[list[str], Any]:
        """Run it, and say what it violated and what was seen."""
        from chaos.model import judge
        from chaos.running import run_history

        self._count += 1
        place = self._place / str(self._count)
        seen = run_history(history, self._server, self._launcher, self._proxy, place)
        return judge(history, seen), seen


@contextmanager
def open_slot(seed: int = 0) -> Iterator[Slot]:
    """One for as long as the block lasts."""
    with ExitStack() as stack:
        yield Slot(stack, seed)


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says."""
    wanted = _parser().parse_args(arguments)
    # Also where a shell starts us in the background, which has us ignore Ctrl-C.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        return int(wanted.run(wanted))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="chaos", description="Attack the engine with histories from seeds.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="histories, each from its seed")
    run.add_argument("--seed", type=int, help="this one alone")
    run.add_argument("--histories", type=_count, default=100, help="how many")
    run.add_argument("--first-seed", type=int, default=1)
    run.add_argument(
        "--jobs",
        type=_count,
        default=_AT_ONCE * (os.cpu_count() or 1),
        help="how many at once, which mostly wait; each has a server of its own (%(default)s)",
    )
    run.add_argument(
        "--without", action="append", default=[], metavar="KNOWN", help="leave a known defect out"
    )
    run.add_argument("--found", type=Path, default=FOUND, help="where failing histories are kept")
    run.add_argument("--verbose", action="store_true", help="print what was seen")
    run.set_defaults(run=_run)
    replay = commands.add_parser("replay", help="a history from its file")
    replay.add_argument("file", type=_file)
    replay.add_argument("--times", type=_count, default=1)
    replay.add_argument("--verbose", action="store_true")
    replay.set_defaults(run=_replay)
    shrink = commands.add_parser("shrink", help="the smallest history that still fails in the same way")
    shrink.add_argument("file", type=_file)
    shrink.add_argument("--times", type=_count, default=2, help="how often each smaller one is tried")
    shrink.set_defaults(run=_shrink)
    scenarios = commands.add_parser("scenarios", help="what is written down and not drawn")
    scenarios.add_argument("names", nargs="*", type=_scenario, metavar="NAME", help="these alone; else all")
    scenarios.add_argument("--found", type=Path, default=FOUND)
    scenarios.set_defaults(run=_scenarios)
    slot = commands.add_parser("slot")
    slot.add_argument("--without", action="append", default=[])
    slot.set_defaults(run=_slot)
    return parser


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _file(text: str) -> Path:
    path = Path(text)
    try:
        load(path)
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise argparse.ArgumentTypeError(f"{text} is no history: {exc}") from exc
    return path


def _run(wanted: argparse.Namespace) -> int:
    without = frozenset(wanted.without)
    if wanted.seed is not None:
        history = generate(wanted.seed, without)
        return _tell(history, 1, verbose=wanted.verbose, found=wanted.found)
    seeds = range(wanted.first_seed, wanted.first_seed + wanted.histories)
    return _Campaign(seeds, wanted).run()


def _replay(wanted: argparse.Namespace) -> int:
    return _tell(load(wanted.file), wanted.times, verbose=wanted.verbose, found=None)


def _tell(history: History, times: int, *, verbose: bool, found: Path | None) -> int:
    bad = 0
    print(f"seed {history.seed}", flush=True)
    with open_slot(history.seed) as slot:
        for _ in range(times):
            began = time.monotonic()
            violations, seen = slot.judged(history)
            took = time.monotonic() - began
            bad += bool(violations)
            drained = "never" if seen.drained_s is None else f"{seen.drained_s:.1f} s"
            print(
                f"{len(seen.jobs)} jobs, {len(seen.nodes)} nodes, took {took:.1f} s,",
                f"drained after {drained}; {seen.did}",
            )
            for one in violations:
                print(f"  VIOLATION {one}")
            if verbose:
                print(
                    json.dumps(
                        {"jobs": seen.jobs, "nodes": seen.nodes, "ends": seen.ends}, default=str, indent=1
                    )
                )
            if violations and found is not None:
                found.mkdir(exist_ok=True)
                save(history, found / f"{history.seed}.json", violations)
                _keep_logs(seen.logs, found / f"{history.seed}.log")
                print(f"kept as {found / f'{history.seed}.json'}")
    return int(bad > 0)


def _keep_logs(logs: dict[str, str], path: Path) -> None:
    path.write_text("".join(f"== {name}\n{text}\n" for name, text in sorted(logs.items())), encoding="utf-8")


def _shrink(wanted: argparse.Namespace) -> int:
    from chaos.shrinking import shrunk

    history = load(wanted.file)
    with open_slot(history.seed) as slot:
        violations, _ = slot.judged(history)
        if not violations:
            print("it did not fail this time", file=sys.stderr)
            return 0
        small, violations = shrunk(
            history, violations, slot.judged, times=wanted.times, say=lambda text: print(text, flush=True)
        )
    path = wanted.file.with_suffix(".small.json")
    save(small, path, violations)
    print(f"{len(small.steps)} steps of {len(history.steps)}, {len(small.jobs())} jobs: {path}")
    return 1


def _scenario(name: str) -> str:
    from chaos.scenarios import SCENARIOS
    from chaos.standby import ON_SERVERS

    if name not in (*SCENARIOS, *ON_SERVERS):
        raise argparse.ArgumentTypeError(f"there is {', '.join((*SCENARIOS, *ON_SERVERS))}, and no {name!r}")
    return name


def _scenarios(wanted: argparse.Namespace) -> int:
    from chaos.scenarios import SCENARIOS
    from chaos.standby import ON_SERVERS

    bad = 0
    with open_slot() as slot:
        for name in [each for each in SCENARIOS if not wanted.names or each in wanted.names]:
            for number, history in enumerate(SCENARIOS[name](), 1):
                violations, seen = slot.judged(history)
                drained = "never" if seen.drained_s is None else f"{seen.drained_s:.1f} s"
                print(f"{name} {number}: {len(seen.jobs)} jobs, drained after {drained}", flush=True)
                bad += _told(f"{name}-{number}", history, violations, seen.logs, wanted.found)
    for name in [each for each in ON_SERVERS if not wanted.names or each in wanted.names]:
        history, violations, seen = ON_SERVERS[name]()
        print(f"{name}: {len(seen.jobs)} jobs, drained after {seen.drained_s}", flush=True)
        bad += _told(name, history, violations, seen.logs, wanted.found)
    return int(bad > 0)


def _told(name: str, history: History, violations: list[str], logs: dict[str, str], found: Path) -> bool:
    """Print what was violated, and keep the history; whether anything was."""
    for one in violations:
        print(f"  VIOLATION {one}", flush=True)
    if violations:
        found.mkdir(exist_ok=True)
        save(history, found / f"{name}.json", violations)
        _keep_logs(logs, found / f"{name}.log")
    return bool(violations)


def _slot(wanted: argparse.Namespace) -> int:
    """One of several at once: a seed a line comes in, a verdict a line goes out."""
    # Its end is that of its input, also where its starter was killed.
    without = frozenset(wanted.without)
    with open_slot() as slot:
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            seed, began, used = int(line), time.monotonic(), os.times()
            history = generate(seed, without)
            violations, seen = slot.judged(history)
            now = os.times()
            took, cpu = time.monotonic() - began, sum(now[:4]) - sum(used[:4])
            logs = seen.logs if violations else {}
            said = {
                "logs": logs,
                "seed": seed,
                "violations": violations,
                "took_s": took,
                "cpu_s": cpu,
                "jobs": len(seen.jobs),
            }
            print(
                json.dumps({**said, "nodes": len(seen.nodes), "drained_s": seen.drained_s, "did": seen.did}),
                flush=True,
            )
    return 0


class _Campaign:
    """Histories from seeds, several at once, in processes of their own; it goes on after one that failed."""

    def __init__(self, seeds: Sequence[int], wanted: argparse.Namespace) -> None:
        self._left = iter(seeds)
        self._of = len(seeds)
        self._wanted = wanted
        self._without = frozenset(wanted.without)
        self._total = Counter[str]()
        self._bad: list[int] = []
        self._slots: list[subprocess.Popen[str]] = []
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._said_at = self._began
        self._over = False

    def run(self) -> int:
        """Until all are done, or it is interrupted; then it says how it went."""
        self._wanted.found.mkdir(exist_ok=True)
        threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(self._wanted.jobs)]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            self._over = True
            for slot in self._slots:
                if slot.poll() is None:
                    slot.terminate()
            for slot in self._slots:
                slot.wait(60)
            print(json.dumps(dict(self._total)))
            print(f"{self._progress()}: {sorted(self._bad)}", flush=True)
        return int(bool(self._bad))

    def _serve(self) -> None:
        """The histories of one slot, one after the other; one that dies is replaced."""
        slot = self._slot()
        while (seed := self._next()) is not None:
            try:
                print(seed, file=slot.stdin, flush=True)
                line = slot.stdout.readline() if slot.stdout is not None else ""
            except OSError:
                line = ""
            if line:
                self._judged(seed, json.loads(line))
            elif not self._over:
                self._failed(seed, ["the runner died"], {})
                slot = self._slot()
        if slot.stdin is not None:
            slot.stdin.close()
        slot.wait(60)

    def _slot(self) -> subprocess.Popen[str]:
        without = [word for name in self._wanted.without for word in ("--without", name)]
        command = [sys.executable, str(Path(__file__).parent), "slot", *without]
        slot = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self._slots.append(slot)
        assert slot.stdout is not None
        slot.stdout.readline()
        return slot

    def _next(self) -> int | None:
        with self._lock:
            return None if self._over else next(self._left, None)

    def _judged(self, seed: int, said: dict[str, Any]) -> None:
        with self._lock:
            self._total.update({"histories": 1, "jobs": said["jobs"], "nodes": said["nodes"], **said["did"]})
        if said["violations"]:
            self._failed(seed, said["violations"], said["logs"])
        with self._lock:
            if (now := time.monotonic()) - self._said_at >= _SAID_EVERY_S:
                self._said_at = now
                print(self._progress(), flush=True)

    def _failed(self, seed: int, violations: list[str], logs: dict[str, str]) -> None:
        found = self._wanted.found
        save(generate(seed, self._without), found / f"{seed}.json", violations)
        _keep_logs(logs, found / f"{seed}.log")
        with self._lock:
            self._bad.append(seed)
            print(f"seed {seed}:", *violations[:5], sep="\n   ", flush=True)

    def _progress(self) -> str:
        count, minutes = self._total["histories"], (time.monotonic() - self._began) / 60
        rate = f"{minutes:.1f} minutes, {count / minutes:.0f} a minute"
        return f"{count} of {self._of} histories in {rate}, {len(self._bad)} with a violation"
