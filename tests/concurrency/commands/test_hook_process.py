"""What a hook has beyond any other command: its last words, fit to be stored, and its daemons' pid files."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from support.processes.commands_kept import shell
from support.processes.programs import gone, linux_only
from support.processes.workers import until

from queue_workflows.engine.execution.redaction import Redactor
from queue_workflows.errors import SpawnRefused
from queue_workflows.hooks.script.pid_files import sweep_pid_files
from queue_workflows.hooks.script.process import HookExit, run_hook
from queue_workflows.host.commands.client import Spawner
from queue_workflows.host.directories.below import OpenDirectory
from queue_workflows.host.directories.data import hold
from queue_workflows.host.locks.flock import has_alone
from queue_workflows.host.processes.tree_by_mark import MARK

pytestmark = linux_only

# Starts a daemon that is nobody's child here, and says its pid.
ELSEWHERE = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if (pid := os.fork()) == 0:
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2): os.dup2(null, stream)
        time.sleep(1000)
    print(pid, flush=True)
    os._exit(0)
"""
# Another one, whose starter stays, and is waited for when it ends.
WAITED_FOR = """
import os, time
def silent():
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2): os.dup2(null, stream)
if os.fork() == 0:
    os.setsid()
    if (starter := os.fork()) == 0:
        if (pid := os.fork()) != 0:
            print(pid, flush=True)
        silent()
        time.sleep(1000)
    silent()
    os.waitpid(starter, 0)
    time.sleep(1000)
"""


@pytest.fixture
def spawner() -> Iterator[Spawner]:
    with Spawner() as spawner:
        yield spawner


@pytest.fixture
def started() -> Iterator[list[int]]:
    """The pids of daemons, which do not outlive the test."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        if not gone(pid):
            os.kill(pid, 9)


def start_elsewhere(started: list[int], env: dict[str, str] | None = None, program: str = ELSEWHERE) -> int:
    said = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, env=env)
    started.append(int(said.stdout))
    return int(said.stdout)


def test_the_last_words_of_a_hook_are_fit_to_be_stored(spawner: Spawner, tmp_path: Path) -> None:
    """The end of its stderr, without secrets, NUL, or what is no text; and all the rest of how it ended."""
    words = r"first\nkey\000 is hunter2\377\npassword=secret99\n"
    script = f"""echo '{{"type": "Result"}}'; printf '{words}' >&2; exit 3"""
    ended = run_hook(shell(tmp_path, script), spawner=spawner, redactor=Redactor(["hunter2"]))
    assert (ended.code, ended.signal, ended.timed_out, ended.stopped, ended.swept) == (
        3,
        None,
        False,
        None,
        (),
    )
    assert ended.stderr_tail == "first\nkey is ***\ufffd\npassword=***\n"
    assert ended.stdout_bytes == len('{"type": "Result"}\n')


def test_a_long_story_ends_with_its_end(spawner: Spawner, tmp_path: Path) -> None:
    """What is stored is bounded; errors stand at the end."""
    script = "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done >&2; echo the end >&2; exit 1"
    ended = run_hook(shell(tmp_path, script), spawner=spawner)
    assert ended.stderr_tail.startswith("…\nline ")
    assert ended.stderr_tail.endswith("line 2999\nthe end\n")
    assert len(ended.stderr_tail) <= 8000


@pytest.mark.parametrize("put", ["mkfifo ../err", "ln -s ../secret ../err"])
def test_what_a_hook_puts_in_place_of_its_log_is_not_opened(
    spawner: Spawner, tmp_path: Path, put: str
) -> None:
    """A FIFO would hold up the worker's thread for ever, a link would show what only the worker may read."""
    (tmp_path / "secret").write_text("the worker's own")
    ends: list[HookExit] = []
    script = f"echo 'what it said' >&2; rm ../err; {put}; exit 3"
    running = threading.Thread(
        target=lambda: ends.append(run_hook(shell(tmp_path, script), spawner=spawner)), daemon=True
    )
    running.start()
    running.join(150)
    assert [(ended.code, ended.stderr_tail) for ended in ends] == [(3, "what it said\n")]


def test_a_daemon_that_only_its_pid_file_names_is_ended(
    spawner: Spawner, tmp_path: Path, started: list[int]
) -> None:
    """It was started for the hook by somebody else, while the hook ran; its file goes too."""
    with ThreadPoolExecutor(1) as pool:
        hook = pool.submit(
            run_hook, shell(tmp_path, "touch up; until [ -s d.pid ]; do sleep 0.05; done"), spawner=spawner
        )
        until((tmp_path / "work" / "up").exists)
        pid = start_elsewhere(started)
        (tmp_path / "work" / "d.new").write_text(f"{pid}\n")
        (tmp_path / "work" / "d.new").rename(tmp_path / "work" / "d.pid")
        assert hook.result(150).swept == (pid,)
    assert gone(pid)
    assert not (tmp_path / "work" / "d.pid").exists()


