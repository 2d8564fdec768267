"""A child ends with its parent, and a process tree ends as a whole."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress

import psutil
import pytest
from support.processes.embedded_users import alive, until
from support.processes.programs import (
    PREAMBLE,
    UNSHARE,
    Running,
    environment,
    linux_only,
    pid_namespace,
    program,
    run,
)

from queue_workflows.errors import ExitCode, Orphaned
from queue_workflows.host.processes import tree_below, tree_by_mark
from queue_workflows.host.processes.launcher import Child, spawn
from queue_workflows.host.processes.tree_by_mark import die_with_parent, kill_tree, take_launcher_pid

# A child that dies with its parent and says which signal it got.
CHILD = """
from queue_workflows.host.processes.tree_by_mark import die_with_parent, take_launcher_pid
def ended(number, frame):
    say("child got", signal.Signals(number).name)
    os._exit(0)
for number in (signal.SIGTERM, signal.SIGUSR1): signal.signal(number, ended)
"""
SPAWN = """
from queue_workflows.host.processes.launcher import spawn
def start(text): return spawn([sys.executable, "-c", text], env=os.environ)
"""


def child_of(parent: str, child: str) -> list[str]:
    """A program whose variable CHILD is the text of another, which `start(CHILD)` spawns."""
    return program(SPAWN + f"CHILD = {PREAMBLE + CHILD + child!r}\n" + parent)


@linux_only
def test_parent_killed_child_gets_sigterm() -> None:
    """A supervisor that is killed -9 takes its workers with it, by the signal they know."""
    command = child_of(
        "start(CHILD); time.sleep(60)",
        "say(die_with_parent(take_launcher_pid())); time.sleep(60)",
    )
    with Running(command) as parent:
        assert parent.line() == "True"
        parent.process.kill()
        assert parent.line() == "child got SIGTERM"


@linux_only
def test_another_signal_can_be_asked_for() -> None:
    """A child may have itself told by a signal of its choice."""
    command = child_of(
        "start(CHILD); time.sleep(60)",
        "die_with_parent(take_launcher_pid(), with_signal=signal.SIGUSR1); say('up'); time.sleep(60)",
    )
    with Running(command) as parent:
        assert parent.line() == "up"
        parent.process.kill()
        assert parent.line() == "child got SIGUSR1"


@linux_only
def test_parent_already_dead_refuses() -> None:
    """The kernel sends nothing for a death that came first; the child finds out and does not run."""
    command = child_of(
        "start(CHILD); time.sleep(60)",
        """
launcher = take_launcher_pid()
say("up")
while os.getppid() == launcher: time.sleep(0.01)
from queue_workflows.errors import Orphaned
try: die_with_parent(launcher)
except Orphaned as orphaned: say(orphaned.launcher_pid == launcher, orphaned.parent_pid == os.getppid())
""",
    )
    with Running(command) as parent:
        assert parent.line() == "up"
        parent.process.kill()
        assert parent.line() == "True True"


def test_orphan_ends_as_if_it_had_got_the_signal() -> None:
    """To a supervisor that came back, an orphan's end is an ordered one."""
    with pytest.raises(Orphaned) as raised:
        die_with_parent(1 if os.getppid() != 1 else 2)
    assert raised.value.exit_code is ExitCode.TERMINATED
    assert "QWF_LAUNCHER_PID" in str(raised.value)


@pid_namespace
def test_parent_of_1_is_right_below_the_launcher() -> None:
    """In a container PID 1 is the launcher, and the child takes it for what it is."""
    text = """
from queue_workflows.host.processes.launcher import run_as_child_if_pid1
run_as_child_if_pid1()
from queue_workflows.host.processes.tree_by_mark import die_with_parent, take_launcher_pid
say(os.getppid(), die_with_parent(take_launcher_pid()))
"""
    with Running([*UNSHARE, *program(text)]) as running:
        assert running.line() == "1 True"
        assert running.status() == 0


@linux_only
def test_started_by_hand_lives_on() -> None:
    """`nohup qwf worker &` and logging out: nobody of ours started it, so it is on its own."""
    command = child_of(
        "subprocess.Popen([sys.executable, '-c', CHILD]); time.sleep(60)",
        """
parent = os.getppid()
say(take_launcher_pid(), die_with_parent(None))
while os.getppid() == parent: time.sleep(0.01)
time.sleep(0.2)
say("lives on")
""",
    )
    with Running(command) as parent:
        assert parent.line() == "None False"
        parent.process.kill()
        assert parent.line() == "lives on"


