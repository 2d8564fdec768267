"""A command runs as asked for, tells how it ended, and leaves nothing behind, whatever it does."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from support.containers.memory_cgroups import limited_to
from support.processes.commands_kept import DAEMON, bearing, command, python, shell
from support.processes.embedded_users import SITE_PACKAGES, ordinary_user
from support.processes.programs import SOURCE, UNSHARE, Running, linux_only, pid_namespace, program, run
from support.processes.workers import until
from support.servers.places import passable_directory

from queue_workflows.errors import ExitCode, ProcessLost, SpawnRefused
from queue_workflows.host.commands import client as module
from queue_workflows.host.commands.client import Spawner, _Waiting, read_report
from queue_workflows.host.commands.command import Command, Ended, Stop
from queue_workflows.host.commands.keeper import _SOON_S, STOP
from queue_workflows.host.processes import launcher

pytestmark = linux_only

LOOKS_AROUND = """
import json, os, signal, sys
print(json.dumps({
    "env": dict(os.environ), "cwd": os.getcwd(), "argv": sys.argv[1:], "stdin": sys.stdin.read(),
    "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")),
    "leads": os.getsid(0) == os.getpid(), "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    # Without those that are the C library's own.
    "ignored": [hex(int(line.split()[1], 16) & 0x7fffffff) for line in open("/proc/self/status")
        if line.startswith("SigIgn")][0],
}))
"""


@pytest.fixture(scope="module")
def spawner() -> Iterator[Spawner]:
    with Spawner() as spawner:
        yield spawner


def keepers_of(spawner: Spawner) -> list[psutil.Process]:
    """The processes of commands, as soon as there is a spawner."""
    child = until(lambda: spawner._child)
    return psutil.Process(child.pid).children()


class Underway:
    """A command on a thread of its own."""

    def __init__(self, spawner: Spawner, command: Command) -> None:
        self.stop = Stop()
        self._pool = ThreadPoolExecutor(1)
        self._ended = self._pool.submit(spawner.run, command, stop=self.stop)
        self._pool.shutdown(wait=False)

    def ended(self) -> Ended:
        return self._ended.result(150)


def test_a_command_gets_what_was_asked_for_and_nothing_else(spawner: Spawner, tmp_path: Path) -> None:
    """Arguments untouched by any shell, its environment, its directory, three streams, no signal amiss."""
    odd = ["$HOME; `id` *", "", "two\nlines", "ünï"]
    ended = spawner.run(python(tmp_path, LOOKS_AROUND, *odd, env={"PATH": "/bin", "GREETING": "a b=c"}))
    seen = json.loads((tmp_path / "out").read_text())
    assert (ended.code, ended.signal) == (0, None)
    assert seen["env"].pop("_QWF_TREE") == ended.mark
    seen["env"].pop("LC_CTYPE", None)  # Python's own doing, where no locale is set
    assert seen == {
        "env": {"PATH": "/bin", "GREETING": "a b=c"},
        "cwd": str(tmp_path / "work"),
        "argv": odd,
        "stdin": "",
        "fds": [0, 1, 2],
        "leads": True,
        "blocked": [],
        "ignored": hex(1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)),  # by Python itself
    }


@pytest.mark.parametrize(
    ("script", "code", "killed_by"),
    [
        ("exit 0", 0, None),
        ("exit 7", 7, None),
        ("exit 137", 137, None),
        ("kill -9 $$", None, signal.SIGKILL),
        pytest.param("kill -40 $$", None, 40, marks=linux_only),  # one without a name
    ],
)
def test_a_code_and_a_signal_are_told_apart(
    spawner: Spawner, tmp_path: Path, script: str, code: int | None, killed_by: int | None
) -> None:
    """137 said by the command itself is no SIGKILL."""
    ended = spawner.run(shell(tmp_path, script))
    assert (ended.code, ended.signal, ended.timed_out, ended.stopped) == (code, killed_by, False, None)


@pytest.mark.slow
def test_a_command_that_the_kernel_killed_for_want_of_memory_is_told(tmp_path: Path) -> None:
    """Also one that a shell ran; one that is killed by hand, after that, is not said to have been."""
    fills = [sys.executable, "-S", "-c", "kept = []\nwhile True: kept.append(b'x' * (1 << 22))"]
    with limited_to(128 << 20) as cgroup:
        code, said = run(f"""
