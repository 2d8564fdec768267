"""Whatever ends a program that owns something, it gives that back: real signals, real deaths, real locks."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from support.processes.programs import PREAMBLE, UNSHARE, Running, gone, linux_only, pid_namespace, program
from support.processes.workers import running_worker, until

from queue_workflows.cli.operations.run_job import take_locks
from queue_workflows.errors import ConfigurationError, ExitCode, LockHeld
from queue_workflows.host.locks.lock import HostLock
from queue_workflows.host.processes.harden import harden
from queue_workflows.host.processes.tree_by_mark import MARK
from queue_workflows.repositories import IngestJobRepository

pytestmark = linux_only

# A program that owns a lock. Each part of its end says its name once.
OWNER = """
import logging
from pathlib import Path
from queue_workflows.host.locks.lock import HostLock
from queue_workflows.host.processes.harden import TornDown, harden
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
from queue_workflows.host.processes.launcher import spawn
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


def test_what_a_job_starts_ends_with_the_jobs_process(lock: HostLock) -> None:
    """A job's function tells nothing of a launcher, but all below a worker bears a mark."""
    text = f"CHILD = {PREAMBLE + OWNER + 'own()'!r}\n"
    start = "subprocess.Popen([sys.executable, '-c', CHILD]); time.sleep(600)"
    with Running(program(text + start), env={MARK: "m" * 32}) as job:
        assert job.line() == "up"
        job.process.kill()
        assert [job.line(), job.line(), job.line()] == ["finally", "torn down", ""]


@pid_namespace
def test_a_parent_of_1_is_right_where_that_launched_it(lock: HostLock) -> None:
    """In a container: below the launcher, which is PID 1 there, it runs and is told to end."""
    text = (
        OWNER
        + """
from queue_workflows.host.processes.launcher import run_as_child_if_pid1
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


@pytest.mark.slow
@pid_namespace
def test_as_pid_1_it_ends_as_anywhere(lock: HostLock) -> None:
    """Signals that the kernel drops where they have no handler are heard."""
    text = OWNER + "own(lambda: (say(os.getpid()), time.sleep(600)), deadline_s=2)"
    with Running([*UNSHARE, *program(text)]) as running:
        assert [running.line() for _ in range(4)] == ["up", "1", "finally", "torn down"]
        assert running.status() == ExitCode.DEADLINE


# 15: the deadline


def test_a_deadline_tears_down_and_says_so(lock: HostLock) -> None:
    """Its own status and its own line; the lock is free."""
    with Running(program(OWNER + "own(deadline_s=2)"), stderr=-1) as running:
        assert [running.line() for _ in range(4)] == ["up", "finally", "torn down", ""]
        assert running.status() == ExitCode.DEADLINE == 73
        assert running.process.stderr
        assert running.process.stderr.read() == "the deadline of 2 s has passed: tearing down\n"
        running.process.stderr.close()
    assert is_free(lock)


TAKEN = {
    "a handler": "signal.signal(signal.SIGALRM, lambda *_: None)",
    "a mask": "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])",
    "handlers": "for one in (signal.SIGALRM, signal.SIGTERM): signal.signal(one, lambda *_: None)",
}


@pytest.mark.parametrize(
    "how", ["handlers", *(pytest.param(how, marks=pytest.mark.slow) for how in list(TAKEN)[:2])]
)
def test_a_deadline_holds_where_code_has_sigalrm_to_itself(lock: HostLock, how: str) -> None:
    """As every timeout made of SIGALRM does: `finally` runs all the same, the status is the deadline's."""
    text = OWNER + f"def body():\n    {TAKEN[how]}\n    time.sleep(600)\nown(body, deadline_s=1)"
    with Running(program(text), stderr=-1) as running:
        assert [running.line() for _ in range(4)] == ["up", "finally", "torn down", ""]
        assert running.status() == ExitCode.DEADLINE
        assert running.process.stderr
        assert running.process.stderr.read() == "the deadline of 1 s has passed: tearing down\n"
        running.process.stderr.close()
    assert is_free(lock)


@pytest.mark.slow
def test_a_deadline_ends_with_its_block() -> None:
    """What comes after a `with harden(…)` is not ended by a deadline that was within it."""
    text = OWNER + "with harden(deadline_s=0.5): pass\ntime.sleep(2.5)\nsay(signal.alarm(0), 'after')"
    with Running(program(text)) as running:
        assert [running.line(), running.status()] == ["0 after", 0]


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
    except BaseException: say("swallowed")
    time.sleep(600)
own(deaf)
"""
    )
    with Running(program(text)) as running:
        assert [running.line(), running.line()] == ["up", "deaf"]
        os.kill(running.pid, signal.SIGTERM)
        assert [running.line() for _ in range(4)] == ["swallowed", "finally", "torn down", ""]
        assert running.status() == ExitCode.TERMINATED


def test_what_a_finally_block_becomes_by_exec_lives(lock: HostLock) -> None:
    """Nothing that insists on the exception is left behind for the program that comes next."""
    text = OWNER + "own(lambda: os.kill(os.getpid(), signal.SIGTERM))".join(
        ["try: ", "\nfinally: os.execvp('sh', ['sh', '-c', 'sleep 0.5; echo alive'])"]
    )
    with Running(program(text)) as running:
        assert [running.line() for _ in range(4)] == ["up", "finally", "alive", ""]
        assert running.status() == 0


def test_a_finally_block_may_have_timeouts_of_its_own(lock: HostLock) -> None:
    """SIGALRM comes to them when they asked for it, and not because the exception is insisted on."""
    text = (
        OWNER
        + """
harden()
try: os.kill(os.getpid(), signal.SIGTERM)
finally:
    signal.signal(signal.SIGALRM, lambda *_: say("alarm"))
    time.sleep(0.5)
    say("finally")
"""
    )
    with Running(program(text)) as running:
        assert [running.line(), running.line()] == ["finally", ""]
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
own(BODY, deadline_s=1, teardown_s=0.3)
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
    """It dies of a signal as any program does, or ends by itself, and tears nothing of its parent's down."""
    text = (
        OWNER
        + """
def fork():
    if os.fork() == 0:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(600)
    say(os.waitstatus_to_exitcode(os.wait()[1]))
    if os.fork() == 0:
        sys.exit(3)
    say(os.waitstatus_to_exitcode(os.wait()[1]))
own(fork)
"""
    )
    with Running(program(text)) as running:
        assert [running.line() for _ in range(7)] == [
            "up", "-15", "finally", "3", "finally", "torn down", "",
        ]  # fmt: skip


def test_what_makes_no_sense_is_refused() -> None:
    """In a thread, and with no number of seconds."""
    with pytest.raises(ConfigurationError, match="deadline_s is 0"):
        harden(deadline_s=0)
    with pytest.raises(ConfigurationError, match="deadline_s is '1h'"):
        harden(deadline_s="1h")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="teardown_s is nan"):
        harden(teardown_s=float("nan"))


