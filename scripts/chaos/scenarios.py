"""Histories that are written down and not drawn: what needs its environment changed, or a certain order."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from chaos.histories import History

Step = dict[str, Any]
SETTINGS: Final = {
    "QWF_LEASE_S": "2",
    "QWF_RENEW_S": "0.4",
    "QWF_POLL_S": "0.3",
    "QWF_GRACE_S": "2",
    "QWF_CANCEL_GRACE_S": "0.4",
    "QWF_STALE_HEARTBEAT_S": "4",
    "QWF_MAX_ATTEMPTS": "2",
    "QWF_BACKOFF_S": "0.05",
    "QWF_BACKOFF_JITTER": "0.05",
    "QWF_MAX_CRASHES": "3",
    "QWF_CONNECT_TIMEOUT_S": "2",
    "QWF_LOCK_TIMEOUT_S": "1",
    "QWF_CLIENT_CONNECTION_CHECK_INTERVAL_S": "1",
}
FAKETIME: Final = "/usr/lib/*/faketime/libfaketime.so.1"
_STATEMENTS: Final = 40


def worker(name: str, at: float = 0.0, *options: str, via: str = "proxy", **more: Any) -> Step:
    """A worker of the queue `fetch`."""
    return role(name, at, "worker", "--queue", "fetch", *(options or ("--concurrency", "3")), via=via, **more)


def role(
    name: str,
    at: float,
    *command: str,
    via: str = "socket",
    host: str = "h1",
    executes: bool = False,
    **more: Any,
) -> Step:
    """Any role."""
    start = {"at": at, "do": "start", "role": name, "command": list(command), "host": host, "via": via}
    return {**start, "executes": executes, **more}


def jobs(at: float, count: int, task: str = "good", via: str = "socket", **args: Any) -> Step:
    """So many jobs of a task, each in a transaction of its own."""
    names = [f"j{at}-{task}-{number}" for number in range(count)]
    made = [
        {"name": name, "task": task, "args": args, "max_attempts": 2, "backoff_s": 0.05} for name in names
    ]
    return {"at": at, "do": "enqueue", "jobs": made, "via": via}


def history(*steps: Step, **settings: str) -> History:
    """Of these steps, in the order of time."""
    return History(0, {**SETTINGS, **settings}, sorted(steps, key=lambda step: float(step["at"])))


def black_hole() -> Iterator[History]:
    """The network swallows everything and acknowledges it, for longer than a lease, under load."""
    for seconds in (1.0, 3.0, 7.0):
        swallow = {"at": 1.5, "do": "fault", "role": "*", "what": {"swallow": True}, "takes_s": seconds}
        again = {"at": 1.5 + seconds, "do": "fault", "role": "*", "what": {"swallow": False}}
        load = {"at": 0.3, "do": "many", "task": "good", "count": 300, "args": {"s": 0.01}}
        yield history(worker("r1"), worker("r2", 0, "--concurrency", "1"), load, swallow, again, jobs(1.6, 5))


def listeners() -> Iterator[History]:
    """Every session that has just said LISTEN is ended, again and again, while jobs come one by one."""
    ends = {"at": 0.5, "do": "listeners", "for_s": 4.0, "every_s": 0.02}
    come = [jobs(0.5 + number * 0.3, 1, "quick") for number in range(12)]
    yield history(worker("r1"), worker("r2", via="socket"), ends, *come, QWF_POLL_S="1")


def lost_answers() -> Iterator[History]:
    """The answer to each statement in turn is lost, first of all before its commit, then after it."""
    for at in ("unread", "unanswered", "unsent"):
        for number in range(1, _STATEMENTS + 1):
            cut = {
                "at": 0.0,
                "do": "fault",
                "role": "r1",
                "what": {"cut_after": number, "cut_at": at, "cuts": 2},
            }
            start = worker("r1", 0, "--concurrency", "3" if number % 2 else "1")
            yield history(
                start,
                cut,
                jobs(0.0, 4),
                jobs(0.4, 4, "fails_at_first"),
                jobs(0.8, 2, "in_a_window", key="w1", max=1),
            )


def clocks() -> Iterator[History]:
    """A worker whose wall clock is an hour off, jumps, or runs at another pace; one of another boot."""
    found = sorted(Path("/").glob(FAKETIME[1:]))
    faked = [{"FAKETIME": off} for off in ("-3600s", "+3600s", "+0 x3", "+0 x0.3")]
    for environ in faked if found else []:
        environ |= {
            "LD_PRELOAD": str(found[0]),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_NO_CACHE": "1",
            # The library takes the kernel's timer, which is of the boot's clock, for one of the wall's.
            "QWF_DEADMAN": "off",
        }
        yield _on_a_clock(environ=environ)
    if found:
        # Read anew at each look at the clock, from the directory where the role works.
        environ = {**environ, "FAKETIME_TIMESTAMP_FILE": "clock"}
        del environ["FAKETIME"]
        yield _on_a_clock(*_jumps(), environ=environ)
    other = ["unshare", "--time", "--monotonic", "100000", "--boottime", "500000"]
    if (
        shutil.which("unshare")
        and subprocess.run([*other, "true"], check=False, capture_output=True).returncode == 0
    ):
        yield _on_a_clock(prefix=other)


def _jumps() -> Iterator[Step]:
    """An hour on, two back, a day on, and right again, some of it while jobs run."""
    for at, off in (
        (-1, "+0s"),
        (1.5, "+3600s"),
        (2.5, "-3600s"),
        (3.5, "+86400s"),
        (6.0, "-90s"),
        (9.0, "+0s"),
    ):
        yield {"at": at, "do": "clock", "off": off}


def _on_a_clock(*steps: Step, **more: Any) -> History:
    start = worker("r1", 0, "--concurrency", "3", executes=True, **more)
    ticks = role("r3", 0, "scheduler", executes=True, **more)
    kill = {"at": 4.0, "do": "signal", "role": "r1", "signal": int(signal.SIGKILL), "takes_s": 10}
    come = [jobs(0, 10, s=0.2), jobs(2, 10, s=0.2), jobs(4, 3, "hangs_politely"), jobs(12, 2)]
    made = history(start, worker("r2", via="socket"), ticks, *come, kill, *steps)
    for step in made.steps:
        for job in step.get("jobs", []):
            job["timeout_s"] = 1.5
    schedule = {
        "name": "tick",
        "cron": "* * * * * *",
        "task_name": "quick",
        "queue": "fetch",
        "catch_up": "all",
    }
    return History(0, made.settings, made.steps, [schedule])


def janitors() -> Iterator[History]:
    """Two janitors and workers that are killed while they hold locks of the machine."""
    locked = [{**step, "host_lock": "camera"} for step in jobs(0.0, 8, s=0.2)["jobs"]]
    held = {"at": 0.0, "do": "enqueue", "jobs": locked, "via": "socket"}
    both = [
        role(name, 0, "janitor", "--every", "0.1", executes=True, environ={"CHAOS_RESOURCES": "1"})
        for name in ("r3", "r4")
    ]
    kills = [
        {"at": at, "do": "signal", "role": name, "signal": 9}
        for at in (0.6, 1.2, 1.8, 2.4)
        for name in ("r1", "r4")
    ]
    own = jobs(0.2, 6, "takes_a_lock_of_its_own", lock="a")
    yield history(worker("r1"), worker("r2"), *both, held, own, *kills, QWF_MAX_CRASHES="9")


def long_hooks() -> Iterator[History]:
    """Hooks of seconds and of minutes, in the foreground and behind it, while both supervisors are killed."""
    yield _killed_hooks(4, 2, kills=((4.0, "r1"), (6.5, "r2"), (9.0, "r1"), (9.2, "r2")))
    yield _killed_hooks(70, 30, kills=((20.0, "r1"), (45.0, "r2"), (60.0, "r1"), (60.2, "r2")))


def _killed_hooks(first_s: int, last_s: int, *, kills: Iterable[tuple[float, str]]) -> History:
    scripts = {
        "config.json": '{"x-bg-at-seal": "kill"}',
        "on_Page__10_first.sh": f'#!/bin/sh\nsleep {first_s}\necho \'{{"type": "Result", "n": 1}}\'\n',
        "on_Page__11_beside.bg.sh": "#!/bin/sh\ntrap 'exit 0' TERM\nwhile :; do sleep 0.2; done\n",
        "on_Page__50_last.sh": f'#!/bin/sh\nsleep {last_s}\necho \'{{"type": "Result", "n": 2}}\'\n',
    }
    starts = [
        role(name, 0, "supervisor", "--worker", "hooks:1", "--no-spare", host="h1") for name in ("r1", "r2")
    ]
    ends = [{"at": at, "do": "signal", "role": name, "signal": 9} for at, name in kills]
    takes_s = 40 + 5 * (first_s + last_s)
    run = {"at": 0.2, "do": "hooks", "name": "w0", "scripts": scripts, "takes_s": takes_s}
    return history(*starts, role("r3", 0, "orchestrator"), run, *ends, QWF_MAX_CRASHES="9")


def recycling() -> Iterator[History]:
    """Workers that start afresh for want of memory after nearly every job, and are killed meanwhile."""
    for at_once in ("1", "3"):
        start = worker("r1", 0, "--concurrency", at_once, "--recycle-mb", "1")
        kills = [{"at": at, "do": "signal", "role": "r1", "signal": 9, "takes_s": 10} for at in (2.0, 3.1)]
        yield history(
            start, jobs(0.0, 6, "returns_much"), jobs(1.0, 6, "leaves_a_thread"), *kills, QWF_MAX_CRASHES="9"
        )


def pinned_snapshot() -> Iterator[History]:
    """A transaction keeps every dead row while thousands of jobs go through: for seconds, for ten minutes."""
    for for_s, loads, every_s in ((20.0, 3, 1), (600.0, 30, 20)):
        load = [
            {"at": 0.5 + number * every_s, "do": "many", "task": "quick", "count": 4500 // loads}
            for number in range(loads)
        ]
        pin = {"at": 0.2, "do": "pin", "for_s": for_s, "takes_s": 20}
        yield history(worker("r1", via="socket"), worker("r2", via="socket"), pin, *load)


SCENARIOS: Final[dict[str, Callable[[], Iterator[History]]]] = {
    "black-hole": black_hole,
    "listeners": listeners,
    "lost-answers": lost_answers,
    "clocks": clocks,
    "janitors": janitors,
    "long-hooks": long_hooks,
    "recycling": recycling,
    "pinned-snapshot": pinned_snapshot,
}
