"""Whatever ends a program that owns something, it gives that back: real signals, real deaths, real locks."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from support.processes import PREAMBLE, UNSHARE, Running, linux_only, pid_namespace, program
from support.workers import until

from queue_workflows.errors import ConfigurationError, ExitCode
from queue_workflows.host.hardening import harden
from queue_workflows.host.locks import HostLock

pytestmark = linux_only

# A program that owns a lock. Each part of its end says its name once.
OWNER = """
import logging
from pathlib import Path
from queue_workflows.host.locks import HostLock
from queue_workflows.host.hardening import TornDown, harden
logging.basicConfig(format="%(message)s", stream=sys.stderr)

def own(body=lambda: time.sleep(600), **options):
    harden(on_teardown=lambda: say("torn down"), **options)
    HostLock("device", directory=Path(os.environ["LOCKS"])).acquire()
    try:
        say("up")
        body()
    finally:
        say("finally")
"""
SPAWN = """
from queue_workflows.host.launcher import spawn
def start(text): return spawn([sys.executable, "-c", text], env=os.environ)
"""


def launcher_of(child: str, then: str = "time.sleep(600)") -> list[str]:
    """A program that spawns another, as a supervisor does."""
    return program(SPAWN + f"CHILD = {PREAMBLE + OWNER + child!r}\nstart(CHILD)\n{then}")


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostLock:
    monkeypatch.setenv("LOCKS", str(tmp_path))
    return HostLock("device", directory=tmp_path)


def is_free(lock: HostLock) -> bool:
    """Nobody has it; asked for a moment."""
    free = lock.try_acquire()
    lock.release()
    return free


# 13, 14: the launcher


def test_a_killed_launcher_takes_its_program_with_it(lock: HostLock) -> None:
    """The kernel tells it by SIGTERM; its `finally` runs and the lock is free."""
    with Running(launcher_of("own()")) as parent:
        assert parent.line() == "up"
        assert not is_free(lock)
        parent.process.kill()
        assert [parent.line(), parent.line(), parent.line()] == ["finally", "torn down", ""]
        until(lambda: is_free(lock))


def test_a_program_without_its_launcher_refuses_to_run(lock: HostLock) -> None:
    """The kernel tells nobody of a death that came first."""
    child = """
told = int(os.environ["QWF_LAUNCHER_PID"])
say("started")
while os.getppid() == told: time.sleep(0.01)
try: own()
except Exception as refused: say(type(refused).__name__, int(refused.exit_code))
"""
    with Running(launcher_of(child)) as parent:
        assert parent.line() == "started"
        parent.process.kill()
        assert [parent.line(), parent.line()] == ["Orphaned 143", ""]
    assert not lock.path.exists()


def test_who_started_it_may_be_named(lock: HostLock) -> None:
    """`os.getppid()` binds it to whoever that is, though it told nothing."""
    text = f"CHILD = {PREAMBLE + OWNER + 'own(launcher_pid=os.getppid())'!r}\n"
    with Running(
        program(text + "subprocess.Popen([sys.executable, '-c', CHILD]); time.sleep(600)")
    ) as parent:
        assert parent.line() == "up"
        parent.process.kill()
        assert [parent.line(), parent.line(), parent.line()] == ["finally", "torn down", ""]


@pid_namespace
def test_a_parent_of_1_is_right_where_that_launched_it(lock: HostLock) -> None:
    """In a container: below the launcher, which is PID 1 there, it runs and is told to end."""
    text = (
        OWNER
        + """
from queue_workflows.host.launcher import run_as_child_if_pid1
run_as_child_if_pid1()
def body():
    say(os.getppid())
    os.kill(1, signal.SIGTERM)
    time.sleep(600)
own(body)
"""
    )
    with Running([*UNSHARE, *program(text)]) as running:
        assert [running.line() for _ in range(4)] == ["up", "1", "finally", "torn down"]
        assert running.status() == ExitCode.TERMINATED
    assert is_free(lock)


@pid_namespace
def test_as_pid_1_it_ends_as_anywhere(lock: HostLock) -> None:
    """Signals that the kernel drops where they have no handler are heard."""
    text = OWNER + "own(lambda: (say(os.getpid()), time.sleep(600)), deadline_s=0.5)"
    with Running([*UNSHARE, *program(text)]) as running:
        assert [running.line() for _ in range(4)] == ["up", "1", "finally", "torn down"]
        assert running.status() == ExitCode.DEADLINE


# 15: the deadline


def test_a_deadline_tears_down_and_says_so(lock: HostLock) -> None:
    """Its own status and its own line; the lock is free."""
    with Running(program(OWNER + "own(deadline_s=0.3)"), stderr=-1) as running:
        assert [running.line() for _ in range(4)] == ["up", "finally", "torn down", ""]
        assert running.status() == ExitCode.DEADLINE == 73
        assert running.process.stderr
        assert running.process.stderr.read() == "the deadline of 0.3 s has passed: tearing down\n"
        running.process.stderr.close()
    assert is_free(lock)


# 16: signals

SIGNALS = {"SIGTERM": 143, "SIGHUP": 143, "SIGINT": 130, "SIGALRM": 73}


@pytest.mark.parametrize("name", SIGNALS)
def test_a_signal_runs_finally_once(lock: HostLock, name: str) -> None:
    """Each of them ends it in the one way, with its own status."""
    with Running(program(OWNER + "own(deadline_s=None)")) as running:
        assert running.line() == "up"
        assert not is_free(lock)
        os.kill(running.pid, signal.Signals[name])
        assert [running.line(), running.line(), running.line()] == ["finally", "torn down", ""]
        assert running.status() == SIGNALS[name]
    assert is_free(lock)


def test_signals_during_the_teardown_do_not_break_it_off(lock: HostLock) -> None:
    """In `finally` and in `on_teardown`, of each kind and also many: the first has decided."""
    text = (
        OWNER
        + """
