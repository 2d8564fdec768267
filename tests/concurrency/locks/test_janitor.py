"""The janitor: orphans are reaped once, what lives never is; real locks, real processes, real kills."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.apps.leftovers import PLACE, Leftovers
from support.processes.programs import Running, environment
from support.processes.workers import patiently, until

from queue_workflows.errors import ExitCode
from queue_workflows.host.janitor.decisions import Action, look_at, tidy
from queue_workflows.host.janitor.resources import ResourceKind
from queue_workflows.host.locks.flock import lock_directory
from queue_workflows.host.locks.lock import HostLock, lock_file_name
from queue_workflows.host.processes.tree_by_mark import kill_trees
from queue_workflows.roles.janitor.janitor import MOST_AT_ONCE, Janitor, JanitorOptions
from queue_workflows.roles.loop import Halt, Waiter

TESTS = Path(__file__).parents[2]
# What `qwf janitor --reap` comes to, with fewer imports.
REAPER = """
import os, sys
from pathlib import Path
from support.apps.leftovers import Leftovers, PLACE
from queue_workflows.host.processes.tree_by_mark import die_with_parent, take_launcher_pid
from queue_workflows.host.janitor.teardown import reap_here
die_with_parent(take_launcher_pid())
_, kind, name, lock, report = sys.argv[1:]
sys.exit(reap_here(Leftovers(Path(os.environ[PLACE])).kind(), name, int(lock), int(report)))
"""
# More than are reaped at a time.
OLD = [f"old-{number}" for number in range(MOST_AT_ONCE + 1)]


class Bench:
    """Things, their locks, and janitors in this process whose reapers are processes."""

    def __init__(self, place: Path) -> None:
        self.leftovers = Leftovers(place)
        self.leftovers.make()
        self.locks = place / "locks"
        self.locks.mkdir()

    def owner(self, name: str) -> Running:
        return Running(self.leftovers.owner(name, self.locks))

    def file(self, name: str) -> Path:
        return self.locks / lock_file_name(name)

    def janitor(
        self, waiter: Waiter, *kinds: ResourceKind, locks: Callable[[], Path] | None = None, **options: bool
    ) -> Janitor:
        return Janitor(
            kinds or (self.leftovers.kind(),),
            locks or (lambda: lock_directory(self.locks)),
            [sys.executable, "-c", REAPER],
            waiter,
            Halt(waiter.ring),
            JanitorOptions(**{"once": True, **options}),
            grace_s=30.0,
        )

    def once(self, *kinds: ResourceKind, **options: bool) -> tuple[ExitCode, dict[str, Action]]:
        """One round: the status, and what became of each name."""
        with Waiter() as waiter:
            janitor = self.janitor(waiter, *kinds, **options)
            status = janitor.run()
            return status, {one.name: one.deed for one in janitor.verdicts.values()}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv(PLACE, str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([environment()["PYTHONPATH"], str(TESTS)]))
    return Bench(tmp_path)


def test_an_orphan_is_reaped_once_and_its_lock_file_is_gone(bench: Bench) -> None:
    """Its owner was killed; nothing is left, and a second look finds nothing to do."""
    with bench.owner("lost-1") as owner:
        assert owner.line() == "has it"
        owner.process.kill()
        owner.status()
    assert bench.file("lost-1").exists()
    assert bench.once() == (ExitCode.DONE, {"lost-1": Action.REAPED})
    assert (bench.leftovers.left(), bench.leftovers.torn_down()) == ([], ["lost-1"])
    assert list(bench.locks.glob("*.hostlock")) == []
    assert bench.once() == (ExitCode.DONE, {})
    assert bench.leftovers.torn_down() == ["lost-1"]


def test_what_lives_is_never_reaped(bench: Bench) -> None:
    """However often it is looked at; as soon as its owner is killed, it is."""
    with bench.owner("live-1") as owner:
        assert owner.line() == "has it"
        for _ in range(20):
            assert bench.once() == (ExitCode.DONE, {"live-1": Action.LEAVE})
        assert bench.once(dry=True) == (ExitCode.DONE, {"live-1": Action.LEAVE})
        assert bench.leftovers.torn_down() == []
        owner.process.kill()
        owner.status()
    assert bench.once() == (ExitCode.DONE, {"live-1": Action.REAPED})


def test_without_a_lock_file_a_thing_is_an_orphan_at_once(bench: Bench) -> None:
    """As all are after a reboot, when the directory of the locks is empty."""
    bench.leftovers.make(*OLD)
    status, deeds = bench.once()
    assert (status, set(deeds.values())) == (ExitCode.DONE, {Action.REAPED})
    assert sorted(bench.leftovers.torn_down()) == OLD
    assert list(bench.locks.glob("*.hostlock")) == []


def test_a_new_run_of_a_name_waits_until_its_reaping_is_complete(bench: Bench) -> None:
    """It asks for the lock while the teardown is under way, and finds nothing of its predecessor.

    To another janitor the reaper is as good as an owner.
    """
    bench.leftovers.make("gated-1")
    bench.leftovers.gate.touch()
    with Waiter() as waiter:
        janitor = bench.janitor(waiter)
        thread = threading.Thread(target=janitor.run)
        thread.start()
        try:
            until(lambda: bench.leftovers.torn_down() == ["gated-1"])
            with bench.owner("gated-1") as new:
                assert new.line() == "waits"
                assert bench.once() == (ExitCode.DONE, {"gated-1": Action.LEAVE})
                assert bench.leftovers.left() == ["gated-1"]
                bench.leftovers.gate.unlink()
                assert new.line() == "has it"
                assert bench.once() == (ExitCode.DONE, {"gated-1": Action.LEAVE})
        finally:
            bench.leftovers.gate.unlink(missing_ok=True)
            thread.join()


def test_a_look_that_was_broken_off_is_no_success(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Its status is the signal's, and the log says whose doing the end of a teardown was."""
    bench.leftovers.make("gated-1")
    bench.leftovers.gate.touch()
    with Waiter() as waiter, ThreadPoolExecutor(1) as pool:
        janitor = bench.janitor(waiter)
        status = pool.submit(janitor.run)
        try:
            patiently(lambda: bench.leftovers.torn_down() == ["gated-1"])
            janitor.halt.ask(signal.SIGINT)
            janitor.halt.ask(signal.SIGINT)
            assert status.result(150) is ExitCode.INTERRUPTED
        finally:
            bench.leftovers.gate.unlink()
    assert "gated-1: it could not be reaped: the janitor was stopped, and its teardown killed" in caplog.text
    lock = HostLock("gated-1", directory=bench.locks)
    assert lock.try_acquire()
    lock.release()


