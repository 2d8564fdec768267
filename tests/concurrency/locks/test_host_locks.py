"""Locks of a machine, with the kernel's flock and real processes."""

from __future__ import annotations

import mmap
import os
import signal
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.processes.programs import Running, gone, linux_only
from support.processes.workers import until

import queue_workflows
from queue_workflows.db.doctor.findings import Status
from queue_workflows.errors import ConfigurationError, ExitCode, LockHeld, LockUnusable
from queue_workflows.host.janitor.doctor_checks import check_locks
from queue_workflows.host.locks import flock
from queue_workflows.host.locks import lock as locks
from queue_workflows.host.locks.flock import lock_directory
from queue_workflows.host.locks.lock import Absent, Free, Held, HostLock, Unusable, lock_file_name, probe
from queue_workflows.host.locks.owner_note import MARK, Claim, read_claim, write_claim
from queue_workflows.host.mounts import network_file_system

LIGHT = """
import os, subprocess, sys, time
from pathlib import Path
from queue_workflows.host.locks.owner_note import Claim
from queue_workflows.host.locks.lock import Absent, Free, HostLock, probe
directory = Path(sys.argv[1])
def say(*words): os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""
HOLD = "lock = HostLock('camera', directory=directory); lock.acquire(); say('held'); sys.stdin.readline()"


def light(text: str, directory: Path, *arguments: str, **options: Any) -> Running:
    """A program that imports locks and nothing else of ours."""
    return Running([sys.executable, "-c", LIGHT + text, str(directory), *arguments], **options)


@contextmanager
def holding(directory: Path) -> Iterator[Running]:
    """Another process that has the lock."""
    with light(HOLD, directory) as holder:
        assert holder.line() == "held"
        yield holder


def test_the_lock_of_a_killed_holder_is_free_at_once(tmp_path: Path) -> None:
    """`kill -9` leaves a file and no lock: the very next try has it."""
    lock = HostLock("camera", directory=tmp_path)
    with holding(tmp_path) as holder:
        assert not lock.try_acquire()
        holder.process.kill()
        holder.process.wait()
        assert lock.try_acquire()
    assert lock.held
    lock.release()
    assert not lock.held


def test_a_probe_tells_the_held_from_the_free(tmp_path: Path) -> None:
    """Of a held lock its age and holder; a free one is in the prober's hand until it lets go."""
    file = lock_file_name("camera")
    with holding(tmp_path) as holder:
        found = probe(tmp_path, file, now=lambda: time.time() + 100)
        assert isinstance(found, Held)
        assert found.claim == Claim("camera", holder.pid)
        assert 100 <= found.age_s < 400
    found = probe(tmp_path, file)
    assert isinstance(found, Free)
    assert not HostLock("camera", directory=tmp_path).try_acquire()
    found.release()
    assert (tmp_path / file).exists()
    found = probe(tmp_path, file)
    assert isinstance(found, Free)
    found.unlink_and_release()
    assert not (tmp_path / file).exists()
    with HostLock("camera", directory=tmp_path) as lock:
        assert lock.held


def test_of_two_who_look_neither_is_in_the_way(tmp_path: Path) -> None:
    """Both find the lock free; nobody removes the file while another looks, and waiting outlasts a look."""
    file = lock_file_name("camera")
    before = HostLock("camera", directory=tmp_path)
    before.acquire()
    before.release()
    one, other = probe(tmp_path, file), probe(tmp_path, file)
    assert isinstance(one, Free)
    assert isinstance(other, Free)
    one.unlink_and_release()
    assert (tmp_path / file).exists()
    lock = HostLock("camera", directory=tmp_path)
    lock.acquire(timeout_s=0, sleep=lambda _: other.release())
    assert lock.held
    lock.release()


def test_of_an_absent_file_a_probe_makes_none(tmp_path: Path) -> None:
    """Who means to clear something away that has no lock file takes the lock, and removes the file after."""
    assert probe(tmp_path, lock_file_name("camera")) == Absent()
    assert not list(tmp_path.iterdir())
    lock = HostLock("camera", directory=tmp_path)
    assert lock.try_acquire()
    assert isinstance(probe(tmp_path, lock_file_name("camera")), Held)
    lock.unlink_and_release()
    assert [file.name for file in tmp_path.iterdir()] == [MARK]