from pathlib import Path
from queue_workflows.host.commands.client import Spawner
from queue_workflows.host.commands.command import Command
Path({str(cgroup / "cgroup.procs")!r}).write_text("0")
work, fills = Path({str(tmp_path)!r}), {fills!r}
with Spawner() as spawner:
    for argv in fills, ["/bin/sh", "-c", '"$@"; exit $?', "sh", *fills], ["/bin/sh", "-c", "kill -9 $$"]:
        command = Command(argv, {{}}, work, work / "out", work / "err")
        ended = spawner.run(command)
        say(ended.code, ended.signal, ended.killed_by)
""")
    told = "by the kernel, out of memory: the limit is 128 MiB, the peak was 128 MiB"
    assert (code, said) == (0, [f"None 9 {told}", f"137 None {told}", "None 9 "])


def test_what_cannot_be_started_is_refused(spawner: Spawner, tmp_path: Path) -> None:
    """The message says what is missing: a program, its interpreter, a right, a directory."""
    for name, text, mode in [
        ("plain", "x", 0o755),
        ("odd", "#!/no/such/thing\n", 0o755),
        ("shut", "", 0o644),
    ]:
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    refused = {
        "no-such-program": "no-such-program: No such file",
        str(tmp_path / "plain"): "without a first line",
        str(tmp_path / "odd"): "or what its first line names: No such file",
        str(tmp_path / "shut"): "Permission denied",
    }
    for program_, said in refused.items():
        with pytest.raises(SpawnRefused, match=said) as wrong:
            spawner.run(command(tmp_path, program_))
        assert wrong.value.exit_code is ExitCode.CONFIGURATION
    fits = shell(tmp_path, "exit 0")
    (tmp_path / "work").rmdir()
    with pytest.raises(SpawnRefused, match="work: No such file"):
        spawner.run(fits)


def test_who_heeds_sigterm_ends_in_its_own_way(spawner: Spawner, tmp_path: Path) -> None:
    """The command tidies up within its grace, and its code counts."""
    script = "trap 'echo tidied; exit 5' TERM; touch up; while :; do sleep 0.05; done"
    under = Underway(spawner, shell(tmp_path, script, grace_s=1000))
    until((tmp_path / "work" / "up").exists)
    under.stop.request("enough")
    ended = under.ended()
    assert (ended.code, ended.stopped, (tmp_path / "out").read_text()) == (5, "enough", "tidied\n")


# Says what has become of its child: a second after it is told to end itself, or once that has ended.
PARENT = """
import signal, subprocess, sys
child = subprocess.Popen(["sleep", "1000"])
signal.signal(signal.SIGTERM, lambda *_: None)
if sys.argv[1] == "sees to it":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
open("up", "w").close()
if sys.argv[1] == "sees to it":
    signal.sigwait([signal.SIGTERM])
try:
    print("ended by", child.wait(1 if sys.argv[1] == "sees to it" else None))
except subprocess.TimeoutExpired:
    print("there")