@linux_only
def test_parent_is_the_spawning_thread() -> None:
    """Why a supervisor spawns from a thread that stays: to the kernel, that thread is the parent."""
    command = child_of(
        """
spawner = threading.Thread(target=lambda: (start(CHILD), sys.stdin.readline()))
spawner.start()
spawner.join()
say("thread ended")
start(CHILD)
for line in sys.stdin: pass
say("process lives")
""",
        "die_with_parent(take_launcher_pid()); say('up'); time.sleep(60)",
    )
    with Running(command) as parent:
        assert parent.line() == "up"
        parent.tell("end the thread")
        assert {parent.line(), parent.line()} == {"thread ended", "child got SIGTERM"}
        assert parent.line() == "up"  # spawned by the main thread, and nothing happens to this one
        parent.close_stdin()
        assert parent.line() == "process lives"
        assert parent.line() == "child got SIGTERM"


@linux_only
def test_refused_prctl_is_an_error() -> None:
    """What the kernel did not promise is not taken for a promise."""
    with pytest.raises(OSError, match=r"prctl\(1\): Invalid argument"):
        die_with_parent(os.getppid(), with_signal=9999)  # type: ignore[arg-type]


@pytest.mark.parametrize(("told", "pid"), [("4711", 4711), ("1", 1), ("", None), ("x", None), ("-4", None)])
def test_launcher_pid_is_taken_out(told: str, pid: int | None) -> None:
    """It is true of this process only: a child of ours that inherited it would think itself orphaned."""
    environ = {"QWF_LAUNCHER_PID": told, "OTHER": "stays"}
    assert take_launcher_pid(environ) == pid
    assert environ == {"OTHER": "stays"}


class Trees:
    """Spawns process trees and finds what is left of them by a word in every command line."""

    def __init__(self) -> None:
        self.word = f"tree-{uuid.uuid4().hex}"
        self.roots: list[Child] = []

    def grow(self, text: str, *, mark: bool = True) -> Child:
        """Run a program that says `ready` once its whole tree stands."""
        command = program(f"WORD = {self.word!r}\n{GROW}{text}")
        root = spawn([*command, self.word], env=environment(), stdout=subprocess.PIPE)
        self.roots.append(root)
        assert root.stdout
        assert root.stdout.readline() == b"ready\n"
        return root

    def left(self) -> list[int]:
        found = psutil.process_iter(["pid", "cmdline"])
        return sorted(p.pid for p in found if self.word in (p.info["cmdline"] or []) and alive(p.pid))


GROW = """
SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)", WORD]
IGNORE = "import os, signal, time; signal.signal(15, signal.SIG_IGN); os.write(1, b'x'); time.sleep(600)"
STUBBORN = [sys.executable, "-c", IGNORE, WORD]
RUN = "import subprocess, sys; subprocess.run(sys.argv[1:])"

def run_child(command=SLEEPER, **options):
    return subprocess.Popen(command, **options)

def stubborn(**options):
    child = subprocess.Popen(STUBBORN, stdout=subprocess.PIPE, **options)
    child.stdout.read(1)

def forked_twice(own_session, command=SLEEPER):
    executed, inherited = os.pipe()  # closed by the exec
    if os.fork() == 0:
        if own_session:
            os.setsid()
        if os.fork() == 0:
            os.execv(command[0], command)
        os._exit(0)
    os.wait()
    os.close(inherited)
    os.read(executed, 1)

# A program of its own, for a job to run: starts its arguments as a daemon.
DAEMONISE = '''
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.argv[1], sys.argv[1:])
    os._exit(0)
os.wait()
'''

def rest():
    say("ready")
    time.sleep(600)
"""


@pytest.fixture
def trees() -> Iterator[Trees]:
    trees = Trees()
    yield trees
    for pid in trees.left():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for root in trees.roots:
        root.kill()
        root.wait(150)
        assert root.stdout
        root.stdout.close()


def test_tree_gets_its_grace(trees: Trees) -> None:
    """Whoever ends at SIGTERM runs its `finally` blocks, and the call returns as soon as all have."""
    root = trees.grow("""
run_child()
def unwind(*_): raise SystemExit
signal.signal(signal.SIGTERM, unwind)
try: rest()
finally: say("finally ran")
""")
    began = time.monotonic()
    assert kill_tree(root.pid, grace_s=30, mark=root.mark) == []
    assert time.monotonic() - began < 15
    assert root.stdout
    assert root.stdout.readline() == b"finally ran\n"
    assert trees.left() == []
    assert root.wait(150) == 0


def test_no_grace(trees: Trees) -> None:
    """With no grace nobody gets to handle anything."""
    root = trees.grow("signal.signal(signal.SIGTERM, lambda *_: say('handled')); run_child(); rest()")
    assert kill_tree(root.pid, grace_s=0, mark=root.mark) == []
    assert root.wait(150) == -signal.SIGKILL
    assert root.stdout
    assert root.stdout.read() == b""
    assert trees.left() == []


