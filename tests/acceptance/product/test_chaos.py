"""The attack by histories runs, says what is wrong, and makes a failing history small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from support.suite import warm_starts

from queue_workflows.testing.servers import QwfServer

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"
sys.path.append(str(SCRIPTS))

from chaos import running  # noqa: E402
from chaos.behaviours import BEHAVIOURS  # noqa: E402
from chaos.generator import generate  # noqa: E402
from chaos.histories import History, load, save  # noqa: E402
from chaos.ledger import Line  # noqa: E402
from chaos.model import judge  # noqa: E402
from chaos.observing import Observation, tracebacks  # noqa: E402
from chaos.scenarios import history, jobs, worker  # noqa: E402
from chaos.shrinking import shrunk  # noqa: E402

# What is known to be open is found again and again by an attack that may take its time;
# see docs/how-to/run-chaos.md.
KNOWN = sorted({one.known for one in BEHAVIOURS.values() if one.known})


def chaos(*arguments: str) -> subprocess.CompletedProcess[str]:
    return warm_starts.run(
        [sys.executable, str(SCRIPTS / "chaos" / "__main__.py"), *arguments],
        os.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout_s=500,
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
# No eight seeds in a row draw more of what may go wrong than these.
@pytest.mark.parametrize(("first", "last"), [(863, 870), pytest.param(1, 24, marks=pytest.mark.nightly)])
def test_a_short_attack_breaks_no_promise(tmp_path: Path, first: int, last: int) -> None:
    """Some histories, each from its seed: nothing is lost, doubled, exceeded or left.

    Two at a time, for each that goes on beside others has a server and a launcher of its own.
    """
    without = [word for name in KNOWN for word in ("--without", name)]
    seeds = ("--first-seed", str(first), "--histories", str(last - first + 1), "--jobs", "2")
    ran = chaos("run", *seeds, "--found", str(tmp_path), *without)
    assert (ran.returncode, ran.stdout.splitlines()[-1:]) != (0, []), ran.stderr
    assert ran.returncode == 0, ran.stdout


def test_a_seed_is_a_history() -> None:
    """The same seed makes the same history, another one another; each step has a time and a name."""
    assert generate(7) == generate(7) != generate(8)
    assert all({"at", "do"} <= step.keys() for seed in range(50) for step in generate(seed).steps)


def test_what_is_known_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """No history without a known defect has a task that shows it."""
    marked = {"kills_itself", "hangs_asleep", "leaves_a_child"}
    for name in marked:
        monkeypatch.setitem(BEHAVIOURS, name, replace(BEHAVIOURS[name], known="here"))

    def drawn(*without: str) -> set[str]:
        return {
            job["task"] for seed in range(100) for job in generate(seed, frozenset(without)).jobs().values()
        }

    assert marked <= drawn()
    assert not marked & drawn("here")
    assert len(BEHAVIOURS) >= 60


def test_a_history_survives_its_file(tmp_path: Path) -> None:
    """What is replayed is what failed."""
    made = generate(3)
    save(made, tmp_path / "3.json", ["lost: job j1"])
    assert load(tmp_path / "3.json") == made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("run", "--histories", "0"), "at least 1"),
        (("run", "--seed", "x"), "invalid int"),
        (("replay", "/nowhere/at.all"), "is no history"),
        (("scenarios", "nothing"), "there is "),
        ((), "COMMAND"),
    ],
)
def test_wrong_arguments_are_refused(arguments: tuple[str, ...], word: str) -> None:
    """With status 2 and a word about it."""
    ran = chaos(*arguments)
    assert (ran.returncode, word in ran.stderr) == (2, True), ran.stderr


def seen_of(made: History, **more: Any) -> Observation:
    """Two jobs that did well."""
    rows, moves, lines, committed = [], [], [], {}
    for number, name in enumerate(made.jobs(), 1):
        committed[name] = number
        row = {
            "id": number,
            "task_name": "good",
            "status": "completed",
            "generation": 1,
            "attempt": 1,
            "failures": 0,
        }
        row |= {
            "crash_count": 0,
            "suspect": False,
            "result": {"attempt": 1},
            "dedupe_key": None,
            "limit_key": "k1",
        }
        row |= {
            "host_lock": None,
            "hold_reason": None,
            "schedule_name": None,
            "tick_at": None,
            "errors": [],
            "args": {},
        }
        rows.append(row)
        move = {"family": "ingest", "job_id": number, "was": "running", "now": "completed"}
        moves.append({**move, "generation": 1, "attempt": 1, "was_attempt": 1, "claimed_by": "w", "at": 0.0})
        begin = number * 1000
        lines += [
            Line("B", "ingest", number, 1, 1, 7, begin, "good"),
            Line("E", "ingest", number, 1, 1, 7, begin + 500, ""),
        ]
    return Observation(
        jobs=rows, moves=moves, lines=lines, committed=committed, drained_s=1.0, bound_s=9.0, **more
    )


def _missing(seen: Observation) -> None:
    seen.jobs.pop()


def _twice(seen: Observation) -> None:
    seen.moves.append(dict(seen.moves[0]))


def _stale(seen: Observation) -> None:
    seen.jobs[0]["result"] = {"attempt": 2}


def _blamed(seen: Observation) -> None:
    seen.jobs[0] |= {"status": "failed", "failures": 1}


def _at_once(seen: Observation) -> None:
    seen.lines[1] = seen.lines[1]._replace(at_ns=9000)


def _for_ever(seen: Observation) -> None:
    seen.lines += [Line("B", "ingest", 1, number, 1, 7, number * 100_000, "good") for number in range(2, 60)]


def _left_out(seen: Observation) -> None:
    for second in (0, 2):
        seen.committed[f"tick {second}"] = 100 + second
        tick = {"id": 100 + second, "schedule_name": "tick", "tick_at": f"2026-01-01 00:00:0{second}+00"}
        seen.jobs.append({**seen.jobs[0], **tick, "task_name": "elsewhere"})


WRONG = {
    "tick left out": _left_out,
    "lost": _missing,
    "ended twice": _twice,
    "stale result": _stale,
    "outcome": _blamed,
    "exceeded": _at_once,
    "runs for ever": _for_ever,
    "not drained": lambda seen: setattr(seen, "drained_s", None),
    "left running": lambda seen: seen.left_processes.append("1 sleep"),
    "does not stop": lambda seen: seen.unstopped.append("r1"),
    "left slots": lambda seen: seen.slots.append({"limit_key": "k1"}),
    "left sessions": lambda seen: seen.sessions.append({"application_name": "qwf:worker"}),
    "status": lambda seen: seen.ends.append(("r1", "worker", 1 << 8)),
    "traceback": lambda seen: seen.tracebacks.append("r1: of ours"),
}


@pytest.mark.parametrize("wrong", [None, *WRONG])
def test_the_model_sees_what_is_wrong(wrong: str | None) -> None:
    """Each promise that is broken is called by its name, and what is in order is called nothing."""
    made = history(worker("r1"), jobs(0.0, 2), {"at": 0.0, "do": "limit", "key": "k1", "cap": 1})
    made.schedules.append({"name": "tick", "cron": "* * * * * *"})
    seen = seen_of(made)
    if wrong is not None:
        WRONG[wrong](seen)
    kinds = {one.split(":", 1)[0] for one in judge(made, seen)}
    assert (wrong in kinds) if wrong else not kinds, kinds


@pytest.mark.parametrize("executes", [True, False])
def test_an_interpreter_that_is_interrupted_before_our_first_line_is_excused(executes: bool) -> None:
    """It ends with 1, as Python does; a role that was forked has its handlers by then, and is not excused."""
    interrupt = {"at": 0.0, "do": "signal", "role": "r1", "signal": 2}
    made = history(worker("r1", executes=executes), jobs(0.0, 1), interrupt)
    seen = seen_of(made)
    WRONG["status"](seen)
    assert len(judge(made, seen)) == (0 if executes else 1)


@pytest.mark.parametrize(
    ("file", "function", "last", "is_ours"),
    [
        ("__init__.py", "<module>", "KeyboardInterrupt", False),
        ("cli/entry_points.py", "<module>", "KeyboardInterrupt", False),
        ("cli/entry_points.py", "main", "KeyboardInterrupt", True),
        ("cli/main.py", "<module>", "KeyboardInterrupt", True),
        ("__init__.py", "<module>", "ImportError: typing", True),
    ],
)
def test_what_python_says_of_an_interrupt_before_our_first_line_is_excused(
    file: str, function: str, last: str, is_ours: bool
) -> None:
    """While it imports what holds that line nobody can have silenced it; any later one is seen."""
    said = f"""Traceback (most recent call last):
  File "<frozen runpy>", line 112, in _get_module_details
  File "/venv/src/queue_workflows/{file}", line 9, in {function}
    from typing import Any
  File "/usr/lib/python3.11/typing.py", line 1294, in __getattr__
    def __getattr__(self, attr):