"""


def test_a_command_sees_to_what_it_started_first(spawner: Spawner, tmp_path: Path) -> None:
    """As a script does that closes its browser: that is not ended by the signal that told the script."""
    under = Underway(spawner, python(tmp_path, PARENT, "sees to it", grace_s=1000))
    until((tmp_path / "work" / "up").exists)
    under.stop.request("enough")
    assert (under.ended().code, (tmp_path / "out").read_text()) == (0, "there\n")


def test_what_a_command_started_is_told_soon_after_it(spawner: Spawner, tmp_path: Path) -> None:
    """Long before the grace is over, where the command waits for it."""
    under = Underway(spawner, python(tmp_path, PARENT, "waits", grace_s=1000))
    until((tmp_path / "work" / "up").exists)
    under.stop.request("enough")
    assert (under.ended().code, (tmp_path / "out").read_text()) == (0, "ended by -15\n")


def test_who_ignores_sigterm_is_killed(spawner: Spawner, tmp_path: Path) -> None:
    """After its grace, with all below it, a daemon of its own included."""
    script = "import signal; signal.signal(15, 1)\n" + DAEMON + "\ntime.sleep(1000)"
    under = Underway(spawner, python(tmp_path, script, str(tmp_path / "d"), grace_s=0.2))
    until((tmp_path / "d.up").exists)
    under.stop.request("enough")
    ended = under.ended()
    assert (ended.code, ended.signal, ended.survivors) == (None, signal.SIGKILL, ())
    assert bearing(str(tmp_path / "d")) == []


def test_a_command_whose_time_is_up_is_ended(spawner: Spawner, tmp_path: Path) -> None:
    """By SIGTERM first, which most heed."""
    ended = spawner.run(shell(tmp_path, "exec sleep 1000", timeout_s=0.2, grace_s=1000))
    assert (ended.signal, ended.timed_out, ended.stopped) == (signal.SIGTERM, True, None)


def test_a_stopped_command_is_killed(spawner: Spawner, tmp_path: Path) -> None:
    """It cannot hear SIGTERM, and is not woken for it."""
    ended = spawner.run(shell(tmp_path, "kill -STOP $$; exit 0", timeout_s=0.5, grace_s=0.2))
    assert (ended.signal, ended.timed_out) == (signal.SIGKILL, True)


def test_a_daemon_ends_with_its_command(spawner: Spawner, tmp_path: Path) -> None:
    """Forked twice, in its own session, without our mark, deaf to SIGTERM; a neighbour's is untouched."""
    neighbour = Underway(spawner, python(tmp_path, DAEMON + "\ntime.sleep(1000)", str(tmp_path / "n")))
    until((tmp_path / "n.up").exists)
    other = tmp_path / "other"
    other.mkdir()
    ended = spawner.run(python(other, DAEMON, str(tmp_path / "d"), grace_s=0.2))
    assert (ended.code, ended.survivors) == (0, ())
    assert bearing(str(tmp_path / "d")) == []
    assert len(bearing(str(tmp_path / "n"))) == 2
    neighbour.stop.request("enough", grace_s=0)
    assert neighbour.ended().stopped == "enough"
    assert bearing(str(tmp_path / "n")) == []


def test_a_command_can_be_stopped_at_any_time(spawner: Spawner, tmp_path: Path) -> None:
    """Before it starts, while it runs, and again with less patience."""
    early = Stop()
    early.request("cancelled")
    ended = spawner.run(shell(tmp_path, "sleep 1000; :", grace_s=1000), stop=early)
    assert (ended.stopped, ended.signal, ended.timed_out) == ("cancelled", signal.SIGTERM, False)

    under = Underway(spawner, shell(tmp_path, "trap '' TERM; echo up; while :; do sleep 1; done"))
    until(lambda: (tmp_path / "out").exists() and (tmp_path / "out").read_text() == "up\n")
    under.stop.request("paused", grace_s=1000)
    under.stop.request("lost", grace_s=0.1)
    ended = under.ended()
    assert (ended.stopped, ended.signal) == ("paused", signal.SIGKILL)


def test_a_stop_after_the_end_is_no_stop(spawner: Spawner, tmp_path: Path) -> None:
    """Nor does it do any harm."""
    stop = Stop()
    ended = spawner.run(shell(tmp_path, "exit 3"), stop=stop)
    stop.request("late")
    assert (ended.code, ended.stopped) == (3, None)


@pytest.mark.slow
def test_output_costs_no_more_than_its_cap() -> None:
    """200 MB on both streams: counted, cut on disk, and never in anybody's memory."""
    status, said = run(
        """
import resource, tempfile
from pathlib import Path
from typing import Any
from queue_workflows.host.commands.client import Spawner
from queue_workflows.host.commands.command import Command
place = Path(tempfile.mkdtemp())
script = "echo begin >&2; head -c 200000000 /dev/urandom | tee /dev/stderr; echo end >&2"
with Spawner() as spawner:
    ended = spawner.run(Command(["/bin/sh", "-c", script], {"PATH": "/bin:/usr/bin"}, place, place / "out",
        place / "err", stdout_cap=10_000, stderr_cap=10_000))
say(ended.code, ended.stdout_bytes, ended.stdout_truncated, ended.stderr_bytes, ended.stderr_truncated)
say((place / "out").stat().st_size)
err = (place / "err").read_bytes()
say(err.startswith(b"begin\\n"), b" bytes left out " in err, err.endswith(b"end\\n"), len(err) < 11_000)
say(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 100_000)
""",
        timeout_s=110,
    )
    assert (status, said) == (
        0,
        ["0 200000000 True 200000010 True", "10000", "True True True True", "True"],
    )