def storm(where):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGHUP) * 5:
        os.kill(os.getpid(), number)
    time.sleep(0.2)  # the exception is insisted on meanwhile, were it not on its way
    say(where)
harden(on_teardown=lambda: storm("torn down"), deadline_s=None)
try:
    say("up")
    time.sleep(600)
finally:
    storm("finally")
"""
    )
    with Running(program(text)) as running:
        assert running.line() == "up"
        os.kill(running.pid, signal.SIGTERM)
        assert [running.line(), running.line(), running.line()] == ["finally", "torn down", ""]
        assert running.status() == ExitCode.TERMINATED


def test_an_end_that_somebody_swallows_is_insisted_on(lock: HostLock) -> None:
    """A bare `except` somewhere below does not make a program immortal."""
    text = (
        OWNER
        + """
def deaf():
    try:
        say("deaf")
        time.sleep(600)
    except BaseException: pass
    say("swallowed")
    time.sleep(600)
own(deaf)
"""
    )
    with Running(program(text)) as running:
        assert [running.line(), running.line()] == ["up", "deaf"]
        os.kill(running.pid, signal.SIGTERM)
        assert [running.line() for _ in range(4)] == ["swallowed", "finally", "torn down", ""]
        assert running.status() == ExitCode.TERMINATED


def test_a_hung_teardown_is_ended(lock: HostLock) -> None:
    """With the status of its cause, and a line that says so."""
    text = (
        OWNER
        + """
harden(teardown_s=0.3)
HostLock("device", directory=Path(os.environ["LOCKS"])).acquire()
try:
    say("up")
    time.sleep(600)
finally:
    time.sleep(600)
"""
    )
    with Running(program(text)) as running:
        assert running.line() == "up"
        os.kill(running.pid, signal.SIGTERM)
        assert running.status() == ExitCode.TERMINATED
    assert is_free(lock)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["body", "finally"])
def test_a_program_that_python_cannot_reach_is_killed(lock: HostLock, where: str) -> None:
    """C code that never lets go of the GIL lets no thread and no handler run: the kernel's timer ends it."""
    text = (
        OWNER
        + """
def deadlocked():
    library, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(128)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)
def unwound():
    try: time.sleep(600)
    finally: deadlocked()
own(BODY, deadline_s=0.3, teardown_s=0.3)
"""
    )
    with Running(program(text.replace("BODY", "deadlocked" if where == "body" else "unwound"))) as running:
        assert running.line() == "up"
        assert running.status() == -signal.SIGKILL
    assert is_free(lock)


def test_an_end_of_its_own_is_torn_down_too(lock: HostLock) -> None:
    """And as a `with`: there the program goes on, and signals are what they were."""
    text = (
        OWNER
        + """
with harden(on_teardown=lambda: say("torn down")) as hardened: say("up")
say(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, hardened.exit_code)
own(lambda: None)
"""
    )
    with Running(program(text)) as running:
        assert [running.line() for _ in range(7)] == [
            "up", "torn down", "True None", "up", "finally", "torn down", "",
        ]  # fmt: skip
        assert running.status() == 0


def test_a_forked_child_is_not_hardened(lock: HostLock) -> None:
    """It dies of a signal as any program does, and tears nothing of its parent's down."""
    text = (
        OWNER
        + """
def fork():
    if os.fork() == 0:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(600)
    say(os.waitstatus_to_exitcode(os.wait()[1]))
own(fork)
"""
    )
    with Running(program(text)) as running:
        assert [running.line() for _ in range(5)] == ["up", "-15", "finally", "torn down", ""]


def test_what_makes_no_sense_is_refused() -> None:
    """In a thread, and with no number of seconds."""
    with pytest.raises(ConfigurationError, match="deadline_s is 0"):
        harden(deadline_s=0)
    with pytest.raises(ConfigurationError, match="teardown_s is nan"):
        harden(teardown_s=float("nan"))