{last}
qwf: terminated
"""
    assert bool(tracebacks(said)) is is_ours


@pytest.mark.parametrize("begin", [500, 5000])
def test_a_daemon_begun_while_the_environment_was_emptied_is_excused(begin: int) -> None:
    """It bears no mark by which a worker could find it; one that was begun later does."""
    made = history(worker("r1"), jobs(0.0, 2))
    seen = seen_of(made)
    wiped, left = (line for line in seen.lines if line.what == "B")
    seen.lines[0] = wiped._replace(extra="changes_environment")
    seen.lines[2] = left._replace(extra="leaves_a_daemon", at_ns=begin)
    seen.lines[3] = seen.lines[3]._replace(at_ns=6000)
    WRONG["left running"](seen)
    assert len(judge(made, seen)) == (0 if begin == 500 else 1)


def test_the_bound_is_longer_on_a_crowded_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """By as much as more want its processors than histories at once do; never shorter."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    found = []
    for waiting in (0.5, 6.0, 48.0):
        monkeypatch.setattr("os.getloadavg", lambda waiting=waiting: (waiting, 1.0, 1.0))
        found.append(running._crowding())
    assert found == [1.0, 1.0, 8.0]


def test_the_lease_is_longer_on_a_crowded_machine_and_so_is_the_bound() -> None:
    """A worker that gets no processor to renew with ends itself, and its good job would be blamed."""
    made = generate(11)
    usual, crowded = running.settings_of(made, 1.0), running.settings_of(made, 3.0)
    assert float(crowded["QWF_LEASE_S"]) == pytest.approx(3 * float(usual["QWF_LEASE_S"]))
    assert {**crowded, "QWF_LEASE_S": ""} == {**usual, "QWF_LEASE_S": ""}
    killing = history(worker("r1"), jobs(0.0, 3, "kills_itself"))
    assert running.bound_of(killing, crowded) > running.bound_of(killing, usual)


