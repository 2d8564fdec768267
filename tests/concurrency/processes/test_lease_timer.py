"""The dead man's switch: the kernel kills a process that can no longer look after its lease."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from support.processes.programs import Running, linux_only, pid_namespace, program, run

from queue_workflows.host.processes.lease_timer import DeadMan, boottime

KILLED = -signal.SIGKILL

pytestmark = linux_only


def test_c_code_that_holds_the_gil_is_killed() -> None:
    """No thread of Python runs any more, and the process is dead at the deadline all the same."""
    began = time.monotonic()
    status, said = run("""
threading.Thread(target=lambda: [time.sleep(0.7), say("a thread ran")], daemon=True).start()
DeadMan().arm(boottime() + 0.5)
say("armed")
stuck(60)
""")
    assert (status, said) == (KILLED, ["armed"])
    assert time.monotonic() - began < 30


def test_stopped_process_is_killed() -> None:
    """SIGSTOP past the deadline: the process is gone before anybody could wake it."""
    with Running(program("DeadMan().arm(boottime() + 1); say('armed'); time.sleep(60)")) as running:
        assert running.line() == "armed"
        os.kill(running.pid, signal.SIGSTOP)
        assert running.status() == KILLED


@pytest.mark.slow
def test_renewals_keep_it_alive_and_their_end_kills() -> None:
    """Many deadlines pass while each is moved in time; the one that is not moved is the last."""
    status, said = run("""
deadman = DeadMan()
began = boottime()
while boottime() < began + 5:
    deadman.arm(boottime() + 2)
    time.sleep(0.02)
say("alive")
time.sleep(60)
""")
    assert (status, said) == (KILLED, ["alive"])


def test_disarmed_process_lives() -> None:
    """Without a lease nothing is due: the old deadline passes, and arming anew works again."""
    status, said = run("""
deadman = DeadMan()
deadline = boottime() + 2
deadman.arm(deadline)
deadman.disarm()
time.sleep(2.3)
say("lives")
deadman.arm(deadline)
time.sleep(60)
""")
    assert (status, said) == (KILLED, ["lives"])


@pytest.mark.parametrize("deadline", ["boottime() - 5", "0", "-1"])
def test_deadline_in_the_past_kills_at_once(deadline: str) -> None:
    """A lease that lapsed while the renewal was under way is over; zero is no way to disarm."""
    assert run(f"DeadMan().arm({deadline}); time.sleep(60)") == (KILLED, [])


def test_deadline_moves_nearer() -> None:
    """A second, shorter lease counts from the moment it is there, however small the difference."""
    status, said = run("""
deadman = DeadMan(slack_s=30)
deadman.arm(boottime() + 20)
deadman.arm(boottime() + 0.3)
time.sleep(15)
""")
    assert (status, said) == (KILLED, [])


def test_deadline_moves_out_and_back() -> None:
    """What was armed last is what counts, not what was armed once."""
    status, said = run("""
deadman = DeadMan(slack_s=0.2)
began = boottime()
for deadline in (0.5, 20, 0.6):
    deadman.arm(began + deadline)
time.sleep(15)
""")
    assert (status, said) == (KILLED, [])


@pytest.mark.slow
def test_slack_never_fires_late() -> None:
    """A deadline that moves out by less than the slack is left alone, and small steps do not add up."""
    status, said = run("""
deadman = DeadMan(slack_s=0.2)
began = boottime()
deadman.arm(began + 0.5)
deadman.arm(began + 0.6)          # within the slack: still 0.5
time.sleep(60)
""")
    assert (status, said) == (KILLED, [])
    status, said = run("""
deadman = DeadMan(slack_s=0.2)
began = boottime()
for step in range(100):
    deadman.arm(began + 5 + step * 0.1)        # ends at 14.9, so at least 14.7 is armed
time.sleep(5.5)
say("lives")
deadman.arm(boottime() - 1)
time.sleep(60)
""")
    assert (status, said) == (KILLED, ["lives"])


def test_forked_child_neither_dies_nor_kills() -> None:
    """A job's fork outlives its parent's deadline, and arming its copy of the object does nothing."""
    with Running(
        program("""