@pytest.mark.slow
def test_a_strangers_process_is_left_alone(spawner: Spawner, tmp_path: Path, started: list[int]) -> None:
    """One older than the hook, one of another hook, one of another mark, ourselves, init: all live on."""
    older = start_elsewhere(started)
    until(lambda: time.time() > psutil.Process(older).create_time() + 2.5)
    with ThreadPoolExecutor(1) as pool:
        other = tmp_path / "other"
        other.mkdir()
        (other / "work").mkdir()
        running = pool.submit(
            run_hook,
            shell(other, "echo $$ > new; mv new own.pid; until [ -e go ]; do sleep 0.05; done"),
            spawner=spawner,
        )
        neighbour = int(
            until(lambda: (other / "work/own.pid").exists() and (other / "work/own.pid").read_text())
        )
        marked = start_elsewhere(started, {"_QWF_TREE": "0" * 32})
        pids = {"older": older, "neighbour": neighbour, "marked": marked, "we": os.getpid(), "init": 1}
        writes = "; ".join(f"echo {pid} > {name}.pid" for name, pid in pids.items())
        ended = run_hook(shell(tmp_path, writes), spawner=spawner)
        assert (ended.code, ended.swept) == (0, ())
        assert not [name for name, pid in pids.items() if gone(pid)]
        (other / "work" / "go").touch()
        assert running.result(150).code == 0


def sweep(directory: Path, mark: str, pids: Mapping[str, int], *, since: float) -> tuple[int, ...]:
    """Sweep pid files of these names that were written just now."""
    for name, pid in pids.items():
        (directory / f"{name}.pid").write_text(str(pid))
    return sweep_pid_files(directory, mark=mark, since=since, grace_s=0)


def test_neither_we_nor_who_is_above_or_below_us_is_a_hooks_daemon(tmp_path: Path) -> None:
    """What this process has started is other hooks'; the files stay, as who is named lives."""
    began = time.time() - 1
    with subprocess.Popen(["sleep", "100"]) as below:
        try:
            pids = {"we": os.getpid(), "above": os.getppid(), "below": below.pid}
            assert sweep(tmp_path, "0" * 32, {"below": below.pid}, since=began) == ()
            assert sweep(tmp_path, "0" * 32, pids, since=0.0) == ()
            assert below.poll() is None
            assert len(list(tmp_path.glob("*.pid"))) == 3
        finally:
            below.kill()


