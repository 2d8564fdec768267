"""Where locks are missing: who had them, and when a janitor may make their directory."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.processes.programs import Running

from queue_workflows.db.doctor.findings import Status
from queue_workflows.engine.limits.held_host_locks import KeptLocks
from queue_workflows.errors import LockHeld
from queue_workflows.host.janitor.decisions import Action, look_at
from queue_workflows.host.janitor.doctor_checks import check_locks
from queue_workflows.host.janitor.missing_lock_directory import open_directory
from queue_workflows.host.janitor.resources import ResourceKind
from queue_workflows.host.locks import flock
from queue_workflows.host.locks.lock import HostLock, lock_file_name
from queue_workflows.host.locks.owner_note import MARK, holders_of_removed
from queue_workflows.repositories.sql.claimed_job import Fence


@pytest.fixture
def boot(tmp_path: Path) -> Path:
    """What the kernel says of the boot that we live in."""
    file = tmp_path / "boot_id"
    file.write_text("first\n")
    return file


def opened(tmp_path: Path, boot: Path, chosen: Path | None) -> Path:
    return open_directory(chosen, tmp_path / "data", boot_id=boot)


def test_a_chosen_directory_is_made_after_a_reboot_alone(tmp_path: Path, boot: Path) -> None:
    """One that nobody has seen yet, or that was removed since the machine came up, is waited for."""
    chosen = tmp_path / "chosen"
    assert opened(tmp_path, boot, chosen) == chosen
    assert not chosen.exists()
    chosen.mkdir()
    opened(tmp_path, boot, chosen)
    chosen.rmdir()
    opened(tmp_path, boot, chosen)
    assert not chosen.exists()
    boot.write_text("second\n")
    opened(tmp_path, boot, chosen)
    assert chosen.exists()
    chosen.rmdir()
    opened(tmp_path, boot, chosen)
    assert not chosen.exists()


def test_the_default_directory_is_made_at_the_first_start(
    tmp_path: Path, boot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And after a reboot; not when it was removed in between."""
    monkeypatch.setattr(flock, "SHARED", tmp_path / "shared")
    assert opened(tmp_path, boot, None) == tmp_path / "shared"
    (tmp_path / "shared").rmdir()
    opened(tmp_path, boot, None)
    assert not (tmp_path / "shared").exists()
    boot.write_text("second\n")
    opened(tmp_path, boot, None)
    assert (tmp_path / "shared").exists()


@pytest.mark.parametrize("spoilt", ["{", "[]", '{"a": {}}'])
def test_what_cannot_be_read_was_never_seen(tmp_path: Path, boot: Path, spoilt: str) -> None:
    """Nor does a data directory that cannot be written to keep a janitor from its work."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "lock-directories.json").write_text(spoilt)
    (tmp_path / "chosen").mkdir()
    assert opened(tmp_path, boot, tmp_path / "chosen") == tmp_path / "chosen"
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "data").touch()
    assert opened(tmp_path, boot, tmp_path / "chosen") == tmp_path / "chosen"


def test_who_has_a_removed_lock_file_is_known(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not who has one that is there; and the holder says so when it lets go."""

    there = HostLock("there", directory=tmp_path)
    with there, HostLock("gone", directory=tmp_path) as gone:
        assert holders_of_removed(tmp_path) == {}
        gone.path.unlink()
        assert holders_of_removed(tmp_path) == {lock_file_name("gone"): os.getpid()}
        assert holders_of_removed(tmp_path / "else") == {}
    assert holders_of_removed(tmp_path) == {}
    assert [one.getMessage() for one in caplog.records if one.levelname == "WARNING"] == [
        f"the file of the lock 'gone' was removed while process {os.getpid()} held it: others may have had it"
    ]


HOLDER = """
import sys
from pathlib import Path
from queue_workflows.host.locks.lock import HostLock
lock = HostLock("mine", directory=Path(sys.argv[1]))
lock.acquire()
print("has it", flush=True)
sys.stdin.readline()
"""


def replaced(directory: Path) -> Path:
    """The directory is renamed, and another made in its place."""
    former = directory.with_name("former")
    directory.rename(former)
    directory.mkdir()
    return former


def test_who_holds_a_lock_in_a_directory_that_was_replaced_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By whoever comes anew; no janitor reaps what it owns, and doctor names it, until the holder ends."""
    locks = tmp_path / "locks"
    locks.mkdir()
    with Running([sys.executable, "-c", HOLDER, str(locks)]) as holder:
        assert holder.line() == "has it"
        former = replaced(locks)
        assert holders_of_removed(locks) == {lock_file_name("mine"): holder.pid}
        # A directory that never was there is no other one's.
        assert holders_of_removed(tmp_path / "else") == holders_of_removed(former) == {}
        newcomer = HostLock("mine", directory=locks)
        assert not newcomer.try_acquire()
        # What was held before, and what only bears its name, are different files.
        assert (locks / lock_file_name("mine")).exists()
        kind = ResourceKind("thing", "mine", lambda: ["mine"], print)
        found = look_at(kind, "mine", locks, lambda: holders_of_removed(locks))
        assert found.verdict.deed is Action.FLAG
        assert found.verdict.pid == holder.pid
        held = next(check for check in check_locks(locks, []) if check.name == "held")
        assert (held.status, held.found) == (
            Status.WARN,
            f"{lock_file_name('mine')}, which is not there any more, by process {holder.pid}",
        )
        other = HostLock("other", directory=locks)
        assert other.try_acquire()
        other.release()
        # However often he comes.
        assert not newcomer.try_acquire()
    assert newcomer.try_acquire()
    newcomer.release()
    assert f"{locks} was replaced while locks of the former one are held" in caplog.text


def test_a_worker_is_seen_again_with_what_it_holds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where the directory was replaced it holds the lock there from its next look on, and frees it there."""
    locks = tmp_path / "locks"
    kept = KeptLocks(locks)
    job: Any = SimpleNamespace(
        host_lock="mine", fence=Fence(1, 1, "w"), family="ingest", id=1, attempt=1, timeout_s=None
    )
    assert kept.take([job]) == []
    replaced(locks)
    kept.follow()
    assert "is held there again" in caplog.text
    with pytest.raises(LockHeld):
        HostLock("mine", directory=locks).acquire(timeout_s=0)
    assert holders_of_removed(locks) == {}
    caplog.clear()
    shutil.rmtree(locks)
    kept.follow()
    kept.follow()
    assert caplog.text.count("nobody sees that its lock is held") == 1
    locks.mkdir()
    kept.follow()
    assert not HostLock("mine", directory=locks).try_acquire()
    assert kept.free([job.fence]) == ["mine"]
    assert HostLock("mine", directory=locks).try_acquire()


def test_a_taken_lock_is_not_followed_over_another_holder(tmp_path: Path) -> None:
    """Nobody steals: who has taken it in the new directory keeps it, and the former holder keeps its own."""
    locks = tmp_path / "locks"
    locks.mkdir()
    mine = HostLock("mine", directory=locks)
    mine.acquire()
    former = replaced(locks)
    (locks / MARK).touch()
    theirs = HostLock("mine", directory=locks)
    assert theirs.try_acquire()
    assert not mine.follow()
    assert (mine.held, mine.is_seen) == (True, False)
    assert not HostLock("mine", directory=former).try_acquire()
    theirs.release()
    assert mine.follow()
    assert mine.is_seen
    mine.release()
