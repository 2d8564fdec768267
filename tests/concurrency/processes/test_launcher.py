"""How processes of ours are started: as PID 1 of a container, and as a supervisor's children."""

from __future__ import annotations

import fcntl
import os
import pty
import selectors
import signal
import subprocess
import sys
import termios
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from support.processes.programs import (
    UNSHARE,
    WITHOUT_TRACING,
    Running,
    environment,
    linux_only,
    pid_namespace,
    program,
)

from queue_workflows.host.processes import pid1
from queue_workflows.host.processes.launcher import Child, own_command, run_as_child_if_pid1, spawn, watch
from queue_workflows.settings import unknown_variables

AS_PID1 = "from queue_workflows.host.processes.launcher import run_as_child_if_pid1; run_as_child_if_pid1()\n"
HANDLERS = """
import select
for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGWINCH"):
    signal.signal(getattr(signal, name), lambda number, frame: say(signal.Signals(number).name))
"""
SHIM = [sys.executable, "-I", "-S", pid1.__file__]


def in_namespace(text: str, **options: object) -> Running:
    """The program as PID 1 of a PID namespace."""
    return Running([*UNSHARE, *program(AS_PID1 + text)], **options)  # type: ignore[arg-type]


def launcher_of(running: Running) -> psutil.Process:
    (launcher,) = psutil.Process(running.pid).children()
    return launcher


@pid_namespace
def test_pid_1_becomes_the_launcher_of_the_same_command() -> None:
    """The command line, its options and its environment run again as a child that knows its launcher."""
    with Running(
        [
            *UNSHARE,
            *(sys.executable, "-X", "dev", "-W", "error::UserWarning"),
            *program(
                AS_PID1 + "say(os.getpid() > 1, os.getppid(), os.environ['QWF_LAUNCHER_PID'], "
                "os.environ['GIVEN'], sys.argv[1:], sys.flags.dev_mode, sys.warnoptions[-1])"
            )[1:],
            *("worker", "--queue", "a b"),
        ],
        env={"GIVEN": "through"},
    ) as running:
        assert running.line() == "True 1 1 through ['worker', '--queue', 'a b'] True error::UserWarning"
        assert running.status() == 0


@pid_namespace
def test_given_arguments_run_qwf() -> None:
    """With arguments handed in, the child is `qwf` with these."""
    text = AS_PID1.replace("_pid1()", "_pid1(['--version'])")
    with Running([*UNSHARE, *program(text)]) as running:
        assert running.line().startswith("qwf ")
        assert running.status() == 0


@pid_namespace
def test_the_launchers_environment_is_for_its_command_alone() -> None:
    """As the database's URL stands there, which a hook of the same user is not to read."""
    text = (
        AS_PID1
        + """
try:
    say(len(open("/proc/1/environ").read()))
except OSError as refused:
    say(type(refused).__name__)
"""
    )
    with Running([*UNSHARE, *WITHOUT_TRACING, *program(text)]) as running:
        assert running.line() == "PermissionError"


def test_nothing_happens_elsewhere() -> None:
    """A process that is not PID 1 goes on as if nothing had been called."""
    assert run_as_child_if_pid1() is None


@pid_namespace
@pytest.mark.parametrize(
    ("ending", "status"),
    [("sys.exit(0)", 0), ("sys.exit(75)", 75), ("os.kill(os.getpid(), 9)", 137), ("os.abort()", 134)],
)
def test_status_of_the_child_is_the_launchers(ending: str, status: int) -> None:
    """The container ends as its worker does, in the shell's way of saying it."""
    with in_namespace(ending) as running:
        assert running.status() == status


@pid_namespace
def test_dead_man_works_below_the_launcher() -> None:
    """In a container, where PID 1 could not be killed, a job that holds the GIL is ended at its deadline."""
    with in_namespace("""
deadman = DeadMan()
say(deadman.reason_off)
deadman.arm(boottime() + 0.5)
stuck(60)
""") as running:
        assert running.line() == "None"
        assert running.status() == 137


@pid_namespace
def test_signals_are_passed_on_each_time() -> None:
    """Also a second SIGTERM arrives, which is how an operator says that it cannot wait."""
    with in_namespace(HANDLERS + "say('ready')\nwhile True: time.sleep(0.1)") as running:
        assert running.line() == "ready"
        launcher = launcher_of(running)
        for name in ("SIGTERM", "SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGWINCH"):
            launcher.send_signal(getattr(signal, name))
            assert running.line() == name
        running.process.kill()