SHAPES = {
    "children": "run_child(); run_child([sys.executable, '-c', RUN, *SLEEPER])",
    "a child with its own session": "run_child(start_new_session=True)",
    "a child with its own group": "run_child(process_group=0)",
    "forked twice": "forked_twice(False)",
    "one that ignores SIGTERM": "stubborn()",
    "one that ignores SIGTERM in its own session": "stubborn(start_new_session=True)",
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("grace_s", [0, 0.5])
def test_whole_tree_is_killed(trees: Trees, shape: str, grace_s: float) -> None:
    """By kinship and sessions alone, with no mark to go by."""
    root = trees.grow(SHAPES[shape] + "; rest()")
    until(lambda: len(trees.left()) >= 2, "the tree stands")
    assert kill_tree(root.pid, grace_s=grace_s) == []
    assert trees.left() == []


@pytest.mark.parametrize("grace_s", [0, 0.5])
def test_daemon_is_found_by_its_mark(trees: Trees, grace_s: float) -> None:
    """Forked twice and in its own session: nothing but its environment says whose it is."""
    root = trees.grow("forked_twice(True); forked_twice(True, STUBBORN); rest()")
    until(lambda: len(trees.left()) == 3, "the daemons run")
    assert kill_tree(root.pid, grace_s=grace_s, mark=root.mark) == []
    assert trees.left() == []


def test_daemon_of_a_job_is_found_by_the_workers_mark(trees: Trees) -> None:
    """Marks nest: a worker's tree has in it what its jobs' processes let go of."""
    root = trees.grow("""
from queue_workflows.host.processes.launcher import spawn
spawn([sys.executable, "-c", DAEMONISE, *SLEEPER]).wait()
rest()
""")
    until(lambda: len(trees.left()) == 2, "the daemon runs")
    assert kill_tree(root.pid, grace_s=0, mark=root.mark) == []
    assert trees.left() == []


@linux_only
def test_daemon_of_a_subreaper_is_found_by_kinship(trees: Trees) -> None:
    """A root that adopts its orphans keeps them within reach, whatever became of their environment."""
    root = trees.grow("""
PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
del os.environ["_QWF_TREE"]
forked_twice(True)
rest()
""")
    until(lambda: len(trees.left()) == 2, "the daemon runs")
    assert kill_tree(root.pid, grace_s=0) == []
    assert trees.left() == []


@linux_only
def test_orphans_that_became_ours_are_waited_for(trees: Trees) -> None:
    """A supervisor that is PID 1 or a subreaper itself keeps no zombies of the trees it killed."""
    tree = f"{PREAMBLE}WORD = {trees.word!r}\n{GROW}forked_twice(True); forked_twice(False); rest()"
    status, said = run(f"""
from queue_workflows.host.processes.launcher import spawn
from queue_workflows.host.processes.tree_by_mark import kill_tree
import psutil
PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
root = spawn([sys.executable, "-c", {tree!r}, {trees.word!r}], stdout=subprocess.PIPE)
root.stdout.readline()
say(len(psutil.Process().children()), kill_tree(root.pid, grace_s=0, mark=root.mark), root.wait())
say(psutil.Process().children())
""")
    assert (status, said) == (0, ["3 [] -9", "[]"])


def test_tree_that_grows_while_it_is_killed(trees: Trees) -> None:
    """Processes that fork without end, each child in its own session, all end: stopped first, then killed."""
    root = trees.grow("""
def breed():
    while True:
        if os.fork() == 0:
            os.setsid()
            time.sleep(0.2)
            os._exit(0)
        while os.waitpid(-1, os.WNOHANG)[0]: pass
        time.sleep(0.002)
for _ in range(4):
    if os.fork() == 0:
        breed()
rest()
""")
    assert kill_tree(root.pid, grace_s=0) == []
    assert trees.left() == []


def test_stopped_tree_is_killed_without_being_woken(trees: Trees) -> None:
    """A worker under SIGSTOP does not get to go on with a job that it may have lost."""
    root = trees.grow("signal.signal(signal.SIGTERM, lambda *_: say('woken')); rest()")
    os.kill(root.pid, signal.SIGSTOP)
    assert kill_tree(root.pid, grace_s=0.3, mark=root.mark) == []
    assert root.wait(150) == -signal.SIGKILL
    assert root.stdout
    assert root.stdout.read() == b""


def test_root_that_ended_leaves_its_session(trees: Trees) -> None:
    """A worker that was killed: as long as nobody waited for it, what it started is found through it."""
    root = trees.grow("run_child(); forked_twice(True); rest()")
    until(lambda: len(trees.left()) == 3, "the tree stands")
    os.kill(root.pid, signal.SIGKILL)
    until(lambda: not alive(root.pid), "the root has ended")
    assert len(trees.left()) == 2
    assert kill_tree(root.pid, grace_s=0.2, mark=root.mark) == []
    assert trees.left() == []


def test_others_live_on(trees: Trees) -> None:
    """A sibling with the same parent, and one that dropped the mark to outlive the tree, are not touched."""
    sibling = trees.grow("rest()")
    root = trees.grow("del os.environ['_QWF_TREE']; forked_twice(True); rest()")
    until(lambda: len(trees.left()) == 3, "the daemon runs")
    assert kill_tree(root.pid, grace_s=0.2, mark=root.mark) == []
    assert len(trees.left()) == 2
    assert sibling.poll() is None


@pytest.mark.parametrize(
    "pid", [-1, 0, 1, os.getpid(), os.getppid()], ids=["minus one", "zero", "init", "ourselves", "our parent"]
)
def test_some_processes_are_not_killed(pid: int) -> None:
    """A pid that would mean everybody, init, ourselves or who started us is a mistake of the caller."""
    with pytest.raises(ValueError, match="is not one to kill"):
        kill_tree(pid, grace_s=0)


@pid_namespace
@pytest.mark.parametrize("mark", ["", "/", "short"])
def test_mark_that_fits_everybody_is_refused(mark: str) -> None:
    """An empty mark, perhaps of a variable that was not set, does not mean all processes of the machine."""
    text = f"""
from queue_workflows.host.processes.tree_by_mark import kill_tree
bystander = subprocess.Popen(["/bin/sleep", "60"], start_new_session=True)
root = subprocess.Popen(["/bin/sleep", "60"], start_new_session=True)
try: kill_tree(root.pid, grace_s=0, mark={mark!r})
except ValueError as error: say(error)
say(bystander.poll(), root.poll())
"""
    with Running([*UNSHARE, *program(text)]) as running:
        assert running.line() == f"{mark!r} is no mark: too many processes could bear it"
        assert running.line() == "None None"


@pid_namespace
def test_mark_that_is_the_callers_own_spares_caller_and_those_above() -> None:
    """Given its own mark by mistake, a process does not end itself or who is above it."""
    text = """
from queue_workflows.host.processes.launcher import spawn
inner = '''
import os, subprocess
from queue_workflows.host.processes.tree_by_mark import kill_tree
root = subprocess.Popen(["/bin/sleep", "60"], start_new_session=True)
left = kill_tree(root.pid, grace_s=0, mark=os.environ["_QWF_TREE"])
print(left, root.wait(), os.getppid() != 1, flush=True)
'''
middle = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]]); print('above lives')"
spawn([sys.executable, "-c", middle, inner]).wait()
"""
    with Running([*UNSHARE, *program(text)]) as running:
        assert running.line() == "[] -9 True"
        assert running.line() == "above lives"


def test_time_is_the_callers(trees: Trees) -> None:
    """The grace is counted on the given clock and slept with the given sleep."""
    root = trees.grow("signal.signal(signal.SIGTERM, signal.SIG_IGN); rest()")
    clock = [0.0]

    def sleep(seconds: float) -> None:
        if clock[0] < 3600:
            clock[0] += 600  # an hour of grace passes in a few looks
        else:
            clock[0] += seconds
            time.sleep(0.01)  # now it is the kernel that needs time

    began = time.monotonic()
    assert kill_tree(root.pid, grace_s=3600, sleep=sleep, now=lambda: clock[0]) == []
    assert clock[0] >= 3600
    assert time.monotonic() - began < 60


def test_who_cannot_be_killed_is_named(trees: Trees, monkeypatch: pytest.MonkeyPatch) -> None:
    """A survivor, such as one in uninterruptible sleep, is reported and not passed over."""
    root = trees.grow("rest()")
    monkeypatch.setattr(tree_by_mark, "_KILL_PATIENCE_S", 0.1)
    monkeypatch.setattr(tree_below, "send", lambda *_: None)
    assert kill_tree(root.pid, grace_s=0) == [root.pid]


def test_launcher_pid_is_read_from_the_real_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an argument it is this process's environment that is read and cleaned."""
    monkeypatch.setenv("QWF_LAUNCHER_PID", "4711")
    assert take_launcher_pid() == 4711
    assert "QWF_LAUNCHER_PID" not in os.environ


def test_a_worker_that_is_executed_anew_keeps_no_zombie() -> None:
    """What it comes back as has never heard of the children that it had, so it would never wait for them."""
    status, said = run("""
import psutil
from queue_workflows.roles.process_exit import execute_anew
class Identity:
    def hand_on(self, jobs_done): os.environ["AGAIN"] = "yes"
if "AGAIN" in os.environ:
    say(len(psutil.Process().children()), "children")
else:
    child = subprocess.Popen(["true"])
    while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE: time.sleep(0.01)
    execute_anew(None, Identity(), 0)
""")
    assert (status, said) == (0, ["0 children"])