class Attempt:
    """What a task is given of the engine; when it waits, the database may be used again."""

    family, id, attempt = "ingest", 1, 1

    def __init__(self, allow: Callable[[bool], object]) -> None:
        self._allow = allow

    def sleep(self, _seconds: float) -> None:
        """Wait."""
        self._allow(True)


@pytest.mark.parametrize("task", ["enqueues", "enqueues_and_rolls_back"])
def test_a_task_that_asks_the_database_waits_until_it_answers(
    qwf_server: QwfServer, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    """A history may take all connections away, and a good task is not to fail for that."""
    server = psycopg.connect(qwf_server.dsn("postgres"), autocommit=True)
    with qwf_server.database() as dsn, server as operator:
        name = sql.Identifier(conninfo_to_dict(dsn)["dbname"])

        def allow(allowed: bool) -> None:
            operator.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}").format(name, allowed))

        monkeypatch.setattr("chaos.tasks.contexts.dsn", lambda: dsn)
        allow(False)
        assert BEHAVIOURS[task].run({}, Attempt(allow)) == {"attempt": 1}


def test_a_failing_history_becomes_small() -> None:
    """What is left is what makes it fail."""
    made = generate(11)
    guilty = sorted(made.jobs())[-1]

    def judged(candidate: History) -> tuple[list[str], None]:
        return (["lost: a job"] if guilty in candidate.jobs() else []), None

    small, violations = shrunk(made, ["lost: another"], judged, times=1, say=lambda _text: None)
    assert (list(small.jobs()), len(small.steps), violations) == ([guilty], 1, ["lost: a job"])
    assert json.dumps(small.steps)