@linux_only
def test_output_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """As on a full disk, which here is a limit on what the keeper may write; the command is not disturbed.

    The keeper keeps that limit, so no other test's commands may be given to it.
    """
    script = "import os, resource; resource.prlimit(os.getppid(), resource.RLIMIT_FSIZE, (100, 100))"
    with Spawner() as spawner:
        ended = spawner.run(python(tmp_path, f"{script}; print('x' * 999)"))
    assert (ended.code, ended.stdout_bytes, ended.output_error) == (0, 1000, "File too large")
    assert (tmp_path / "out").stat().st_size == 100


@pytest.mark.parametrize("stream", ["1", "2"])
def test_a_line_is_told_of_wherever_it_stands(spawner: Spawner, tmp_path: Path, stream: str) -> None:
    """Also between the beginning and the end of what is kept, while the command runs on."""
    prints = f"yes coming | head -c 3000000 >&{stream}; printf '\\nup\\r\\n' >&{stream}"
    waits = "yes going | head -c 3000000 >&2; while [ ! -e go ]; do sleep 0.05; done"
    told: list[bool] = []

    def started(ends: Callable[[float], bool]) -> None:
        while not told and not ends(1):
            pass
        (tmp_path / "work" / "go").touch()

    ended = spawner.run(
        shell(tmp_path, f"{prints}; {waits}; echo up", line="^up$", stdout_cap=100, stderr_cap=100),
        started=started,
        said=lambda: told.append((tmp_path / "work" / "go").exists()),
    )
    assert (ended.code, told) == (0, [False])
    assert (ended.stdout_truncated, ended.stderr_truncated) == (stream == "1", True)


def test_output_of_bytes_is_kept_as_it_is(spawner: Spawner, tmp_path: Path) -> None:
    """Whatever bytes they are; and what fits is not touched."""
    garbage = bytes(range(256)) * 4
    (tmp_path / "garbage").write_bytes(garbage)
    ended = spawner.run(shell(tmp_path, 'cat "$0"; cat "$0" >&2'.replace("$0", str(tmp_path / "garbage"))))
    assert (ended.stdout_bytes, ended.stdout_truncated, ended.stderr_truncated) == (1024, False, False)
    assert (tmp_path / "out").read_bytes() == (tmp_path / "err").read_bytes() == garbage


def test_output_goes_nowhere_else(spawner: Spawner, tmp_path: Path) -> None:
    """A link, or a FIFO, that stands where the output is to go is replaced, and not followed."""
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "out").symlink_to(tmp_path / "precious")
    os.mkfifo(tmp_path / "err")
    spawner.run(shell(tmp_path, "echo out; echo err >&2"))
    assert (tmp_path / "err").is_file()  # a FIFO would be read for ever
    said = [(tmp_path / name).read_text() for name in ("precious", "out", "err")]
    assert said == ["precious", "out\n", "err\n"]


def test_output_that_is_closed_early_is_no_end(spawner: Spawner, tmp_path: Path) -> None:
    """The command is waited for, not its streams."""
    ended = spawner.run(shell(tmp_path, "echo first; exec >&- 2>&-; sleep 0.2; exit 4"))
    assert (ended.code, ended.stdout_bytes) == (4, 6)