def test_a_daemon_of_another_user_or_another_mark_is_left_alone(
    tmp_path: Path, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever it was started; that of the hook's own mark is ended, and so is our own without any."""
    began = time.time() - 1
    plain, marked = start_elsewhere(started), start_elsewhere(started, {MARK: "a" * 32 + "/command-1"})
    with monkeypatch.context() as as_another:
        as_another.setattr(os, "getuid", lambda: -1)
        assert sweep(tmp_path, "b" * 32, {"plain": plain, "marked": marked}, since=began) == ()
    assert (gone(plain), gone(marked)) == (False, False)
    assert sweep(tmp_path, "b" * 32, {"plain": plain, "marked": marked}, since=began) == (plain,)
    assert sweep(tmp_path, "a" * 32, {"marked": marked}, since=time.time()) == (marked,)
    assert (gone(plain), gone(marked)) == (True, True)


def test_a_daemon_whose_starter_ends_as_it_is_looked_at_is_ended(
    tmp_path: Path, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is above it ends between two looks: the daemon itself is there, and is the hook's own."""
    began = time.time() - 1
    pid = start_elsewhere(started, program=WAITED_FOR)
    starter, parent = psutil.Process(pid).ppid(), psutil.Process.parent
    started += [starter, psutil.Process(starter).ppid()]

    def ends_first(process: psutil.Process) -> psutil.Process | None:
        if process.pid == starter and not gone(starter):
            os.kill(starter, 9)
            until(lambda: not psutil.pid_exists(starter))
        return parent(process)

    monkeypatch.setattr(psutil.Process, "parent", ends_first)
    assert sweep(tmp_path, "b" * 32, {"d": pid}, since=began) == (pid,)
    assert gone(pid)


def test_where_hosts_share_a_directory_only_what_bears_the_mark_is_the_hooks(
    tmp_path: Path, started: list[int]
) -> None:
    """A file may be another host's: its number says nothing here, and it stays, whoever has that number."""
    began = time.time() - 1
    plain, marked = start_elsewhere(started), start_elsewhere(started, {MARK: "a" * 32 + "/command-1"})
    for name, pid in {"plain": plain, "marked": marked, "nobody": 999999999}.items():
        (tmp_path / f"{name}.pid").write_text(str(pid))
    swept = sweep_pid_files(tmp_path, mark="a" * 32, since=began, grace_s=0, is_shared=True)
    assert (swept, gone(plain), gone(marked)) == ((marked,), False, True)
    assert sorted(path.name for path in tmp_path.glob("*.pid")) == ["nobody.pid", "plain.pid"]


def test_a_pid_file_from_before_is_not_this_hooks(tmp_path: Path) -> None:
    """It is that of another hook of the plugin, which sees to it, and stays."""
    (tmp_path / "d.pid").write_text("999999999")
    began = (tmp_path / "d.pid").stat().st_mtime + 10
    assert sweep_pid_files(tmp_path, mark="0" * 32, since=began, grace_s=0) == ()
    assert (tmp_path / "d.pid").exists()


def test_a_number_that_was_used_again_is_nobodys(tmp_path: Path, started: list[int]) -> None:
    """A process younger than the file that names it is another one; the file is stale, and goes."""
    pid = start_elsewhere(started)
    born = psutil.Process(pid).create_time()
    (tmp_path / "d.pid").write_text(str(pid))
    os.utime(tmp_path / "d.pid", (born - 50, born - 50))
    assert sweep_pid_files(tmp_path, mark="0" * 32, since=born - 100, grace_s=0) == ()
    assert not gone(pid)
    assert not (tmp_path / "d.pid").exists()


def test_odd_pid_files_are_no_trouble(tmp_path: Path) -> None:
    """A link out of the directory, a FIFO, a directory, no number, a huge one, one of nobody."""
    (tmp_path / "outside").write_text("1")
    (tmp_path / "link.pid").symlink_to(tmp_path / "outside")
    os.mkfifo(tmp_path / "fifo.pid")
    (tmp_path / "directory.pid").mkdir()
    for name, text in [
        ("words", "chrome"),
        ("empty", ""),
        ("huge", "9" * 60),
        ("minus", "-1"),
        ("zero", "0"),
    ]:
        (tmp_path / f"{name}.pid").write_text(text)
    (tmp_path / "nobody.pid").write_text("999999999")
    assert sweep_pid_files(tmp_path, mark="0" * 32, since=time.time() - 10, grace_s=0) == ()
    assert not (tmp_path / "nobody.pid").exists()
    assert len(list(tmp_path.glob("*.pid"))) == 8
    assert sweep_pid_files(tmp_path / "nowhere", mark="0" * 32, since=0, grace_s=0) == ()


@pytest.mark.parametrize("what", ["work", "printed"])
def test_a_hook_neither_works_nor_prints_behind_a_link(spawner: Spawner, tmp_path: Path, what: str) -> None:
    """Which another hook has put in the place of a directory; what is there stays as it is."""
    runs, outside = tmp_path / "runs", tmp_path / "outside"
    for directory in (runs / "1" / "work", runs / "1" / "printed", outside):
        directory.mkdir(parents=True)
    (outside / "out").write_text("another's")
    asked = replace(
        shell(tmp_path, "touch here; echo hello"),
        cwd=runs / "1" / "work",
        stdout_path=runs / "1" / "printed" / "out",
        stderr_path=runs / "1" / "printed" / "err",
        beneath=runs,
    )
    assert run_hook(asked, spawner=spawner).code == 0
    assert (runs / "1" / "printed" / "out").read_text() == "hello\n"
    (runs / "1" / what).rename(runs / "1" / "away")
    (runs / "1" / what).symlink_to(outside)
    with pytest.raises(SpawnRefused):
        run_hook(asked, spawner=spawner)
    assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("out", "another's")]


def is_free(directory: Path) -> bool:
    """Whether nobody holds it: its keeper lets go when the hook has begun."""
    others = os.open(directory, os.O_RDONLY)
    try:
        return has_alone(others)
    finally:
        os.close(others)


def test_a_run_that_is_held_is_found_wherever_it_was_moved(spawner: Spawner, tmp_path: Path) -> None:
    """And nobody but who holds it keeps it from removal while its hook runs."""
    runs, outside = tmp_path / "runs", tmp_path / "outside"
    outside.mkdir()
    held = hold(runs, "1")
    (runs / "1" / "work").mkdir()
    (runs / "1").rename(runs / "away")
    (runs / "1").symlink_to(outside)
    asked = replace(
        shell(tmp_path, "touch here; echo hello; until [ -e end ]; do sleep 0.02; done"),
        cwd=runs / "1" / "work",
        stdout_path=runs / "1" / "out",
        stderr_path=runs / "1" / "err",
        beneath=OpenDirectory(str(runs / "1"), held),
    )
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(run_hook, asked, spawner=spawner)
        until((runs / "away" / "work" / "here").exists)
        os.close(held)
        try:
            until(lambda: is_free(runs / "away"))
        finally:
            (runs / "away" / "work" / "end").touch()
        assert ended.result().code == 0
    assert (runs / "away" / "out").read_text() == "hello\n"
    assert list(outside.iterdir()) == []


def test_pid_files_behind_a_link_are_left_alone(tmp_path: Path) -> None:
    """They are those of another directory."""
    (tmp_path / "away").mkdir()
    (tmp_path / "away" / "stale.pid").write_text("999999999")
    (tmp_path / "work").symlink_to(tmp_path / "away")
    assert sweep_pid_files(tmp_path / "work", mark="m", since=0.0, grace_s=0.0, beneath=tmp_path) == ()
    assert (tmp_path / "away" / "stale.pid").exists()
    assert sweep_pid_files(tmp_path / "away", mark="m", since=0.0, grace_s=0.0, beneath=tmp_path) == ()
    assert not (tmp_path / "away" / "stale.pid").exists()
