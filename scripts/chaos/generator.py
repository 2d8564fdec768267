"""From a seed to a history: a pure function, so that a seed is all that has to be told of a failure."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from typing import Any, Final

from chaos import additions
from chaos.behaviours import BEHAVIOURS
from chaos.histories import History
from chaos.tasks import MODULES

assert MODULES  # importing them fills the table

Step = dict[str, Any]
# The names of defects that are open; a run may leave out what is known to fail by one of them.
ORDERED: Final = (0, 1, 2, 69, 73, 75, 76, 77, 78, 79, 80, 130, 141, 143)
EXCEPTIONS: Final = (
    *(
        "ValueError",
        "KeyError",
        "OSError",
        "MemoryError",
        "RecursionError",
        "StopIteration",
        "AssertionError",
    ),
    *("UnicodeDecodeError", "TimeoutError", "ConnectionError", "NotImplementedError", "ExceptionGroup"),
    *("SystemExit", "KeyboardInterrupt", "GeneratorExit", "BaseException", "StopAsyncIteration", "Warning"),
)
SIGNALS: Final = (
    *(
        signal.SIGKILL,
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGABRT,
        signal.SIGQUIT,
    ),
    *(
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGALRM,
        signal.SIGTRAP,
        signal.SIGSYS,
        signal.SIGXCPU,
        signal.SIGVTALRM,
    ),
)
KEYS: Final = {"k1": 1, "k2": 2, "k3": 3}
CRONS: Final = ("* * * * * *", "*/2 * * * * *")


def _args_of(name: str, dice: random.Random) -> dict[str, Any]:
    make: dict[str, Callable[[], dict[str, Any]]] = {
        "good": lambda: {"s": round(dice.choice([0, 0.02, 0.05, 0.2, 0.6]), 3)},
        "good_async": lambda: {"s": round(dice.choice([0, 0.02, 0.3]), 3)},
        "exits_as_ordered": lambda: {"status": dice.choice(ORDERED)},
        "exits_otherwise": lambda: {"status": dice.choice([s for s in range(256) if s not in ORDERED])},
        "kills_itself": lambda: {"signal": int(dice.choice(SIGNALS))},
        "raises": lambda: {"kind": dice.choice(EXCEPTIONS)},
        "returns_evil": lambda: {"which": dice.choice(["dict", "int", "str"])},
        "returns_no_json": lambda: {
            "which": dice.choice(
                ["object", "nan", "nul", "surrogate", "loop", "deep", "huge", "number", "key", "bytes", "set"]
            )
        },
        "leaves_a_thread": lambda: {"daemon": dice.random() < 0.5},
        "closes_descriptors": lambda: {"first": dice.choice([0, 3, 8])},
        "replaces_signal_handlers": lambda: {"ignore": dice.random() < 0.5},
        "limits_resources": lambda: dice.choice(
            [
                {"which": "RLIMIT_NOFILE", "value": 8},
                {"which": "RLIMIT_NOFILE", "value": 0},
                {"which": "RLIMIT_FSIZE", "value": 0},
                {"which": "RLIMIT_CORE", "value": 0},
                {"which": "RLIMIT_STACK", "value": 65536},
                {"which": "RLIMIT_CPU", "value": 1},
            ]
        ),
        "replaces_time": lambda: {
            "names": dice.sample(["time", "monotonic", "perf_counter"], dice.randint(1, 3)),
            "as": dice.choice(["still", "ahead", "nan"]),
        },
        "raises_later_in_its_thread": lambda: {"kind": dice.choice(["exit", "value"])},
        "in_a_window": lambda: dict(zip(("key", "max"), dice.choice([("w1", 1), ("w2", 2)]), strict=True)),
        "dies_in_a_window": lambda: dict(
            zip(("key", "max"), dice.choice([("w1", 1), ("w2", 2)]), strict=True)
        ),
        "takes_a_host_lock": lambda: {"lock": dice.choice(["camera", "port"])},
        "takes_a_lock_of_its_own": lambda: {"lock": dice.choice(["a", "b"])},
    }
    return make[name]() if name in make else {}


class _Maker:
    def __init__(self, seed: int, without: frozenset[str]) -> None:
        self.dice = random.Random(seed)
        self.seed, self.without = seed, without
        self.steps: list[Step] = []
        self.jobs = 0
        self.roles: list[str] = []
        self.horizon = self.dice.choice([1.0, 2.0, 3.0])
        # A few kinds of trouble in each history, so that they meet in every combination, and each meets calm.
        every = sorted(name for name, one in BEHAVIOURS.items() if not one.known or one.known not in without)
        self.bad = self.dice.sample(
            [name for name in every if name not in ("good", "quick")], self.dice.randint(0, 4)
        )
        self.lease = self.dice.choice([1.5, 2.0])

    def at(self) -> float:
        return round(self.dice.uniform(0, self.horizon), 2)

    def add(self, at: float, do: str, **what: Any) -> None:
        self.steps.append({"at": at, "do": do, **what})

    def behaviour(self, *, node: bool = False) -> str:
        bad = [name for name in self.bad if BEHAVIOURS[name].node or not node]
        if bad and self.dice.random() < 0.35:
            return self.dice.choice(bad)
        return self.dice.choice(["good", "good", "quick", "good_async"])

    def job(self) -> dict[str, Any]:
        self.jobs += 1
        dice, name = self.dice, self.behaviour()
        one = BEHAVIOURS[name]
        job: dict[str, Any] = {"name": f"j{self.jobs}", "task": name, "args": _args_of(name, dice)}
        # Said of each job: the settings of the roles are not those of who enqueues.
        job |= {"max_attempts": 2, "backoff_s": 0.05}
        if dice.random() < 0.25:
            job["limit_key"] = dice.choice(sorted(KEYS))
        elif dice.random() < 0.1:
            job["exclusive"] = "account"
        if dice.random() < 0.1:
            job["host_lock"] = dice.choice(["camera", "elsewhere:camera"])
        if dice.random() < 0.2:
            job["priority"] = dice.choice([0, 9])
        if dice.random() < 0.15:
            job["dedupe_key"] = f"d{dice.randint(1, 3)}-{name}"
        if dice.random() < 0.1:
            job["delay"] = round(dice.uniform(0.05, 1.0), 2)
        if one.hangs:
            job["timeout_s"] = 0.6
        return job

    def role(self, *command: str, host: str = "h1") -> str:
        name = f"r{len(self.roles) + 1}"
        self.roles.append(name)
        at = 0.0 if len(self.roles) <= 2 else self.at()
        via = "proxy" if self.dice.random() < 0.5 else "socket"
        executes = self.dice.random() < 0.02
        self.add(at, "start", role=name, command=list(command), host=host, via=via, executes=executes)
        return name


def generate(seed: int, without: frozenset[str] = frozenset()) -> History:
    """The history of this seed, without what fails by these known defects."""
    make = _Maker(seed, without)
    dice = make.dice
    for _ in range(dice.choice([1, 1, 2, 2, 3])):
        host, at_once = dice.choice(["h1", "h1", "h2"]), dice.choice(["1", "1", "3", "8"])
        # What starts an interpreter costs as much as ten other histories.
        if dice.random() < 0.04:
            make.role("supervisor", "--worker", f"fetch:2 --concurrency {at_once}", host=host)
        else:
            recycles = ["--recycle-jobs", "3"] if dice.random() < 0.03 else []
            make.role("worker", "--queue", "fetch", "--concurrency", at_once, *recycles, host=host)
    for key, cap in KEYS.items():
        make.add(0.0, "limit", key=key, cap=cap)
    for _ in range(dice.randint(1, 3)):
        jobs = [make.job() for _ in range(dice.choice([1, 3, 6, 12]))]
        via = dice.choice(["socket", "socket", "proxy"])
        make.add(dice.choice([0.0, make.at()]), "enqueue", jobs=jobs, via=via)
    if dice.random() < 0.3:
        _runs(make)
    schedules = []
    if dice.random() < 0.12:
        make.role("scheduler")
        if dice.random() < 0.5:
            make.role("scheduler")
        schedules = [{"name": "tick", "cron": dice.choice(CRONS), "task_name": "quick", "queue": "fetch"}]
        schedules[0]["catch_up"] = "all"
    for _ in range(dice.choice([0, 1, 1, 2, 3, 5])):
        dice.choice(_TROUBLES)(make)
    settings = _settings(make)
    additions.add(make, seed)
    make.steps.sort(key=lambda step: step["at"])
    return History(seed, settings, make.steps, schedules)


def _settings(make: _Maker) -> dict[str, str]:
    dice = make.dice
    return {
        "QWF_LEASE_S": str(make.lease),
        "QWF_RENEW_S": str(dice.choice([0.2, 0.4])),
        "QWF_POLL_S": str(dice.choice([0.1, 0.3])),
        "QWF_GRACE_S": "2",
        "QWF_CANCEL_GRACE_S": "0.4",
        "QWF_STALE_HEARTBEAT_S": "4",
        "QWF_STALL_TIMEOUT_S": "0.6",
        "QWF_MAX_ATTEMPTS": "2",
        "QWF_BACKOFF_S": "0.05",
        "QWF_BACKOFF_JITTER": "0.05",
        "QWF_MAX_CRASHES": "2",
        "QWF_DISPATCH_BACKOFF_S": "0.1",
        "QWF_CONNECT_TIMEOUT_S": "2",
        "QWF_LOCK_TIMEOUT_S": "1",
        "QWF_INGEST_DEFAULT_BUDGET_S": "10",
        "QWF_NODE_DEFAULT_BUDGET_S": "10",
        "QWF_CLIENT_CONNECTION_CHECK_INTERVAL_S": "1",
        **({"QWF_LISTEN": "off"} if dice.random() < 0.1 else {}),
    }


def _runs(make: _Maker) -> None:
    dice = make.dice
    make.role("orchestrator")
    if dice.random() < 0.4:
        make.role("orchestrator")
    for _ in range(dice.choice([1, 1, 2])):
        make.role("worker", "--queue", "cpu", host=dice.choice(["h1", "h2"]))
    for number in range(dice.choice([1, 2, 3])):
        make.add(make.at() / 2, "run", name=f"w{number}", document=_document(make, f"w{number}"))


def _document(make: _Maker, name: str) -> dict[str, Any]:
    dice, nodes = make.dice, []
    for number in range(dice.randint(1, 5)):
        task = make.behaviour(node=True)
        inputs = {key: {"$value": value} for key, value in _args_of(task, dice).items()}
        node: dict[str, Any] = {
            "id": f"n{number}",
            "module": task,
            "inputs": inputs,
            "retry": {"max_attempts": 2, "backoff_s": 0.05},
        }
        if number and dice.random() < 0.8:
            node["depends_on"] = sorted({f"n{dice.randrange(number)}" for _ in range(dice.randint(1, 2))})
        if dice.random() < 0.2:
            node["for_each"] = {"$value": list(range(dice.choice([0, 2, 3])))}
        if dice.random() < 0.15:
            node["when"] = dice.choice(["all_done", "any_success"]) if "depends_on" in node else "all_success"
        if BEHAVIOURS[task].hangs:
            node["timeout_s"] = 0.6
        if dice.random() < 0.15:
            node["limit_key"] = dice.choice(sorted(KEYS))
        nodes.append(node)
    document: dict[str, Any] = {"name": name, "nodes": nodes}
    if dice.random() < 0.3:
        document["on_failure"] = "continue"
    return document


def _kill(make: _Maker) -> None:
    for _ in range(make.dice.randint(1, 3)):
        below = make.dice.random() < 0.7
        make.add(
            make.at(), "signal", role=make.dice.choice(make.roles), signal=int(signal.SIGKILL), below=below
        )


def _ask(make: _Maker) -> None:
    number = make.dice.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    make.add(make.at(), "signal", role=make.dice.choice(make.roles), signal=int(number))


def _freeze(make: _Maker) -> None:
    role, at = make.dice.choice(make.roles), make.at()
    make.add(at, "signal", role=role, signal=int(signal.SIGSTOP))
    until = round(at + make.dice.choice([0.3, 1.0, 3.0]), 2)
    make.add(until, "signal", role=role, signal=int(signal.SIGCONT))


def _sessions(make: _Maker) -> None:
    for _ in range(make.dice.randint(1, 3)):
        make.add(
            make.at(), "terminate", how_many=make.dice.choice([1, 2, 100]), backend=make.dice.random() < 0.7
        )


def _proxy(make: _Maker) -> None:
    dice, at = make.dice, make.at()
    role = dice.choice([*make.roles, "*", "producer"])
    what: dict[str, Any] = dice.choice(
        [
            {"swallow": True},
            {"refuse": True},
            {"delay_s": dice.choice([0.05, 0.3])},
            {"reorder_s": 0.3},
            {"double": True},
            {"trickle": dice.choice([1, 7, 64])},
            {"refuse": True, "swallow": True},
        ]
    )
    make.add(at, "fault", role=role, what=what)
    over = {name: 0 if name in ("delay_s", "reorder_s", "trickle") else False for name in what}
    make.add(round(at + dice.choice([0.2, 1.0, 2.5]), 2), "fault", role=role, what=over)


def _cut(make: _Maker) -> None:
    dice = make.dice
    what = {
        "cut_after": dice.randint(1, 25),
        "cut_at": dice.choice(["unsent", "unanswered", "unread", "unread"]),
        "cuts": dice.choice([1, 1, 3, 8]),
    }
    make.add(make.at(), "fault", role=dice.choice([*make.roles, "*", "producer"]), what=what)


def _operate(make: _Maker) -> None:
    dice, at = make.dice, make.at()
    what = dice.choice(["pause", "off", "cancel", "retry", "limit", "many", "run", "again"])
    if what in ("pause", "off"):
        host = dice.choice(["*", "h1"])
        make.add(at, "control", queue="fetch", host=host, desired=what)
        make.add(round(at + dice.choice([0.3, 1.0]), 2), "control", queue="fetch", host=host, desired="on")
    elif what == "limit":
        key = dice.choice(sorted(KEYS))
        make.add(at, "limit", key=key, cap=0)
        make.add(round(at + 0.5, 2), "limit", key=key, cap=KEYS[key])
    elif what in ("cancel", "retry") and make.jobs:
        make.add(at, what, job=f"j{dice.randint(1, make.jobs)}")
    elif what == "many":
        for number in range(make.jobs):
            make.add(at, dice.choice(["cancel", "retry"]), job=f"j{number + 1}")
    elif what == "run":
        make.add(at, "cancel_run", run="w0")
    else:
        make.add(at, "retry_run", run="w0")


def _server(make: _Maker) -> None:
    dice, at = make.dice, make.at()
    what = dice.choice(["immediate", "crash", "timeouts", "lock", "pin", "full"])
    if what in ("immediate", "crash"):
        make.add(at, "server", how=what)
    elif what == "timeouts":
        make.add(at, "statement_timeout", ms=dice.choice([1, 5]))
        make.add(round(at + dice.choice([0.5, 1.5]), 2), "statement_timeout", ms=0)
    elif what == "lock":
        table = dice.choice(["ingest_jobs", "worker_heartbeats", "limit_slots", "workflow_runs"])
        make.add(at, "lock_table", table=table, for_s=dice.choice([0.2, 1.5]))
    elif what == "full":
        make.add(at, "hog", for_s=dice.choice([0.5, 1.5]))
    else:
        make.add(at, "pin", for_s=dice.choice([1.0, 3.0]))


_TROUBLES: Final = (
    _kill,
    _kill,
    _ask,
    _freeze,
    _sessions,
    _proxy,
    _proxy,
    _cut,
    _cut,
    _operate,
    _operate,
    _server,
)