def test_of_two_janitors_one_reaps(bench: Bench) -> None:
    """The second has seen the thing before the first reaped it, and takes the lock after that."""
    bench.leftovers.make("lost-1")
    seen, reaped = threading.Event(), threading.Event()

    def slowly() -> list[str]:
        names = list(bench.leftovers.discover())
        seen.set()
        assert reaped.wait(150)
        return names

    with Waiter() as waiter:
        slow = bench.janitor(waiter, replace(bench.leftovers.kind(), discover=slowly))
        thread = threading.Thread(target=slow.run)
        thread.start()
        try:
            assert seen.wait(150)
            assert bench.once() == (ExitCode.DONE, {"lost-1": Action.REAPED})
        finally:
            reaped.set()
            thread.join()
        (verdict,) = slow.verdicts.values()
    assert verdict.why == "it has no lock; it was gone already"
    assert bench.leftovers.torn_down() == ["lost-1"]
    assert list(bench.locks.glob("*.hostlock")) == []


def test_of_two_janitors_that_both_saw_no_lock_one_takes_it(bench: Bench) -> None:
    """Both stand between their look and the lock at the same time; the other leaves the thing alone."""
    meet = threading.Barrier(2)

    def met() -> dict[str, int]:
        meet.wait(150)
        return {}

    with ThreadPoolExecutor(2) as pool:
        looks = [pool.submit(look_at, bench.leftovers.kind(), "lost-1", bench.locks, met) for _ in range(2)]
        found = [look.result() for look in looks]
    assert sorted(one.verdict.deed for one in found) == [Action.LEAVE, Action.REAP]
    (lock,) = [one.lock for one in found if one.lock is not None]
    assert lock.held
    lock.release()