def test_a_child_may_be_given_the_lock(tmp_path: Path) -> None:
    """Who hands the descriptor on has a child that holds the lock after its parent was killed."""
    text = (
        "lock = HostLock('camera', directory=directory); lock.acquire()\n"
        "child = subprocess.Popen(['cat'], stdin=subprocess.PIPE, pass_fds=[lock.fileno()], stdout=2)\n"
        "end = os.dup(child.stdin.fileno()); os.set_inheritable(end, True)\n"
        "keeper = subprocess.Popen(['sleep', '600'], pass_fds=[end], stdout=2)\n"
        "say(child.pid, keeper.pid); time.sleep(600)"
    )
    with light(text, tmp_path) as holder:
        child, keeper = map(int, holder.line().split())
        try:
            holder.process.kill()
            holder.process.wait()
            assert not gone(child)
            assert isinstance(probe(tmp_path, "camera.hostlock"), Held)
        finally:
            os.kill(keeper, signal.SIGKILL)
        HostLock("camera", directory=tmp_path).acquire(timeout_s=60)
        locks._hold_none()


def test_a_lock_that_is_let_go_of_is_free_for_all_who_have_its_descriptor(tmp_path: Path) -> None:
    """Else a child between its fork and its exec, or one that was handed it, would keep the next one out."""
    lock = HostLock("camera", directory=tmp_path)
    lock.acquire()
    copy = os.dup(lock.fileno())
    lock.release()
    assert HostLock("camera", directory=tmp_path).try_acquire()
    os.close(copy)


def test_a_file_that_somebody_else_put_there_is_not_removed(tmp_path: Path) -> None:
    """Where a stranger replaced the file under a prober, the new one may be somebody's lock."""
    (tmp_path / MARK).touch()
    (tmp_path / "camera.hostlock").touch()
    found = probe(tmp_path, lock_file_name("camera"))
    assert isinstance(found, Free)
    (tmp_path / "camera.hostlock").unlink()
    with HostLock("camera", directory=tmp_path) as lock:
        found.unlink_and_release()
        assert lock.path.exists()


def test_a_program_that_waits_says_so_without_any_logging(tmp_path: Path) -> None:
    """On stderr: for what it waits, which process has it, and since when."""
    text = "with HostLock('camera', directory=directory): say('mine')"
    with holding(tmp_path) as holder, light(text, tmp_path, stderr=subprocess.PIPE) as waiting:
        assert waiting.process.stderr
        said = waiting.process.stderr.readline()
        taken = datetime.fromtimestamp((tmp_path / "camera.hostlock").stat().st_mtime).astimezone()
        since = f"{taken:%Y-%m-%d %H:%M:%S%z}"
        assert said == f"waiting for the lock 'camera', which process {holder.pid} holds since {since}\n"
        holder.tell("end")
        assert waiting.line() == "mine"
        waiting.process.stderr.close()


def test_a_clean_run_leaves_no_file(tmp_path: Path) -> None:
    """The end of a `with` removes it; that of a killed holder stays."""
    with HostLock("camera", directory=tmp_path) as lock:
        assert lock.path.exists()
    assert not lock.path.exists()
    with holding(tmp_path) as holder:
        holder.process.kill()
        holder.process.wait()
    assert lock.path.exists()


def test_a_file_that_a_clean_run_removed_is_no_lock(tmp_path: Path) -> None:
    """A process that had opened it before meets the next holder all the same."""
    text = """
from queue_workflows.host.locks import flock
opened = flock._opened
def then_waits(*given):
    descriptor = opened(*given)
    say("opened"); sys.stdin.readline()
    return descriptor
flock._opened = then_waits
say(HostLock("camera", directory=directory).try_acquire())
"""
    with ExitStack() as stack:
        with HostLock("camera", directory=tmp_path):
            late = stack.enter_context(light(text, tmp_path))
            assert late.line() == "opened"
        with HostLock("camera", directory=tmp_path):
            late.tell("go on")
            assert late.line() == "opened"  # the file of the next holder, this time
            late.tell("go on")
            assert late.line() == "False"