def test_output_that_a_stranger_holds_open_is_not_waited_for(spawner: Spawner, tmp_path: Path) -> None:
    """Somebody who is not below the command, and has got hold of its stream, does not block its end."""
    under = Underway(spawner, shell(tmp_path, "echo $$; while [ ! -e go ]; do sleep 0.05; done; echo last"))
    pid = int(until(lambda: (tmp_path / "out").exists() and (tmp_path / "out").read_text().strip()))
    with open(f"/proc/{pid}/fd/1", "wb"):
        (tmp_path / "work" / "go").touch()
        assert under.ended().stdout_bytes == len(f"{pid}\nlast\n")
    # Nor does it keep the pipe open.
    until(lambda: descriptors_of_idle_keepers(spawner))


@pytest.mark.parametrize("who", ["keeper", "spawner"])
def test_whoever_is_killed_the_command_ends(who: str, tmp_path: Path) -> None:
    """Its daemon too; the caller hears that it is lost, and the next command runs."""
    with Spawner() as spawner:
        under = Underway(spawner, python(tmp_path, DAEMON + "\ntime.sleep(1000)", str(tmp_path / "d")))
        until((tmp_path / "d.up").exists)
        (keeper,) = (one for one in keepers_of(spawner) if one.children())
        victim = keeper if who == "keeper" else psutil.Process(keeper.ppid())
        victim.kill()
        with pytest.raises(ProcessLost):
            under.ended()
        until(lambda: not bearing(str(tmp_path / "d")))
        until(lambda: who == "keeper" or not psutil.pid_exists(victim.pid) or spawner._child is None)
        assert spawner.run(shell(tmp_path, "exit 6")).code == 6


def test_who_stops_its_keeper_is_ended(tmp_path: Path) -> None:
    """No command gets rid of its timeout like that; the next one runs."""
    with Spawner() as spawner:
        script = f"kill -STOP $PPID; exec sleep 1000.{os.getpid()}"
        with pytest.raises(ProcessLost):
            Underway(spawner, shell(tmp_path, script, timeout_s=600)).ended()
        until(lambda: not bearing(f"sleep 1000.{os.getpid()}"))
        assert spawner.run(shell(tmp_path, "exit 6")).code == 6


def test_who_stops_the_spawner_holds_up_nobody(tmp_path: Path) -> None:
    """It goes on as soon as it is missed, and commands are started as ever."""
    with Spawner() as spawner:
        script = "kill -STOP $(ps -o ppid= -p $PPID); touch ../stopped; exec sleep 1000"
        under = Underway(spawner, shell(tmp_path, script, grace_s=0.0))
        until((tmp_path / "stopped").exists)
        others = [tmp_path / str(number) for number in range(3)]
        for other in others:
            other.mkdir()
        # Each waits for all: it takes as many keepers, more than are ready.
        together = "touch up; while [ $(ls ../../*/work/up | wc -l) -lt 3 ]; do sleep 0.05; done; exit 6"
        ran = [Underway(spawner, shell(other, together)) for other in others]
        assert [one.ended().code for one in ran] == [6, 6, 6]
        under.stop.request("enough")
        assert under.ended().stopped == "enough"


def waits_for_commands(keeper: psutil.Process) -> bool:
    """Whether it is asleep, and its place in line is taken."""
    known = Path(f"/proc/{keeper.pid}/fdinfo").iterdir()
    return any("tfd:" in one.read_text() for one in known) and keeper.status() == psutil.STATUS_SLEEPING


def descriptors_of_idle_keepers(spawner: Spawner) -> int:
    """How many each has; 0 while they differ, as one begins, ends, or has just told how its command ended."""
    try:
        seen = {one.num_fds() for one in keepers_of(spawner)}
    except psutil.NoSuchProcess:
        return 0
    return seen.pop() if len(seen) == 1 else 0


def switches_of(keepers: list[psutil.Process]) -> dict[int, int]:
    """How often each of them has gone to sleep so far."""
    return {one.pid: one.num_ctx_switches().voluntary for one in keepers}


