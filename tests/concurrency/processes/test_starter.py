"""A hardened program, and a command of `qwf run-job`, end with what started them: real shells, killed."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.processes.programs import UNSHARE, Running, gone, linux_only, pid_namespace, program
from support.processes.workers import until

from queue_workflows.errors import ConfigurationError
from queue_workflows.host.locks.lock import HostLock
from queue_workflows.host.processes.harden import harden

pytestmark = linux_only

# A signal that passes through and comes after that of the kernel: the answer tells what was heard before it.
ASK = signal.SIGRTMIN + 8
OWNER = f"""
from queue_workflows.host.locks.lock import HostLock
from queue_workflows.host.processes.harden import harden
signal.signal({int(ASK)}, lambda *_: say("still"))
def own(body=lambda: [time.sleep(1) for _ in range(600)], **options):
    harden(**options)
    lock = HostLock("device")
    lock.acquire()
    try:
        say("up", os.getpid())
        body()
    finally:
        say("finally")
def wait_for_another_parent():
    parent = os.getppid()
    say("started")
    while os.getppid() == parent: time.sleep(0.01)
"""
DAEMON = "(setsid sh -c 'trap \"\" TERM; exec sleep 600' &)\n"
COMMAND = f"""{DAEMON}
trap 'echo told; exit' TERM
trap 'echo still' {int(ASK)}
echo up $PPID
while :; do sleep 600 & wait $!; done
"""


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostLock:
    """The lock that each of them holds."""
    monkeypatch.setenv("QWF_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setenv("QWF_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "locks").mkdir()
    return HostLock("device", directory=tmp_path / "locks")


def is_free(lock: HostLock) -> bool:
    free = lock.try_acquire()
    lock.release()
    return free


def run_job(*options: str, command: str = COMMAND) -> list[str]:
    words = ["run-job", "--grace", "0.2", "--lock", "device", *options, "--", "sh", "-c", command]
    return [sys.executable, "-m", "queue_workflows", *words]


def owner(body: str) -> list[str]:
    return program(OWNER + body)


def shell(command: list[str], *, before: str = "") -> list[str]:
    """A shell that starts the command, says its pid, and waits for it."""
    return ["sh", "-c", f"{before} {shlex.join(command)} & echo shell $!; wait"]


def told(running: Running) -> dict[str, int]:
    """The pids that shell and command say, in whatever order."""
    said = dict(running.line().split() for _ in range(2))
    assert set(said) == {"shell", "up"}
    return {word: int(pid) for word, pid in said.items()}


@pytest.mark.parametrize("before", ["", "nohup"])
def test_a_killed_shell_takes_its_command_along(device: HostLock, before: str) -> None:
    """Also one that is deaf to hangups: nothing of it is left, it says why, and its lock is free."""
    with Running(shell(run_job(), before=before), stderr=subprocess.PIPE) as running:
        pids = told(running)
        below = psutil.Process(pids["up"]).children(recursive=True)
        assert len(below) >= 2
        running.process.kill()
        until(lambda: is_free(device))
        assert all(gone(each.pid) for each in below)
        until(lambda: gone(pids["shell"]))
        assert running.process.stderr
        said = [line for line in running.process.stderr.read().splitlines() if line.startswith("qwf:")]
        running.process.stderr.close()
        assert said == [f"qwf: process {running.pid}, which started this one, has ended: ending sh"]


def test_a_killed_shell_takes_a_hardened_program_along(device: HostLock) -> None:
    """Its `finally` runs, and its lock is free."""
    with Running(shell(owner("own()"))) as running:
        pids = told(running)
        running.process.kill()
        assert running.line() == "finally"
        until(lambda: is_free(device))
        until(lambda: gone(pids["shell"]))


@pytest.mark.parametrize("kind", ["command", "program"])
def test_what_is_detached_runs_on(device: HostLock, kind: str) -> None:
    """Its shell is gone, and it has heard nothing of that."""
    command = run_job("--detach") if kind == "command" else owner("own(detach=True)")
    with Running(shell(command)) as running:
        started = psutil.Process(told(running)["shell"])
        running.process.kill()
        until(lambda: started.ppid() != running.pid)
        started.send_signal(ASK)
        assert running.line() == "still"
        assert not is_free(device)


@pytest.mark.parametrize("kind", ["command", "program"])
def test_a_thread_that_ends_is_not_the_process(device: HostLock, kind: str) -> None:
    """A program that starts it in a thread may let the thread end; it is told of the process alone."""
    command = run_job() if kind == "command" else owner("own()")
    text = f"""
def start():
    say("shell", subprocess.Popen({command!r}).pid)
    sys.stdin.readline()
thread = threading.Thread(target=start)
thread.start()
thread.join()
while len(os.listdir("/proc/self/task")) > 1: time.sleep(0.01)
say("joined")
time.sleep(600)
"""
    with Running(program(text)) as running:
        started = told(running)["shell"]
        running.tell("go")
        assert running.line() == "joined"
        psutil.Process(started).send_signal(ASK)
        assert running.line() == "still"
        assert not is_free(device)
        running.process.kill()
        until(lambda: is_free(device))
        until(lambda: gone(started))


@pytest.mark.parametrize("kind", ["command", "program"])
def test_what_was_adopted_before_it_began_is_refused(device: HostLock, kind: str) -> None:
    """The kernel tells nobody of a death that came first, and a session tells who cannot be the parent."""
    then = f"os.execv(sys.executable, {run_job()!r})" if kind == "command" else "own()"
    text = f"os.dup2(1, 2); wait_for_another_parent()\n{then}"
    with Running(["sh", "-c", f"{shlex.join(owner(text))} & wait"]) as running:
        assert running.line() == "started"
        running.process.kill()
        said = []
        while line := running.line():
            said.append(line)
        assert "which started this one, is gone" in said[-1]
        assert "detach" in said[-1]
    assert not device.path.exists()


def test_what_has_a_session_of_its_own_may_be_adopted(device: HostLock) -> None:
    """As by `setsid`, cron or systemd: whatever it is the child of then has started it."""
    text = "while os.getsid(os.getppid()) == int(sys.argv[1]): time.sleep(0.01)\nown(lambda: None)"
    nested = f"(setsid {shlex.join(owner(text))} $$ &) && read word"
    with Running(["sh", "-c", nested]) as running:
        said = [running.line().split()[0] for _ in range(2)]
    assert said == ["up", "finally"]


@pid_namespace
def test_a_parent_of_1_may_have_started_it(device: HostLock) -> None:
    """In a container whose first process is a shell."""
    inside = ["sh", "-c", f"{shlex.join(run_job(command='echo up; exit 4'))}; echo $?"]
    with Running([*UNSHARE, *inside]) as running:
        assert [running.line(), running.line()] == ["up", "4"]


def test_a_command_that_waits_for_its_lock_ends_with_its_shell(device: HostLock) -> None:
    """It has nothing yet, and would have run without anybody to hear of it."""
    with device, Running(shell(run_job(command="echo up")), stderr=subprocess.PIPE) as running:
        assert running.process.stderr
        assert "waiting for the lock 'device'" in running.process.stderr.readline()
        word, pid = running.line().split()
        assert word == "shell"
        running.process.kill()
        until(lambda: gone(int(pid)))
        running.process.stderr.close()


def test_detached_and_bound_is_refused() -> None:
    """One of the two is a mistake."""
    with pytest.raises(ConfigurationError, match="detached"):
        harden(detach=True, launcher_pid=1)