@pytest.mark.parametrize("how", ["subprocess", "fork"])
def test_a_child_that_outlives_the_holder_has_no_lock(tmp_path: Path, how: str) -> None:
    """Neither a command nor a fork of the holder keeps what the holder had."""
    child = {
        "subprocess": "pid = subprocess.Popen(['sleep', '600'], close_fds=False, stdout=2).pid",
        "fork": "pid = os.fork()\nif pid == 0: os.close(1); time.sleep(600)",
    }
    text = f"HostLock('camera', directory=directory).acquire()\n{child[how]}\nsay(pid); time.sleep(600)"
    with light(text, tmp_path) as holder:
        pid = int(holder.line())
        try:
            assert not HostLock("camera", directory=tmp_path).try_acquire()
            holder.process.kill()
            holder.process.wait()
            # A fork lets go of its copies before it does anything else, which takes it a moment.
            lock = HostLock("camera", directory=tmp_path)
            lock.acquire(timeout_s=60)
            lock.release()
            assert not gone(pid)
        finally:
            os.kill(pid, signal.SIGKILL)


def test_a_second_acquire_blocks_until_the_first_ends(tmp_path: Path) -> None:
    """It waits while the holder lives, and has the lock once that has ended."""
    waiting = (
        "lock = HostLock('camera', directory=directory)\n"
        "waited = []\n"
        "lock.acquire(on_wait=lambda s: waited or (waited.append(s), say('waits')))\n"
        "say('held', lock.held)"
    )
    with holding(tmp_path) as first, light(waiting, tmp_path) as second:
        assert second.line() == "waits"
        assert isinstance(probe(tmp_path, "camera.hostlock"), Held)
        assert not gone(first.pid)
        first.tell("end")
        assert second.line() == "held True"
        until(lambda: gone(first.pid))  # a process that ends lets go of its files first