deadman = DeadMan()
deadman.arm(boottime() + 2)
parent = os.getpid()
if os.fork() == 0:
    deadman.arm(boottime() - 1)
    say(deadman.reason_off)
    while os.getppid() == parent:
        time.sleep(0.02)
    time.sleep(0.3)
    say("child lives")
    os._exit(0)
time.sleep(60)
""")
    ) as running:
        assert running.line() == "forked: the timer stayed with the parent process"
        assert running.status() == KILLED
        assert running.line() == "child lives"


def test_childs_arming_leaves_the_parent_alone() -> None:
    """The parent's timer does not move when a child that inherited the object disarms, arms and closes it."""
    status, said = run("""
deadman = DeadMan()
deadman.arm(boottime() + 3)
if os.fork() == 0:
    deadman.disarm(); deadman.arm(boottime() - 1); deadman.recheck(); deadman.close()
    own = DeadMan()
    own.arm(boottime() + 100)
    os._exit(0 if own.reason_off is None else 1)
say(os.waitstatus_to_exitcode(os.wait()[1]))
time.sleep(60)
""")
    assert (status, said) == (KILLED, ["0"])


def test_fork_while_another_thread_arms() -> None:
    """A lock that was held in the moment of the fork does not hang the child."""
    status, said = run("""
deadman = DeadMan(slack_s=0)
deadman.arm(boottime() + 60)
def renew():
    while True:
        deadman.arm(boottime() + 60)
for _ in range(2):
    threading.Thread(target=renew, daemon=True).start()
for _ in range(100):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        deadman.arm(boottime()); deadman.disarm(); deadman.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
say("no child hung")
os._exit(0)
""")
    assert (status, said) == (0, ["no child hung"])


def test_exec_leaves_the_timer_behind() -> None:
    """A worker that re-executes itself parked has no lease, and no timer of its former self."""
    status, said = run("""
DeadMan().arm(boottime() + 2)
os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(3); print('parked', flush=True)"])
""")
    assert (status, said) == (0, ["parked"])


def test_timer_outlives_the_thread_that_made_it() -> None:
    """The signal is for the process: it comes when the arming thread is long gone."""
    status, said = run("""
thread = threading.Thread(target=lambda: DeadMan().arm(boottime() + 0.5))
thread.start(); thread.join()
say("armed")
stuck(60)
""")
    assert (status, said) == (KILLED, ["armed"])


@pytest.mark.slow
def test_many_threads_arm_at_once() -> None:
    """Sixteen threads renew for two seconds: nobody dies early, and when they end the last deadline holds."""
    status, said = run("""
deadman = DeadMan(slack_s=0.01)
until = boottime() + 2
def renew():
    while boottime() < until:
        deadman.arm(boottime() + 3)
threads = [threading.Thread(target=renew) for _ in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
say("alive")
stuck(60)
""")
    assert (status, said) == (KILLED, ["alive"])


def test_switched_off() -> None:
    """With QWF_DEADMAN=off nothing is armed, and the reason says so."""
    deadman = DeadMan(enabled=False)
    deadman.arm(boottime() - 1)
    deadman.disarm()
    deadman.recheck()
    assert deadman.reason_off == "switched off: QWF_DEADMAN is off"


def test_closed() -> None:
    """A closed timer is gone: a renewal that comes late at the end of a process does no harm."""
    with DeadMan() as deadman:
        assert deadman.reason_off is None
        deadman.arm(boottime() + 600)
    deadman.arm(boottime() - 1)
    deadman.close()
    assert deadman.reason_off == "closed"
    status, said = run("""
deadman = DeadMan()
deadman.arm(boottime() + 2)
deadman.close()
time.sleep(2.3)
say("lives")
""")
    assert (status, said) == (0, ["lives"])


def test_no_number_is_no_deadline() -> None:
    """A deadline that was reckoned wrongly is refused aloud; it does not silently leave the job unguarded."""
    with DeadMan() as deadman:
        for wrong in (float("nan"), float("inf")):
            with pytest.raises((ValueError, OverflowError)):
                deadman.arm(wrong)