def test_a_command_wakes_one_keeper_of_many(tmp_path: Path) -> None:
    """Whoever waits beside it sleeps on, and is not taken for busy."""
    with Spawner() as spawner:
        places = [tmp_path / str(number) for number in range(5)]
        for place in places:
            place.mkdir()
        together = "touch up; while [ $(ls ../../*/work/up | wc -l) -lt 5 ]; do sleep 0.05; done"
        for one in [Underway(spawner, shell(place, together)) for place in places]:
            one.ended()
        keepers = keepers_of(spawner)
        seen = [switches_of(keepers)]

        def all_sleep() -> bool:
            time.sleep(1.5 * _SOON_S)
            seen.append(switches_of(keepers))
            return seen[-1] == seen[-2]

        until(all_sleep)
        for _ in range(20):
            assert spawner.run(shell(tmp_path, "exit 6")).code == 6
        woken = [pid for pid, times in switches_of(keepers).items() if times != seen[-1][pid]]
        assert (len(keepers), keepers_of(spawner)) == (6, keepers)
        # One, and another where the first was not back in time.
        assert len(woken) <= 3


def test_what_a_keeper_was_woken_for_and_died_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command wakes one keeper: when that is killed before it has read, another one comes for it."""
    kept: list[int] = []
    monkeypatch.setattr(
        module,
        "spawn",
        lambda *given, pass_fds, **more: (
            kept.append(os.dup(pass_fds[0])) or launcher.spawn(*given, pass_fds=pass_fds, **more)
        ),
    )
    with Spawner() as spawner, closing(select.epoll()) as stand_in:
        under = Underway(spawner, shell(tmp_path, "exec sleep 1000"))
        (busy,) = until(lambda: [one for one in keepers_of(spawner) if one.children()])
        (spare,) = until(lambda: [one for one in keepers_of(spawner) if one.pid != busy.pid])
        # In line before the one that is ready for the next command, which is forked anew.
        stand_in.register(kept[0], select.EPOLLIN | select.EPOLLEXCLUSIVE)
        with ThreadPoolExecutor(1) as pool:
            woken = pool.submit(stand_in.poll, 60)
            spare.kill()
            fresh = until(
                lambda: [one for one in keepers_of(spawner) if one.pid not in {busy.pid, spare.pid}]
            )
            until(lambda: waits_for_commands(fresh[0]))
            other = tmp_path / "other"
            other.mkdir()
            second = Underway(spawner, shell(other, "exit 6"))
            assert woken.result()
            assert not (other / "out").exists()
            busy.kill()
            assert second.ended().code == 6
        with pytest.raises(ProcessLost):
            under.ended()
    os.close(kept[0])


def test_where_no_keeper_comes_a_stop_and_the_end_are_heeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many commands wait for one, as on a machine with too many processes."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    idle = launcher.spawn(["sleep", "1000"])
    monkeypatch.setattr(module, "_start", lambda: (idle, ours))
    monkeypatch.setattr(module, "_UNREAD_S", 0.0)
    monkeypatch.setattr(module, "_end", lambda *_: idle.kill())
    spawner = Spawner()
    commands = [tmp_path / str(number) for number in range(40)]
    for place in commands:
        place.mkdir()
    long = {"PATH": "/bin", "LONG": "x" * 1_000_000}
    waiting = [Underway(spawner, shell(place, "exit 0", env=long)) for place in commands]
    with theirs:
        for one in waiting[:20]:
            one.stop.request("enough")
        for one in waiting[:20]:
            with pytest.raises(ProcessLost):
                one.ended()
        spawner.close()
        theirs.close()
        for one in waiting[20:]:
            with pytest.raises(ProcessLost):
                one.ended()
    idle.wait()


def test_the_time_of_a_command_begins_when_a_keeper_reads_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not when it was queued, where it may have waited for a keeper for longer than it may run."""
    clock = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        waiting = _Waiting(ours, shell(tmp_path, "exit 0", timeout_s=5, grace_s=1), Stop(), lambda: None)
        waiting.send(b"what is to run")
        clock[0] += 3600
        assert waiting._is_unread()
        theirs.recv(100)
        assert not waiting._is_unread()
        assert not waiting._is_overdue(None)
        clock[0] += 5 + 1 + module._OVERDUE_S + 1
        assert waiting._is_overdue(None)