def test_waiting_ends_at_its_time_and_by_an_exception(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Who waits says whom for, gives up when told to, and then holds nothing."""
    caplog.set_level("INFO")
    lock = HostLock("camera", directory=tmp_path)
    with HostLock("camera", directory=tmp_path, note="the first"):
        with pytest.raises(LockHeld) as refused:
            lock.acquire(timeout_s=0.05)
        assert refused.value.exit_code == ExitCode.DEADLINE
        assert f"process {os.getpid()} (the first) holds it" in str(refused.value)

        def stop(waited_s: float) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            lock.acquire(on_wait=stop)
        assert not lock.held
    assert caplog.text.count("waiting for the lock 'camera'") == 1  # else `on_wait` says what there is to say


UNLINKING_RACE = """
import mmap, struct
from queue_workflows.host.locks import flock, lock as locks
def then_yields(function):
    # The other gets its turn between any two steps, however busy the machine is.
    def both(*given, **named):
        try: return function(*given, **named)
        finally: time.sleep(0)
    return both
flock._opened, locks.remove, locks.unlock = map(then_yields, (flock._opened, locks.remove, locks.unlock))
rounds, seats = int(sys.argv[2]) // 2, mmap.mmap(os.open(sys.argv[3], os.O_RDWR), 8)
mine, other = (0, 4) if sys.argv[4] == "acquire" else (4, 0)
def alone():
    # Both write before they read: of two that are here at once, one sees the other.
    struct.pack_into("i", seats, mine, 1)
    for look in range(300):
        if look == 150: time.sleep(0)
        assert seats[other] == 0, "two holders"
    struct.pack_into("i", seats, mine, 0)
say("ready"); sys.stdin.readline()
lock = HostLock("camera", directory=directory)
while rounds:
    if mine == 0:
        if not lock.try_acquire(): os.sched_yield(); continue
        alone(); lock.release()
    else:
        found = probe(directory, "camera.hostlock")
        if isinstance(found, Absent): found = HostLock("camera", directory=directory); found.try_acquire()
        if not (isinstance(found, Free) or getattr(found, "held", False)): os.sched_yield(); continue
        alone(); found.unlink_and_release()
    rounds -= 1
say("done")
"""


@pytest.mark.parametrize("taken", [False, True])
def test_who_opened_a_file_that_was_removed_meanwhile_has_not_its_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    """Between its opening and its lock the holder removes it: it is the next file's lock that counts."""
    former, next_one, late = (HostLock("camera", directory=tmp_path) for _ in range(3))
    former.acquire()
    opened = flock._opened

    def and_removed(path: Path, create: bool) -> int:
        descriptor = opened(path, create)
        if former.held:
            former.unlink_and_release()
            if taken:
                next_one.acquire()
        return descriptor

    monkeypatch.setattr(flock, "_opened", and_removed)
    assert late.try_acquire() is not taken
    assert isinstance(probe(tmp_path, "camera.hostlock"), Held)
    for lock in (next_one, late):
        lock.release()


@pytest.mark.parametrize("rounds", [300, pytest.param(4_000, marks=pytest.mark.nightly)])
def test_no_two_hold_a_lock_whose_file_is_being_removed(tmp_path: Path, rounds: int) -> None:
    """One process takes the lock over and over, another removes its file as often: never two holders."""
    seats = tmp_path / "seats"
    seats.write_bytes(bytes(mmap.PAGESIZE))
    (tmp_path / "locks").mkdir()
    arguments = (tmp_path / "locks", str(rounds), str(seats))
    with (
        light(UNLINKING_RACE, *arguments, "acquire") as one,
        light(UNLINKING_RACE, *arguments, "probe") as two,
    ):
        for process in (one, two):
            assert process.line() == "ready"
        for process in (one, two):
            process.tell("go")
        assert [process.line() for process in (one, two)] == ["done", "done"]
    assert struct.unpack("ii", seats.read_bytes()[:8]) == (0, 0)


def test_a_lock_that_nobody_refers_to_stays_held(tmp_path: Path) -> None:
    """Its life is the process's, not the garbage collector's."""
    HostLock("camera", directory=tmp_path).acquire()
    try:
        assert isinstance(probe(tmp_path, "camera.hostlock"), Held)
    finally:
        locks._hold_none()


@pytest.mark.parametrize("closed", [0, 2])
def test_a_lock_is_never_the_number_of_a_closed_stream(tmp_path: Path, closed: int) -> None:
    """What is said on a stderr that was closed stays out of the file, and a daemon's `dup2` frees no lock."""
    text = (
        f"os.close({closed})\nlock = HostLock('camera', directory=directory); lock.acquire()\n"
        "try: os.write(2, b'a message')\nexcept OSError: pass\n"
        "os.dup2(1, 0); os.dup2(1, 2)\n"
        "say('', lock.holder() is not None, type(probe(directory, lock.path.name)).__name__)"
    )
    with light(text, tmp_path) as one:
        assert one.line().split()[-2:] == ["True", "Held"]


@pytest.mark.parametrize("deadline_s", [timedelta(minutes=5), "60", -1, 0, True, float("nan"), float("inf")])
def test_what_cannot_be_written_down_is_refused_before_the_lock_is_held(
    tmp_path: Path, deadline_s: float
) -> None:
    """Else it would stay held by an `acquire` that raised, or its file be none that others can read."""
    with pytest.raises(LockUnusable, match=r"its deadline_s is .* give a number"):
        HostLock("camera", directory=tmp_path, deadline_s=deadline_s)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["x" * 10_000, "😀" * 1_000, "\x01" * 1_000])
def test_a_long_name_and_note_can_be_read_again(tmp_path: Path, name: str) -> None:
    """Cut, so that the file is not taken for a stranger's, which nobody would ever clear away."""
    lock = HostLock(name, directory=str(tmp_path), note="😀" * 1_000)  # type: ignore[arg-type]
    lock.acquire()
    assert lock.holder() == Claim(name[:200], os.getpid(), None, "😀" * 200)
    lock.release()
    found = probe(tmp_path, lock.path.name)
    assert isinstance(found, Free)
    found.release()


def test_two_holders_of_one_process_exclude_each_other(tmp_path: Path) -> None:
    """Threads of one worker are as strangers to each other; and one object holds but once."""
    with HostLock("camera", directory=tmp_path) as lock:
        assert not HostLock("camera", directory=tmp_path).try_acquire()
        with pytest.raises(RuntimeError, match="held by this object already"):
            lock.try_acquire()