# Any command, by `qwf run-job`


def run_job(*words: str) -> list[str]:
    return [sys.executable, "-m", "queue_workflows", "run-job", *words]


# A process that is nobody's child, in a session of its own, and deaf to SIGTERM; it says its pid.
DAEMON = "(setsid sh -c 'trap \"\" TERM; echo daemon $$; exec sleep 600' &)\n"


def told(running: Running, *words: str) -> dict[str, int]:
    """The pids that processes say, in whatever order."""
    said = dict(running.line().split() for _ in words)
    assert set(said) == set(words)
    return {word: int(pid) for word, pid in said.items()}


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostLock:
    """The lock `device` of commands that are run."""
    monkeypatch.setenv("QWF_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setenv("QWF_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "locks").mkdir()
    return HostLock("device", directory=tmp_path / "locks")


ENDS = {
    "exit 7": (["sh", "-c", "exit 7"], 7, ""),
    "a signal": (["sh", "-c", "kill -9 $$"], 137, ""),
    "nothing of that name": (["no-such-command"], 127, "qwf: no-such-command: command not found"),
    "no name at all": ([""], 127, "qwf: '': command not found"),
    "a name of two lines": (["a\nb"], 127, "qwf: 'a\\nb': command not found"),
    "no program": (["/etc/passwd"], 126, "qwf: /etc/passwd cannot be run: Permission denied"),
    "a command with options": (["sh", "-c", "test \"$*\" = '--deadline 1'", "sh", "--deadline", "1"], 0, ""),
}
QUICK: dict[str, Any] = {"exit 7": (), "nothing of that name": ()}


@pytest.mark.parametrize(
    "how", [pytest.param(how, marks=() if how in QUICK else pytest.mark.slow) for how in ENDS]
)
def test_a_command_ends_with_its_own_status(locks: HostLock, how: str) -> None:
    """And with one line where there is no such command."""
    command, status, said = ENDS[how]
    done = subprocess.run(run_job("--lock", "device", "--", *command), capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr[: len(said)]) == (status, "", said)
    assert done.stderr.count("\n") == bool(said)
    assert not locks.path.exists()
    assert is_free(locks)