def test_a_stop_that_met_a_full_socket_is_sent_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A keeper that has yet to read a long command hears of it behind that."""
    monkeypatch.setattr(module, "_FIRST_LOOK_S", 0.01)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        waiting = _Waiting(ours, shell(tmp_path, "exit 0"), Stop(), lambda: None)
        filled = 0
        with suppress(BlockingIOError):
            while True:
                filled += ours.send(b"x" * 1024, socket.MSG_DONTWAIT)
        waiting.tell(7.0)
        waits = threading.Thread(target=waiting.until_it_speaks)
        waits.start()
        theirs.settimeout(60)
        while filled:
            filled -= len(theirs.recv(min(filled, 65_536)))
        assert STOP.unpack(theirs.recv(STOP.size)) == (7.0,)
        theirs.send(b"ended")
        waits.join(150)
        assert not waits.is_alive()


@pytest.mark.slow
def test_both_killed_at_once_leave_nothing_either(tmp_path: Path) -> None:
    """Then whoever asked for the command finds what is left of it, by its mark."""
    with Spawner() as spawner:
        under = Underway(spawner, shell(tmp_path, "setsid sleep 1000 & touch up; sleep 1000"))
        until((tmp_path / "work" / "up").exists)
        keepers = keepers_of(spawner)
        below = [one for keeper in keepers for one in keeper.children(recursive=True)]
        assert spawner._child
        for one in (psutil.Process(spawner._child.pid), *keepers):
            one.suspend()
        for one in (psutil.Process(spawner._child.pid), *keepers):
            one.kill()
        with pytest.raises(ProcessLost):
            under.ended()
        until(lambda: spawner._child is None or spawner._child.poll() is not None)
        assert spawner.run(shell(tmp_path, "exit 6")).code == 6
        until(lambda: not any(one.is_running() for one in below))


HOST = """
from pathlib import Path
from typing import Any
from queue_workflows.host.commands.client import Spawner
from queue_workflows.host.commands.command import Command
place = Path(sys.argv[1])
spawner = Spawner()
def start(number):
    argv = [sys.executable, "-S", "-c", DAEMON + "\\ntime.sleep(1000)", str(place / str(number))]
    spawner.run(Command(argv, {"PATH": "/bin"}, place, place / f"out{number}", place / f"err{number}"))
for number in range(10):
    threading.Thread(target=start, args=(number,), daemon=True).start()