def test_what_is_held_for_long_is_pointed_out_and_not_reaped(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Longer than two deadlines; the log names the process."""
    with bench.owner("slow-1") as owner:
        assert owner.line() == "has it"
        taken_at = time.time() - 1000
        os.utime(bench.file("slow-1"), (taken_at, taken_at))
        assert bench.once(bench.leftovers.kind(deadline_s=600.0))[1] == {"slow-1": Action.LEAVE}
        assert bench.once(bench.leftovers.kind(deadline_s=400.0))[1] == {"slow-1": Action.FLAG}
        assert bench.leftovers.torn_down() == []
        assert f"deadline is 400 s by process {owner.pid}; left alone" in caplog.text


@pytest.mark.parametrize("name", ["lost-1x", "xlost/../lost-1", "Lost-1", "lost-12", "lost-1\n"])
def test_a_name_outside_the_pattern_is_no_candidate(bench: Bench, name: str) -> None:
    """It is not torn down, and no lock is asked about it."""
    kind = replace(bench.leftovers.kind(), discover=lambda: [name])
    assert bench.once(kind) == (ExitCode.DONE, {})
    assert bench.leftovers.torn_down() == []
    assert list(bench.locks.glob("*.hostlock")) == []


def _garbled(file: Path) -> None:
    file.write_bytes(b"\xff not a holder's\n")


def _symlink(file: Path) -> None:
    file.symlink_to(file.with_name("elsewhere"))


def _linked_twice(file: Path) -> None:
    file.touch()
    os.link(file, file.with_name("another"))


SPOILT = {
    "odd-1": _garbled,
    "odd-2": _symlink,
    "odd-3": _linked_twice,
    "odd-4": Path.mkdir,
    "odd-5": os.mkfifo,
}


def test_a_lock_file_that_cannot_be_judged_is_skipped(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Said; nothing is torn down in doubt, and the others are seen to."""
    bench.leftovers.make("lost-1", *SPOILT)
    for name, spoil in SPOILT.items():
        spoil(bench.file(name))
    before = set(bench.locks.glob("*.hostlock"))
    status, deeds = bench.once()
    assert status is ExitCode.DONE
    assert {name: deeds[name] for name in SPOILT} == dict.fromkeys(SPOILT, Action.SKIP)
    assert (deeds["lost-1"], bench.leftovers.left()) == (Action.REAPED, list(SPOILT))
    assert all(f"thing {name}: skipped: " in caplog.text for name in SPOILT)
    assert set(bench.locks.glob("*.hostlock")) == before


def test_without_its_directory_of_locks_everything_is_skipped(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """It vanishes, or becomes a file; when it is there again, the janitor goes on."""
    bench.leftovers.make("lost-1")
    bench.locks.rmdir()
    bench.locks.touch()
    assert bench.once()[1] == {"lost-1": Action.SKIP}
    assert bench.leftovers.torn_down() == []
    bench.locks.unlink()
    for dry in (True, False):
        with Waiter() as waiter:
            gone = bench.janitor(waiter, locks=lambda: bench.locks, dry=dry)
            gone.run()
            assert [one.deed for one in gone.verdicts.values()] == [Action.SKIP]
    assert "No such file" in caplog.text
    assert bench.once() == (ExitCode.DONE, {"lost-1": Action.REAPED})


def test_an_owner_whose_lock_file_was_removed_is_seen(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """With the whole directory, which another owner has made anew: by its process, until that has ended."""
    bench.leftovers.make("lost-1")
    with bench.owner("live-1") as owner:
        assert owner.line() == "has it"
        shutil.rmtree(bench.locks)
        bench.locks.mkdir()
        for dry in (True, False):
            deeds = bench.once(dry=dry)[1]
            assert deeds == {"live-1": Action.FLAG, "lost-1": Action.REAP if dry else Action.REAPED}
        why = "live, though its lock file is not there any more; held by process"
        assert f"thing live-1: {why} {owner.pid}; left alone" in caplog.text
        owner.process.kill()
        owner.status()
    assert bench.once()[1] == {"live-1": Action.REAPED}


def test_what_was_known_of_a_directory_is_dropped_with_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is replaced between two looks of one round: who holds a lock of the former one is found."""
    monkeypatch.setattr("queue_workflows.roles.janitor.janitor._REMOVED_FOR_S", 1000.0)
    bench.leftovers.make("lost-1")

    def replaced() -> list[str]:
        patiently(lambda: bench.leftovers.torn_down() == ["lost-1"])
        bench.locks.rename(bench.locks.with_name("former"))
        bench.locks.mkdir()
        return ["live-1"]

    first = bench.leftovers.kind("lost-.")
    second = replace(bench.leftovers.kind("live-."), name="other", discover=replaced)
    with bench.owner("live-1") as owner:
        assert owner.line() == "has it"
        assert bench.once(first, second)[1] == {"lost-1": Action.REAPED, "live-1": Action.FLAG}
    assert bench.leftovers.torn_down() == ["lost-1"]


def test_teardowns_that_hang_keep_no_other_kind(bench: Bench) -> None:
    """However many there are of one kind: that of another is reaped while none of them has ended."""
    waiting = [f"gated-{number}" for number in range(MOST_AT_ONCE + 1)]
    bench.leftovers.make(*waiting)
    bench.leftovers.gate.touch()

    def late() -> list[str]:
        patiently(lambda: len(bench.leftovers.torn_down()) == MOST_AT_ONCE)
        bench.leftovers.make("lost-1")
        return ["lost-1"]

    gated = replace(bench.leftovers.kind("gated-.", timeout_s=1000.0), name="gated")
    other = replace(bench.leftovers.kind("lost-.", timeout_s=1000.0), discover=late)
    with Waiter() as waiter:
        janitor = bench.janitor(waiter, gated, other)
        thread = threading.Thread(target=janitor.run)
        thread.start()
        try:
            patiently(lambda: "lost-1" in bench.leftovers.torn_down())
            assert set(waiting) <= set(bench.leftovers.left())
        finally:
            bench.leftovers.gate.unlink()
            thread.join()
    assert bench.leftovers.left() == []


def test_the_lock_stays_held_while_something_of_a_teardown_cannot_be_ended(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a process that waits for a disk; it is looked for again, and the lock is free when it has ended."""
    stuck = threading.Event()
    stuck.set()

    def kill(pids: list[int], **how: Any) -> list[int]:
        return kill_trees(pids, **how) + ([4711] if stuck.is_set() else [])

    monkeypatch.setattr("queue_workflows.roles.tree_end_thread.kill_trees", kill)
    monkeypatch.setattr("queue_workflows.roles.janitor.janitor._LEFT_AGAIN_S", 0.01)
    bench.leftovers.make("lost-1")
    with Waiter() as waiter:
        janitor = bench.janitor(waiter, once=False)
        thread = threading.Thread(target=janitor.run)
        thread.start()
        try:
            patiently(lambda: "process 4711 of its teardown cannot be ended" in caplog.text)
            assert not HostLock("lost-1", directory=bench.locks).try_acquire()
            stuck.clear()
            patiently(lambda: not bench.file("lost-1").exists())
        finally:
            stuck.clear()
            janitor.halt.ask()
            thread.join()
    assert bench.leftovers.torn_down() == ["lost-1"]


@pytest.mark.parametrize("found", ["lost-1", b"lost-1", [b"lost-1"], [None], [1]])
def test_a_discovery_of_no_names_is_said(
    bench: Bench, caplog: pytest.LogCaptureFixture, found: list[str]
) -> None:
    """Silence would be taken for a machine in order."""
    bench.leftovers.make("lost-1")
    kind = replace(bench.leftovers.kind(), discover=lambda: found)
    assert bench.once(kind) == (ExitCode.FAILED, {})
    words = "which is no name" if isinstance(found, list) else f"it gave {found!r}, and not a list of names"
    assert words in caplog.text


@pytest.mark.slow
def test_a_teardown_that_fails_takes_no_other_along(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """It raises, crashes, hangs or does nothing: said, tried again later, and its lock is free."""
    bad = ["clinging-1", "crashing-1", "hanging-1", "hanging-2", "hanging-3", "hanging-4", "raising-1"]
    bench.leftovers.make(*bad, "lost-1")
    hanging = replace(bench.leftovers.kind("hanging-.", timeout_s=1.0), name="hanging")
    assert bench.once(hanging, bench.leftovers.kind("(?!hanging).*")) == (
        ExitCode.FAILED,
        {**dict.fromkeys(bad, Action.FAILED), "lost-1": Action.REAPED},
    )
    assert bench.leftovers.left() == bad
    assert "hanging hanging-1: it could not be reaped: its teardown took longer than 1 s" in caplog.text
    assert "raising-1: it could not be reaped: RuntimeError: raising-1 does not want to end" in caplog.text
    for name in bad:
        lock = HostLock(name, directory=bench.locks)
        assert lock.try_acquire()
        lock.release()


def test_a_lock_file_without_a_thing_is_removed_when_it_is_old(bench: Bench) -> None:
    """A young one stays, as its owner may be about to make the thing; a held one stays in any case."""
    for name in ("old-1", "young-1", "held-1"):
        lock = HostLock(name, directory=bench.locks)
        assert lock.try_acquire()
        if name != "held-1":
            lock.release()
    then = time.time() - 4000
    os.utime(bench.file("old-1"), (then, then))
    os.utime(bench.file("held-1"), (then, then))
    try:
        for dry in (True, False):
            assert bench.once(dry=dry)[1] == {
                "old-1": Action.TIDY,
                "young-1": Action.LEAVE,
                "held-1": Action.LEAVE,
            }
            assert bench.file("old-1").exists() is dry
        assert {bench.file("young-1"), bench.file("held-1")} == set(bench.locks.glob("*.hostlock"))
    finally:
        lock.release()


def test_how_long_a_lock_may_be_held_its_holder_says_before_its_kind(tmp_path: Path) -> None:
    """Of a name without either, whatever is usual; the longest deadline is not the one that counts."""
    kind = ResourceKind("thing", r"a-\d", discover=list, teardown=print, deadline_s=100.0)
    locks = [
        HostLock("a-1", directory=tmp_path, deadline_s=5.0),
        HostLock("a-2", directory=tmp_path),
        HostLock("other", directory=tmp_path),
    ]
    with locks[0], locks[1], locks[2]:
        for ago, deeds in ((50, "flag leave leave"), (300, "flag flag leave")):
            for lock in locks:
                os.utime(lock.path, (time.time() - ago,) * 2)
            seen = tidy(tmp_path, (), [kind], now=time.time(), dry=True)
            assert " ".join(one.deed for one in seen) == deeds


def test_a_free_lock_is_not_its_owners_who_has_a_removed_one(tmp_path: Path) -> None:
    """As where a directory was put in the place of another: what is there has an owner, and is left alone."""
    kind = ResourceKind("thing", r"a-\d", discover=list, teardown=print)
    with HostLock("a-1", directory=tmp_path) as lock:
        file = lock.path.name
    found = look_at(kind, "a-1", tmp_path, lambda: {file: 4711})
    assert (found.verdict.deed, found.verdict.pid, found.lock) == (Action.FLAG, 4711, None)


def test_a_dry_run_changes_nothing(bench: Bench) -> None:
    """It says what would be done."""
    bench.leftovers.make("lost-1")
    assert bench.once(dry=True) == (ExitCode.DONE, {"lost-1": Action.REAP})
    assert (bench.leftovers.left(), list(bench.locks.glob("*.hostlock"))) == (["lost-1"], [])


def test_a_kind_that_cannot_be_discovered_keeps_no_other(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """It raises or hangs: said, and the others are seen to."""
    bench.leftovers.make("lost-1")
    never = threading.Event()

    def hang() -> list[str]:
        never.wait()
        return []

    kinds = [
        ResourceKind("bad", ".*", lambda: [1 / 0], print),  # type: ignore[list-item]
        ResourceKind("slow", ".*", hang, print, timeout_s=0.05),
        bench.leftovers.kind(),
    ]
    assert bench.once(*kinds) == (ExitCode.FAILED, {"lost-1": Action.REAPED})
    never.set()
    assert "bad: it cannot be discovered: ZeroDivisionError: division by zero" in caplog.text
    assert "slow: its discovery takes longer than 0.05 s" in caplog.text