@pytest.mark.slow
def test_a_command_has_our_streams_and_none_of_our_locks(locks: HostLock) -> None:
    """Its stdin is ours, its environment too, and the locks' descriptors are not among its own."""
    text = "cat; echo end; ls /proc/self/fd | wc -l; env | grep -c '^QWF_LAUNCHER_PID'"
    environ = {**os.environ, "QWF_LAUNCHER_PID": str(os.getpid())}
    done = subprocess.run(
        run_job("--lock", "device", "--lock", "other", "--", "sh", "-c", text),
        input="a\nb\n", capture_output=True, text=True, env=environ,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["a", "b", "end", "4", "0"]


@pytest.mark.slow
def test_a_deadline_ends_all_of_a_command(locks: HostLock) -> None:
    """SIGTERM, the grace, SIGKILL: also for a child that forked twice; the lock is free only then."""
    words = ("--deadline", "3s", "--grace", "0.3", "--lock", "device")
    with Running(run_job(*words, "--", "sh", "-c", DAEMON + "sleep 600"), stderr=subprocess.PIPE) as running:
        daemon = told(running, "daemon")["daemon"]
        assert not is_free(locks)
        assert running.status() == ExitCode.DEADLINE
        assert gone(daemon)
        assert running.process.stderr
        assert running.process.stderr.read() == "qwf: the deadline of 3 s has passed: ending sh\n"
        running.process.stderr.close()
    assert is_free(locks)


def test_a_command_is_told_of_sigterm_and_nothing_of_it_stays(locks: HostLock) -> None:
    """Its `finally` runs, its status is passed on, and its daemon ends with it."""
    text = DAEMON + "trap 'echo finally; exit 5' TERM; echo up $$; sleep 600 & wait"
    with Running(run_job("--grace", "2", "--lock", "device", "--", "sh", "-c", text)) as running:
        daemon = told(running, "daemon", "up")["daemon"]
        os.kill(running.pid, signal.SIGTERM)
        assert [running.line(), running.line()] == ["finally", ""]
        assert running.status() == 5
        assert gone(daemon)
    assert is_free(locks)


@pytest.mark.parametrize("killed", ["warden", pytest.param("its second", marks=pytest.mark.slow)])
def test_no_single_death_leaves_a_command_behind(locks: HostLock, killed: str) -> None:
    """Whichever of the two is killed, the other ends the command; until then the lock is held."""
    text = DAEMON + "echo second $PPID; exec sleep 600"
    with Running(run_job("--grace", "0.2", "--lock", "device", "--", "sh", "-c", text)) as running:
        pids = told(running, "daemon", "second")
        os.kill(running.pid if killed == "warden" else pids["second"], signal.SIGKILL)
        until(lambda: is_free(locks))
        assert gone(pids["daemon"])
        until(lambda: gone(pids["second"]))  # it may have been the last to have the lock: that goes first
        assert running.status() == (-9 if killed == "warden" else 137)


@contextmanager
def continued(pid: int) -> Iterator[None]:
    """A process that a failed test leaves stopped hears of no death above it."""
    try:
        yield
    except BaseException:
        os.kill(pid, signal.SIGCONT)
        raise


def test_the_deadline_holds_for_what_is_stopped(locks: HostLock) -> None:
    """As by Ctrl-Z: at the deadline both go on by themselves, the command ends and its lock is free."""
    words = ("--deadline", "2s", "--grace", "0.2", "--lock", "device")
    with Running(run_job(*words, "--", "sh", "-c", "echo second $PPID; exec sleep 600")) as running:
        second = told(running, "second")["second"]
        for pid in (second, running.pid):
            os.kill(pid, signal.SIGSTOP)
        with continued(second):
            assert running.status() == ExitCode.DEADLINE
    assert is_free(locks)


@pytest.mark.parametrize("which", ["the warden", "its second"])
def test_a_command_that_has_ended_keeps_no_lock_by_what_is_stopped(locks: HostLock, which: str) -> None:
    """Each of the two lets the other go on, also where there is no deadline."""
    words = ("--deadline", "none", "--lock", "device")
    with Running(run_job(*words, "--", "sh", "-c", "echo second $PPID; read word; exit 4")) as running:
        second = told(running, "second")["second"]
        os.kill(running.pid if which == "the warden" else second, signal.SIGSTOP)
        if which == "the warden":
            until(lambda: psutil.Process(running.pid).status() == psutil.STATUS_STOPPED)
        with continued(second):
            running.tell("end")
            assert running.status() == 4
    assert is_free(locks)


@pytest.mark.slow
def test_a_closed_stderr_leaves_the_file_of_a_lock_alone(locks: HostLock) -> None:
    """No lock has the number of a stream: what there is to say is never written into the file."""
    command = run_job("--lock", "device", "--", "cat", str(locks.path))
    closing = ["sh", "-c", 'exec "$@" <&- 2>&-', "sh", *command]
    done = subprocess.run(closing, stdout=subprocess.PIPE, text=True)
    assert (done.returncode, json.loads(done.stdout)["name"]) == (0, "device")


def test_a_command_of_a_job_ends_with_the_jobs_process(locks: HostLock) -> None:
    """Though nobody told it of a launcher: its daemon is gone when its lock is free."""
    command = run_job("--grace", "0.2", "--lock", "device", "--", "sh", "-c", DAEMON + "sleep 600")
    text = f"subprocess.Popen({command!r}); time.sleep(600)"
    with Running(program(text), env={MARK: "m" * 32}) as job:
        daemon = told(job, "daemon")["daemon"]
        job.process.kill()
        until(lambda: is_free(locks))
        assert gone(daemon)


@pytest.mark.slow
def test_a_second_copy_waits_for_the_first_and_all_that_it_started(locks: HostLock) -> None:
    """It says so in one line; who does not want to wait is told at once who holds the lock."""
    text = "sh -c 'trap \"\" TERM; echo left $$; exec sleep 600' & read word; exit 0"
    with Running(run_job("--grace", "1", "--lock", "device", "--", "sh", "-c", text)) as first:
        left = told(first, "left")["left"]
        hurried = subprocess.run(
            run_job("--lock", "device", "--wait", "0", "--", "true"), capture_output=True, text=True
        )
        assert (hurried.returncode, hurried.stderr.count("\n")) == (73, 1)
        assert f"process {first.pid} (run-job sh) holds it" in hurried.stderr
        after = f"kill -0 {left} 2>&-; echo $?"
        with Running(run_job("--lock", "device", "--", "sh", "-c", after), stderr=subprocess.PIPE) as second:
            assert second.process.stderr
            assert second.process.stderr.readline().startswith("qwf: waiting for the lock 'device', which")
            first.tell("end")
            assert second.line() == "1"
            assert second.status() == first.status() == 0
            second.process.stderr.close()


def test_who_waits_for_a_lock_holds_no_other(locks: HostLock) -> None:
    """Both are taken in the end, and together."""
    other = HostLock("other", directory=locks.path.parent)
    with other:
        command = run_job("--lock", "device", "--lock", "other", "--", "sh", "-c", "echo up; read word")
        with Running(command, stderr=subprocess.PIPE) as running:
            assert running.process.stderr
            assert running.process.stderr.readline().startswith("qwf: waiting for the lock 'other', which")
            until(lambda: is_free(locks))
            other.release()
            assert running.line() == "up"
            assert not is_free(locks)
            assert not is_free(other)
            running.process.stderr.close()


def test_one_wait_bounds_that_for_all_locks(locks: HostLock) -> None:
    """The first that comes free late leaves the less for the second."""
    other = HostLock("other", directory=locks.path.parent)
    clock = 0.0

    def sleep(seconds: float) -> None:
        nonlocal clock
        clock += seconds
        if clock > 4:
            locks.release()

    with locks, other, pytest.raises(LockHeld) as held:
        take_locks(["device", "other"], "sh", deadline_s=None, wait_s=5, sleep=sleep, now=lambda: clock)
    assert (held.value.name, clock) == ("other", pytest.approx(5, abs=0.1))
    assert is_free(locks)


@pytest.mark.slow
def test_a_terminals_interrupt_comes_once(locks: HostLock) -> None:
    """Ctrl-C goes to the foreground, which the command is not part of: it hears it from us, once."""
    text = (
        PREAMBLE
        + """
heard = []
signal.signal(signal.SIGINT, lambda *_: heard.append(1))
say("up")
while not heard: time.sleep(0.01)
time.sleep(0.5)
say("heard", len(heard))
"""
    )
    ours, theirs = pty.openpty()
    with Running(
        ["setsid", "--ctty", *run_job("--", sys.executable, "-c", text)], stdin=theirs, stderr=theirs
    ) as running:
        assert running.line() == "up"
        os.write(ours, b"\x03")
        assert running.line() == "heard 1"
    os.close(ours)
    os.close(theirs)


@pytest.mark.slow
@pid_namespace
def test_a_command_below_pid_1(locks: HostLock) -> None:
    """As PID 1 of a container it hears signals, waits for orphans, and passes the status on."""
    text = "trap 'echo finally; exit 5' TERM; (sleep 0.1 &); kill -TERM 1; sleep 600 & wait"
    with Running([*UNSHARE, *run_job("--grace", "30", "--", "sh", "-c", text)]) as running:
        assert [running.line(), running.line()] == ["finally", ""]
        assert running.status() == 5


@pytest.mark.slow
@pid_namespace
def test_where_its_processes_cannot_be_found_nothing_is_started(locks: HostLock) -> None:
    """Another namespace's /proc has numbers of others: the command would live on, and they might not."""
    elsewhere = [word for word in UNSHARE if word != "--mount-proc"]
    done = subprocess.run([*elsewhere, *run_job("--", "echo", "up")], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (78, "", 1)
    assert "mount -t proc proc /proc" in done.stderr


REFUSED = {
    "no command": ([], 2, "Missing argument"),
    "a wrong duration": (["--deadline", "soon", "--", "true"], 2, "'soon' is no duration"),
    "no time": (["--deadline", "0", "--", "true"], 2, "out of range"),
    "a grace that is too long": (["--grace", "9999d", "--", "true"], 2, "out of range"),
    "a share without a workspace": (["--share", "a=/tmp", "--", "true"], 2, "are for a --workspace"),
    "a share of nothing": (["--workspace", "w", "--share", "a", "--", "true"], 2, "NAME=PATH"),
    "a share twice": (["--workspace", "w", *["--share", "a=/tmp"] * 2, "--", "true"], 2, "shared twice"),
    "a share that is not there": (
        ["--workspace", "w", "--share", "a=/no/where", "--", "true"],
        78,
        "not there",
    ),
    "a workspace that leads away": (["--workspace", "../w", "--", "true"], 78, "cannot name a workspace"),
    "a data directory that is a file": (["--workspace", "w", "--", "true"], 78, "cannot be used"),
    "a data directory that cannot be made": (["--workspace", "w", "--", "true"], 78, "cannot be used"),
    "a lock with a policy": (["--lock", "elsewhere:device", "--", "true"], 78, "leave it out: 'device'"),
    "a lock without a name": (["--lock", "", "--", "true"], 78, "needs a name"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", REFUSED)
def test_what_makes_no_sense_is_refused_in_one_line(
    locks: HostLock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Before the command is started, with a status that tells whose mistake it is."""
    words, status, said = REFUSED[what]
    if what == "a data directory that is a file":
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("QWF_DATA_DIR", str(tmp_path / "file"))
    if what == "a data directory that cannot be made":
        monkeypatch.setenv("QWF_DATA_DIR", "/proc/none/data")
    done = subprocess.run(run_job(*words), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (status, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


# 21: a job of a worker


@pytest.mark.slow
def test_all_of_a_cancelled_job_is_gone(qwf_dsn: str, qwf_conn: psycopg.Connection, tmp_path: Path) -> None:
    """Also what forked twice and is in a session of its own, before anybody reads that it was cancelled."""
    jobs, pid_file = IngestJobRepository(qwf_conn), tmp_path / "pid"
    job = jobs.enqueue("daemon", queue="fetch", args={"pid_file": str(pid_file)}).id
    qwf_conn.commit()
    with running_worker(qwf_dsn, QWF_CANCEL_GRACE_S="0.2"):
        daemon = int(until(lambda: pid_file.exists() and pid_file.read_text()))
        assert not gone(daemon)
        cancelled = subprocess.run(
            [sys.executable, "-m", "queue_workflows", "--db", qwf_dsn, "job", "cancel", str(job)],
            capture_output=True, text=True,
        )  # fmt: skip
        assert cancelled.returncode == 0, cancelled.stderr
        until(lambda: ended(qwf_conn, job))
        assert gone(daemon)


def ended(conn: psycopg.Connection, job: int) -> bool:
    conn.rollback()
    return IngestJobRepository(conn).fetch(job).status == "cancelled"