while len(list(place.glob("*.up"))) < 10: time.sleep(0.01)
if os.fork() == 0: time.sleep(1000)  # somebody who has inherited every socket
say("up")
time.sleep(1000)
"""


def test_a_killed_worker_leaves_no_process(tmp_path: Path) -> None:
    """kill -9 with ten commands running, each with a daemon that cast off everything: none survives."""
    killed_leaves_nothing(tmp_path, sys.executable)


@pytest.mark.slow
def test_nor_does_that_of_an_ordinary_user() -> None:
    """No right is needed for it."""
    uid, interpreter = ordinary_user()
    with passable_directory() as place:
        place.chmod(0o777)
        env = {"PYTHONPATH": f"{SOURCE}:{SITE_PACKAGES}"}
        killed_leaves_nothing(place, interpreter, env=env, user=uid, cwd="/")


def killed_leaves_nothing(tmp_path: Path, interpreter: str, **options: Any) -> None:
    """Kill a worker with ten commands running, and wait for all that was below it to end."""
    command = [interpreter, *program(f"DAEMON = {DAEMON!r}\n" + HOST)[1:], str(tmp_path)]
    with Running(command, **options) as host:
        assert host.line() == "up"
        below = psutil.Process(host.pid).children(recursive=True)
        assert len(bearing(str(tmp_path / "9"))) == 2
        host.process.kill()
        forked = 1  # which is not ours
        until(lambda: sum(one.is_running() for one in below) <= forked)
        assert len(bearing(str(tmp_path))) == forked


@pytest.mark.slow
@pid_namespace
def test_in_a_pid_namespace_too(tmp_path: Path) -> None:
    """The same where the worker is the first process, as in a container."""
    script = HOST.replace('say("up")', 'say("up"); os.kill(spawner._child.pid, signal.SIGTERM)')
    host_and_check = f"DAEMON = {DAEMON!r}\n" + script.replace(
        "time.sleep(1000)\n",
        "spawner.close(); say(sorted(pid for pid in map(int, filter(str.isdigit, os.listdir('/proc')))))\n",
    )
    with Running([*UNSHARE, *program(host_and_check), str(tmp_path)]) as host:
        assert host.line() == "up"
        assert len(json.loads(host.line())) == 2  # itself, and the one that it forked bare


def test_nothing_leaks(tmp_path: Path) -> None:
    """Neither descriptors nor zombies, in the worker, the spawner or its keepers; and closing ends all."""
    with Spawner() as spawner:
        ours = psutil.Process()
        spawner.run(shell(tmp_path, "exit 0"))
        assert spawner._child
        theirs = psutil.Process(spawner._child.pid)
        before = (ours.num_fds(), theirs.num_fds())
        at_keeper = until(lambda: descriptors_of_idle_keepers(spawner))
        for number in range(30):
            spawner.run(shell(tmp_path, "exit 0" if number % 2 else "setsid true & exit 1"))
            with pytest.raises(SpawnRefused):
                spawner.run(command(tmp_path, "no-such-program"))
        assert (ours.num_fds(), theirs.num_fds()) == before
        assert until(lambda: descriptors_of_idle_keepers(spawner)) == at_keeper
        assert all(one.status() != psutil.STATUS_ZOMBIE for one in theirs.children(recursive=True))
        under = Underway(spawner, shell(tmp_path, "trap '' TERM; touch up; sleep 1000"))
        until((tmp_path / "work" / "up").exists)
        below = theirs.children(recursive=True)
    with pytest.raises(ProcessLost):
        under.ended()
    assert not any(one.is_running() for one in (theirs, *below))
    with pytest.raises(ProcessLost):
        spawner.run(shell(tmp_path, "exit 0"))


@pytest.mark.slow
def test_sixty_at_once_sleep(tmp_path: Path) -> None:
    """Many that run for long cost nothing while they do: nobody polls."""
    with Spawner() as spawner, ThreadPoolExecutor(60) as pool:
        stop = Stop()
        places = [tmp_path / str(number) for number in range(60)]
        for place in places:
            place.mkdir()
        stops = [Stop() for _ in places]
        ended = [
            pool.submit(spawner.run, shell(place, "touch up; exec sleep 1000"), stop=stop)
            for place, stop in zip(places, stops, strict=True)
        ]
        until(lambda: all((place / "work" / "up").exists() for place in places))
        assert spawner._child
        watched = [psutil.Process(spawner._child.pid), *keepers_of(spawner)]
        until(lambda: all(one.status() == psutil.STATUS_SLEEPING for one in watched))
        before = [one.num_ctx_switches().voluntary for one in watched]
        time.sleep(1)
        assert [one.num_ctx_switches().voluntary for one in watched] == before
        for stop in stops:
            stop.request("sealed")
        assert {(one.result(150).stopped, one.result(150).signal) for one in ended} == {
            ("sealed", signal.SIGTERM)
        }


def test_threads_may_come_and_go(tmp_path: Path) -> None:
    """The thread that ran the first command ends, and what it started lives on."""
    with Spawner() as spawner:
        first = threading.Thread(target=spawner.run, args=(shell(tmp_path, "exit 0"),))
        first.start()
        first.join(150)
        assert spawner._child
        pid = spawner._child.pid
        assert spawner.run(shell(tmp_path, "exit 2")).code == 2
        assert spawner._child.pid == pid


@pytest.mark.parametrize("said", [b"", b'{"status": 0, "timed_', b'{"status": "\xc3'])
def test_half_a_report_is_none(said: bytes) -> None:
    """Its keeper was killed in the midst of it: how the command ended is unknown."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.sendall(said)
        assert read_report(ours) is None


def test_a_stop_that_comes_as_the_command_has_ended_takes_nothing_from_its_report() -> None:
    """The keeper ends with that word unread, and its socket is then reset."""
    ours, keeper = socket.socketpair()
    with ours:
        with keeper:
            keeper.sendall(b'{"status": 0}')
            ours.sendall(b"stop")
        assert read_report(ours) == {"status": 0}