def test_the_file_says_who_holds_it_since_when(tmp_path: Path) -> None:
    """For people: name, pid, deadline; its time is that of the acquisition."""
    path = tmp_path / "camera.hostlock"
    path.write_text('{"name": "camera", "pid": 1, "note": "' + "long" * 200 + '"}')
    os.utime(path, (1, 1))
    with HostLock("camera", directory=tmp_path, deadline_s=60, note="n" * 1000) as lock:
        assert lock.holder() == Claim("camera", os.getpid(), 60, "n" * 200)
        assert time.time() - path.stat().st_mtime < 600
        fd = lock._fd
        assert fd is not None
        assert not os.get_inheritable(fd)


def test_no_two_names_share_a_file() -> None:
    """What a file's name cannot bear is replaced, and told apart by a digest."""
    names = [
        "a",
        "a_b",
        "a/b",
        "a b",
        "a~b",
        "../a",
        ".a",
        "_a",
        ".",
        "..",
        "ä",
        "x" * 96,
        "x" * 97,
        "x" * 98,
    ]
    files = [lock_file_name(name) for name in names]
    assert len({file.lower() for file in files}) == len(names)
    assert all(len(file) <= 128 and "/" not in file and not file.startswith(".") for file in files)
    assert files[:2] == ["a.hostlock", "a_b.hostlock"]
    for nameless in ("", "a\0b", None, 5, b"a"):
        with pytest.raises(LockUnusable, match="a lock needs a name"):
            lock_file_name(nameless)  # type: ignore[arg-type]


def test_what_is_no_lock_of_ours_is_left_alone(tmp_path: Path) -> None:
    """A probe of something odd says what is wrong, and changes nothing."""

    def why(file: str, directory: Path = tmp_path) -> str:
        found = probe(directory, file)
        assert isinstance(found, Unusable)
        return found.why

    (tmp_path / "words.hostlock").write_text("words")
    (tmp_path / "number.hostlock").write_text("7")
    (tmp_path / "directory.hostlock").mkdir()
    (tmp_path / "link.hostlock").symlink_to("words.hostlock")
    os.mkfifo(tmp_path / "pipe.hostlock")
    (tmp_path / "twice.hostlock").touch()
    (tmp_path / "again.hostlock").hardlink_to(tmp_path / "twice.hostlock")
    before = sorted((path.name, path.lstat().st_mtime_ns) for path in tmp_path.iterdir())
    assert "not a holder's" in why("words.hostlock")
    assert "not a holder's" in why("number.hostlock")
    assert "directory" in why("directory.hostlock").lower()
    assert "symbolic links" in why("link.hostlock")
    assert "not a regular file" in why("pipe.hostlock")
    assert "another name" in why("twice.hostlock")
    assert "No such file" in why("camera.hostlock", tmp_path / "missing")
    assert sorted((path.name, path.lstat().st_mtime_ns) for path in tmp_path.iterdir()) == before
    with pytest.raises(LockUnusable, match=r"missing/camera.hostlock: No such file .* QWF_LOCK_DIR"):
        HostLock("camera", directory=tmp_path / "missing").acquire()
    with pytest.raises(LockUnusable, match="it is not a regular file"):
        HostLock("pipe", directory=tmp_path).acquire()
    with HostLock("words", directory=tmp_path) as lock:
        assert lock.holder() == Claim("words", os.getpid())


MOUNTS = """\
22 27 0:21 / / rw,relatime - ext4 /dev/vda rw
23 22 0:22 / /net rw - nfs4 server:/export rw
24 23 0:23 / /net/local\\040disk rw shared:1 - xfs /dev/vdb rw
25 22 0:24 / /over rw - ext4 /dev/vdc rw
26 25 0:25 / /over rw - fuse.sshfs there: rw
27 22 0:26 / /layers rw - fuse.fuse-overlayfs none rw
28 22 0:27 / /guest rw - virtiofs none rw
odd
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/run", None),
        ("/net", "nfs4"),
        ("/net/locks", "nfs4"),
        ("/network", None),
        ("/net/local disk/locks", None),
        ("/over/locks", "fuse.sshfs"),
        ("/layers", None),
        ("/guest", None),
    ],
)
def test_network_file_systems_are_known(tmp_path: Path, path: str, kind: str | None) -> None:
    """By the innermost mount around the path, and the last on one place."""
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text(MOUNTS)
    assert network_file_system(Path(path), mountinfo=mountinfo) == kind
    assert network_file_system(Path(path), mountinfo=tmp_path / "none") is None


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that forgets a lock would let two in: the message names the kind and the setting."""
    monkeypatch.setattr("queue_workflows.host.locks.flock.network_file_system", lambda path: "nfs4")
    with pytest.raises(ConfigurationError, match=r"network file system \(nfs4\), .* QWF_LOCK_DIR"):
        HostLock("camera", directory=tmp_path)
    with pytest.raises(ConfigurationError, match="network file system"):
        lock_directory(tmp_path)