# In a process that has one thread: a library may start some in every child that this one forks.
PENDING = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
os.kill(os.getpid(), int(sys.argv[1]))
os.execv(sys.argv[2], sys.argv[2:])
"""


@linux_only
def test_signal_from_before_the_child_is_not_lost() -> None:
    """One that was sent while the launcher was being exec'ed waits for the child and ends it."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        sent_before = [sys.executable, "-c", PENDING, str(int(number))]
        done = subprocess.run([*sent_before, *SHIM, "/bin/sleep", "60"], timeout=150)
        assert done.returncode == 128 + number


@pid_namespace
def test_signal_in_the_moment_of_the_exec_is_not_lost() -> None:
    """PID 1 has no handler while it turns into the launcher; the signal is kept from being dropped there."""
    text = (
        """
real_execv = os.execv
def execv(*arguments):
    os.kill(os.getpid(), signal.SIGTERM)
    real_execv(*arguments)
os.execv = execv
"""
        + AS_PID1
        + "time.sleep(60)"
    )
    with Running([*UNSHARE, *program(text)]) as running:
        assert running.status() == 143


@linux_only
def test_child_starts_with_no_signal_held() -> None:
    """What the launcher holds back for itself the child hears, also what Python ignores from its start."""
    shown = subprocess.run(
        [*SHIM, "/bin/cat", "/proc/self/status"], capture_output=True, text=True, timeout=150, check=True
    ).stdout
    masks = dict(line.split(":\t") for line in shown.splitlines() if line.startswith("Sig"))
    used_by_glibc = 1 << 31 | 1 << 32  # it keeps them for its threads, and ignores them in what it spawns
    assert (int(masks["SigBlk"], 16), int(masks["SigIgn"], 16) & ~used_by_glibc) == (0, 0)


@pid_namespace
def test_orphans_are_reaped() -> None:
    """Fifty processes whose parents went away end without staying behind as zombies."""
    with in_namespace("""
import psutil
for _ in range(50):
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.1)
        os._exit(0)
    os.wait()
others = lambda: set(psutil.pids()) - {1, os.getpid()}
while others(): time.sleep(0.02)
say("none left")
""") as running:
        assert running.line() == "none left"
        assert running.status() == 0


@pid_namespace
def test_nothing_survives_the_container() -> None:
    """When the worker ends, what it left running in the namespace ends with it."""
    left_behind = f"4711.{uuid.uuid4().int}"
    with in_namespace(f"""
import subprocess
subprocess.Popen(["/bin/sleep", "{left_behind}"], start_new_session=True)
""") as running:
        assert running.status() == 0
    assert [p for p in psutil.process_iter(["cmdline"]) if left_behind in (p.info["cmdline"] or [])] == []


@pid_namespace
def test_launcher_is_small() -> None:
    """It stays for the worker's life with little more than Python itself."""
    with in_namespace("import queue_workflows.settings, sqlalchemy; say('ready'); time.sleep(60)") as running:
        assert running.line() == "ready"
        launcher = launcher_of(running)
        assert "pid1.py" in " ".join(launcher.cmdline())
        assert launcher.memory_info().rss < 16 * 1024 * 1024
        assert launcher.num_threads() == 1
        launcher.kill()


@contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    try:
        yield ours, theirs
    finally:
        os.close(ours)
        os.close(theirs)


@linux_only
def test_ctrl_c_in_a_terminal_arrives_once() -> None:
    """`docker run -it` and Ctrl-C: a worker that got it twice would drop its job instead of finishing it."""
    with terminal() as (ours, theirs):

        def take_terminal() -> None:
            fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

        with Running(
            [*SHIM, *program(HANDLERS + "say('ready')\nwhile True: time.sleep(0.1)")],
            stdin=theirs,
            preexec_fn=take_terminal,
        ) as running:
            assert running.line() == "ready"
            for _ in range(10):
                os.write(ours, b"\x03")
                assert running.line() == "SIGINT"
            os.kill(running.pid, signal.SIGUSR1)
            assert running.line() == "SIGUSR1"


def spawned(text: str, **options: object) -> Child:
    return spawn(program(text), **{"env": environment(), "stdout": subprocess.PIPE, **options})  # type: ignore[arg-type]


def said_by(child: Child) -> list[str]:
    said, _ = child.communicate(timeout=150)
    return said.decode().splitlines()


def test_spawned_child_knows_its_launcher_and_has_its_own_session() -> None:
    """A terminal's Ctrl-C reaches the supervisor alone, and the child can tell who started it."""
    child = spawned("say(os.environ['QWF_LAUNCHER_PID'], os.getsid(0) == os.getpid() == os.getpgid(0))")
    assert said_by(child) == [f"{os.getpid()} True"]