def test_off_under_a_python_debugger() -> None:
    """A breakpoint may take as long as it likes; when the debugger has gone the guard is on again."""
    status, said = run("""
sys.settrace(lambda *_: None)
deadman = DeadMan()
say(deadman.reason_off)
deadman.arm(boottime() - 1)
sys.settrace(None)
deadman.recheck()
say(deadman.reason_off)
deadman.arm(boottime() - 1)
time.sleep(60)
""")
    assert (status, said) == (KILLED, ["traced: a Python debugger is attached", "None"])


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is there from Python 3.12 on")
def test_off_under_a_debugger_that_monitors() -> None:
    """Newer debuggers do not set a trace function; they register as a monitoring tool."""
    status, said = run("""
sys.monitoring.use_tool_id(sys.monitoring.DEBUGGER_ID, "test")
say(DeadMan().reason_off)
""")
    assert (status, said) == (0, ["traced: a Python debugger is attached"])


def test_debugger_that_attaches_later() -> None:
    """A tracer that comes while armed takes the timer off at the next look, and is named."""
    with Running(
        program("""
PR_SET_PTRACER = 0x59616d61
ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(2**64 - 1), 0, 0, 0)
deadman = DeadMan()
deadman.arm(boottime() + 60)
say(deadman.reason_off)
for _ in sys.stdin:
    deadman.recheck()
    deadman.arm(boottime() - 1)
    say(deadman.reason_off)
""")
    ) as running:
        assert running.line() == "None"
        with Running(program(_TRACER), env={"TRACEE": str(running.pid)}) as tracer:
            attached = tracer.line()
            if attached == "refused":
                pytest.skip("may not trace a process here")
            assert attached == "attached"
            running.tell("")
            assert running.line() == f"traced: process {tracer.pid} is attached as a debugger"
            tracer.tell("")
            assert tracer.line() == "detached"
        running.tell("")
        assert running.status() == KILLED


_TRACER = """
libc = ctypes.CDLL(None, use_errno=True)
tracee = int(os.environ["TRACEE"])
zero = ctypes.c_void_p(0)
PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17
if libc.ptrace(PTRACE_SEIZE, tracee, zero, zero):
    say("refused")
    sys.exit()
say("attached")
sys.stdin.readline()
assert libc.ptrace(PTRACE_INTERRUPT, tracee, zero, zero) == 0
os.waitpid(tracee, 0x40000000)  # __WALL
assert libc.ptrace(PTRACE_DETACH, tracee, zero, zero) == 0
say("detached")
"""


def test_refused_timer_is_said() -> None:
    """Where the kernel gives no timer (here: no pending signals left) the reason says which call failed."""
    status, said = run("""
import resource
resource.setrlimit(resource.RLIMIT_SIGPENDING, (0, 0))
deadman = DeadMan()
deadman.arm(boottime() - 1)
say(deadman.reason_off)
""")
    assert (status, said) == (0, ["unsupported: timer_create: Resource temporarily unavailable"])


@pid_namespace
def test_pid_1_does_not_pretend() -> None:
    """The kernel ignores the signal for PID 1 of a namespace: the object is off there and says what to do."""
    with Running(
        ["unshare", "--pid", "--fork", "--kill-child", *program("say(DeadMan().reason_off)")]
    ) as running:
        assert running.line() == "pid 1: the kernel ignores the signal there; start through the launcher"
        assert running.status() == 0


def test_importing_it_is_cheap() -> None:
    """The launcher's child sees to its timer before anything else: no database driver comes with it."""
    assert run("say({'sqlalchemy', 'psycopg', 'pydantic', 'click'} & set(sys.modules))") == (0, ["set()"])


def test_arming_is_quick() -> None:
    """Arming for every job of a busy worker costs well under one per cent of the job."""
    with DeadMan() as deadman:
        rounds = 20_000
        began = time.thread_time()
        for _ in range(rounds):
            deadman.arm(boottime() + 600)
        each_us = (time.thread_time() - began) / rounds * 1e6
    # Far above what it takes (a microsecond of processor time), so that a slow machine does not turn it red.
    assert each_us < 50


@pytest.mark.skipif(not Path("/proc/self/timers").exists(), reason="this kernel does not list timers")
def test_nothing_is_left_behind() -> None:
    """No thread and no descriptor is behind the guard, only a kernel timer, and closing deletes that."""
    gc.collect()  # what tests before left to the collector must not go while we count
    descriptors, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    with DeadMan() as deadman:
        deadman.arm(boottime() + 600)
        assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == (descriptors, threads)
        assert "notify: signal/pid" in Path("/proc/self/timers").read_text()
    assert Path("/proc/self/timers").read_text() == ""