def _strangers(place: Path) -> None:
    place.mkdir()
    os.chown(place, 12345, 12345)


def _open_to_all(place: Path) -> None:
    place.mkdir()
    place.chmod(0o777)


def _led_elsewhere(place: Path) -> None:
    (place.parent / "elsewhere").mkdir()
    place.symlink_to("elsewhere")
    os.lchown(place, 12345, 12345)


def _led_nowhere(place: Path) -> None:
    place.symlink_to("nowhere")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_strangers, "it belongs to user 12345"),
        (_open_to_all, "everybody may remove what lies there"),
        (_led_elsewhere, "it is a link of user 12345"),
        (_led_nowhere, "this user cannot write"),
    ],
)
def test_a_strangers_directory_of_locks_is_refused(
    make: Callable[[Path], None], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever was first where all may write could remove held locks: nobody locks there, nor elsewhere."""
    if make in (_strangers, _led_elsewhere) and os.geteuid():
        pytest.skip("only root may give a directory away")
    shared = tmp_path / "shared"
    make(shared)
    monkeypatch.setattr("queue_workflows.host.locks.flock.SHARED", shared)
    with pytest.raises(ConfigurationError, match=words):
        lock_directory(None)
    if not shared.is_symlink():
        (check, *_) = check_locks(shared, ())
        assert (check.status, words in check.found) == (Status.FAIL, True)
        shared.chmod(0o1777)
        os.chown(shared, os.geteuid(), -1)
        assert lock_directory(None) == shared


def test_a_lock_whose_file_goes_while_it_is_taken_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until its holder has written down who it is, nobody finds it by that."""
    lock, gone = HostLock("camera", directory=tmp_path), []
    with HostLock("other", directory=tmp_path):  # who is the first there looks for files that were removed
        assert (tmp_path / MARK).exists()

    def late(fd: int, claim: Claim) -> None:
        write_claim(fd, claim)
        if not gone:
            gone.append(lock.path)
            lock.path.unlink()

    monkeypatch.setattr("queue_workflows.host.locks.lock.write_claim", late)
    with lock:
        assert (gone, lock.is_seen) == ([lock.path], True)


def test_the_longest_claim_can_be_read(tmp_path: Path) -> None:
    """Without the directory, if that is what makes it too long: it is what people need least."""
    longest = Claim("\U0001f512" * 200, os.getpid(), 1.5, "\U0001f512" * 200, "/" + "a" * 4000)
    with (tmp_path / "claim").open("w+b") as file:
        write_claim(file.fileno(), longest)
        read = read_claim(file.fileno())
    assert read == longest
    assert read.directory is None


def test_the_public_lock_lives_where_the_settings_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`queue_workflows.HostLock` needs a name only."""
    monkeypatch.setenv("QWF_LOCK_DIR", str(tmp_path / "locks"))
    with queue_workflows.HostLock("camera") as lock:
        assert lock.path == tmp_path / "locks" / "camera.hostlock"
        assert stat.S_ISREG(lock.path.stat().st_mode)


@linux_only
def test_lslocks_shows_the_holder(tmp_path: Path) -> None:
    """The kernel's own list names the process: nothing of ours has to be asked."""
    with HostLock("camera", directory=tmp_path) as lock:
        inode = lock.path.stat().st_ino
        held = [line.split() for line in Path("/proc/locks").read_text().splitlines() if "FLOCK" in line]
        assert [str(os.getpid())] == [line[4] for line in held if line[5].endswith(f":{inode}")]


def test_a_light_program_reads_no_settings(tmp_path: Path) -> None:
    """Who names the directory pays for no more than the lock."""
    command = [sys.executable, "-c", LIGHT + "say('pydantic' in sys.modules, 'psycopg' in sys.modules)", "."]
    with Running(command) as light_one:
        assert light_one.line() == "False False"