def test_foreign_commands_are_not_told_the_launcher() -> None:
    """Nor do they inherit what our own launcher told us."""
    stale = {**environment(), "QWF_LAUNCHER_PID": "1"}
    child = spawned("say('QWF_LAUNCHER_PID' in os.environ)", pass_launcher=False, env=stale)
    assert said_by(child) == ["False"]


def test_marks_nest() -> None:
    """A job's process carries the mark of its worker, then its own."""
    child = spawned("""
from queue_workflows.host.processes.launcher import spawn
inner = spawn([sys.executable, "-c", "import os; print(os.environ['_QWF_TREE'])"], stdout=subprocess.PIPE)
say(inner.mark)
say(inner.communicate()[0].decode().strip())
""")
    outer, inner = child.mark, said_by(child)
    assert inner[0] == inner[1]
    assert inner[0].startswith(f"{outer}/")


def test_descriptors_stay_here() -> None:
    """Also one that was made inheritable, as a lock of a C library may be, is not handed down unasked."""
    readable, writable = os.pipe()
    os.set_inheritable(writable, True)
    try:
        child = spawned(f"""
try: os.fstat({writable}); say("inherited")
except OSError: say("closed")
""")
        assert said_by(child) == ["closed"]
        handed = spawned(f"os.write({writable}, b'down')", pass_fds=[writable])
        handed.communicate(timeout=150)
        assert os.read(readable, 10) == b"down"
    finally:
        os.close(readable)
        os.close(writable)


def test_own_command_runs_qwf() -> None:
    """The supervisor's workers are `qwf` on the same interpreter."""
    child = spawn(own_command(["--version"]), env=environment(), stdout=subprocess.PIPE)
    assert said_by(child)[0].startswith("qwf ")


def test_own_variables_are_no_strangers() -> None:
    """What our processes tell their children raises no warning about unknown settings."""
    told = {"QWF_LAUNCHER_PID": "1", "_QWF_TREE": "a"}
    assert list(unknown_variables({**told, "QWF_LAUNCHER": "x"})) == ["QWF_LAUNCHER"]


def _without_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)


def _pidfd_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_pid: int, _flags: int = 0) -> int:
        raise PermissionError("as a sandbox that does not know the call does")

    monkeypatch.setattr(os, "pidfd_open", refused, raising=False)


@pytest.fixture(params=[lambda _: None, _without_pidfd, _pidfd_refused], ids=["pidfd", "none", "refused"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine as it is, and ones where watching has to do without pidfd."""
    request.param(monkeypatch)


@pytest.mark.usefixtures("kernel")
def test_watch_tells_of_each_end_at_once() -> None:
    """A selector over several children names the one that ended, and only that one."""
    children = [spawned("say('up'); sys.stdin.read()", stdin=subprocess.PIPE) for _ in range(3)]
    with selectors.DefaultSelector() as selector:
        for child in children:
            assert child.stdout
            child.stdout.readline()
            selector.register(watch(child), selectors.EVENT_READ, child)
        assert selector.select(0) == []
        for child in children:
            began = time.monotonic()
            os.kill(child.pid, signal.SIGKILL)
            ((key, _),) = selector.select(30)
            assert time.monotonic() - began < 30
            assert key.data is child
            assert child.wait(150) == -signal.SIGKILL
            selector.unregister(key.fd)
            os.close(key.fd)
            child.stdin.close()  # type: ignore[union-attr]
            child.stdout.close()  # type: ignore[union-attr]


@pytest.mark.usefixtures("kernel")
def test_watch_of_one_that_has_ended() -> None:
    """Not yet waited for, it is told at once; waited for, its pid is nobody's and refused."""
    child = spawned("")
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    descriptor = watch(child)
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        assert len(selector.select(30)) == 1
    os.close(descriptor)
    said_by(child)
    with pytest.raises(ProcessLookupError):
        watch(child)


def test_spawning_keeps_nothing() -> None:
    """A supervisor that restarts its children for weeks gathers no descriptors and no threads."""

    def cycle() -> None:
        child = spawn(["/bin/true"])
        descriptor = watch(child)
        child.wait(150)
        os.close(descriptor)

    cycle()
    before = (len(os.listdir("/dev/fd")), threading.active_count())
    for _ in range(20):
        cycle()
    assert (len(os.listdir("/dev/fd")), threading.active_count()) == before


def test_pid1_script_needs_only_the_standard_library() -> None:
    """It runs isolated, without site packages, so it may import nothing of ours."""
    source = Path(pid1.__file__).read_text()
    assert "queue_workflows" not in source
    done = subprocess.run([*SHIM, "/bin/sh", "-c", "exit 3"], env={}, timeout=150)
    assert done.returncode == 3
