"""What it costs to run a hook's process so that nothing of it can stay behind, beside starting it bare."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final

import psutil

from bench.harness.figures import Figure, interleaved, percentile, ratio
from bench.harness.measuring import Bench
from queue_workflows.hooks.script.process import HookCommand, HookStop, run_hook
from queue_workflows.host.commands.client import Spawner

SCRIPTS: Final = {
    "a shell script": "#!/bin/sh\nexit 0\n",
    "a Python script": f'#!{sys.executable} -IS\nprint(\'{{"type": "Result"}}\')\n',
}
TARGET: Final = 3.0
AT_ONCE: Final = 60
_ENVIRONMENT: Final = {"PATH": "/usr/bin:/bin"}
_PATIENCE_S: Final = 300.0


def process(bench: Bench) -> Sequence[Figure]:
    """One script by `run_hook` and by `posix_spawn` and wait, in blocks that take turns."""
    figures = []
    with _place() as place, Spawner() as spawner:
        for name, text in SCRIPTS.items():
            script = executable(place / "hook", text)
            command = _command(script, place)
            run_hook(command, spawner=spawner)
            each = bench.much(200, 5)
            seen = interleaved(
                bench.much(9, 1),
                {
                    "run_hook": _median_ms(each, lambda command=command: run_hook(command, spawner=spawner)),
                    "bare": _median_ms(each, lambda script=script: bare(script)),
                },
                bench.say,
            )
            ours, base = seen["run_hook"], seen["bare"]
            figures.append(
                Figure(
                    *("process", f"{name}, run_hook", median(ours), "ms", "posix_spawn and wait"),
                    *(median(base), ratio(ours, base), TARGET if name == "a shell script" else None, True),
                )
            )
    return figures


def at_once(bench: Bench) -> Sequence[Figure]:
    """What so many hooks that run for long cost while they do: memory, and how soon all of them end."""
    bench.say(f"{AT_ONCE} hooks")
    with _place() as place, Spawner() as spawner, ThreadPoolExecutor(AT_ONCE) as pool:
        us = psutil.Process()
        before, stops = us.memory_info().rss, [HookStop() for _ in range(AT_ONCE)]
        script = executable(place / "hook", "#!/bin/sh\nexec sleep 3600\n")
        hooks = [
            pool.submit(run_hook, _command(script, place, number), stop=stop, spawner=spawner)
            for number, stop in enumerate(stops)
        ]
        keepers = _once_all_sleep(us)
        held = sum(keeper.memory_full_info().uss for keeper in keepers) + us.memory_info().rss - before
        began = time.monotonic()
        for stop in stops:
            stop.request("enough")
        for hook in hooks:
            hook.result()
        ended = (time.monotonic() - began) * 1000
    return [
        Figure("at-once", f"memory of {AT_ONCE} hooks at once, their own apart", held / 1e6, "MB"),
        Figure("at-once", f"{AT_ONCE} of them ended by SIGTERM", ended, "ms"),
    ]


def executable(path: Path, text: str) -> Path:
    """A script that can be run."""
    path.write_text(text)
    path.chmod(0o755)
    return path


def bare(script: Path) -> None:
    """The least that starting a program and waiting for it can cost from Python."""
    null = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    pid = os.posix_spawn(script, [str(script)], _ENVIRONMENT, file_actions=null)
    os.waitpid(pid, 0)


@contextmanager
def _place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="qwf-bench-") as directory:
        yield Path(directory)


def _command(script: Path, place: Path, number: int = 0) -> HookCommand:
    return HookCommand(
        [str(script)], _ENVIRONMENT, place, place / f"{number}.out", place / f"{number}.err", timeout_s=3600
    )


def _median_ms(times: int, run: Callable[[], object]) -> Callable[[], float]:
    def block() -> float:
        taken = []
        for _ in range(times):
            began = time.perf_counter()
            run()
            taken.append((time.perf_counter() - began) * 1000)
        return percentile(taken, 0.5)

    return block


def _once_all_sleep(us: psutil.Process) -> list[psutil.Process]:
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        below = us.children(recursive=True)
        if sum(one.name() == "sleep" for one in below) == AT_ONCE:
            return [one for one in below if one.name() != "sleep"]
        time.sleep(0.05)
    raise SystemExit("the hooks did not start")
