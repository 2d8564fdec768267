"""`qwf doctor` on the locks of a machine: who holds one for too long, and what is left lying about."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from support.apps.leftovers import Leftovers
from support.processes.commands import qwf_here
from support.processes.programs import Running

from queue_workflows.db.doctor.findings import Check, Status
from queue_workflows.host.janitor.doctor_checks import check_locks
from queue_workflows.host.locks import flock
from queue_workflows.host.locks.lock import HostLock, lock_file_name


def found(directory: Path, *kinds: object) -> dict[str, tuple[Status, str]]:
    checks: list[Check] = check_locks(directory, kinds)  # type: ignore[arg-type]
    return {check.name: (check.status, check.found) for check in checks}


def test_a_machine_in_order_has_nothing_to_complain_of(tmp_path: Path) -> None:
    """Also before the first lock, whose directory is not made by looking."""
    locks = tmp_path / "locks"
    assert found(locks) == {
        "lock directory": (Status.OK, f"{locks}, made with the first lock"),
        "held": (Status.OK, "0 held, none for too long"),
        "stale": (Status.OK, "no lock file is left lying about"),
    }
    assert not locks.exists()
    locks.mkdir()
    with HostLock("mine", directory=locks):
        assert found(locks)["held"] == (Status.OK, "1 held, none for too long")


def test_who_holds_a_lock_for_too_long_is_named(tmp_path: Path) -> None:
    """With its pid and age; by its own deadline, or that of the kind whose name it holds."""
    leftovers = Leftovers(tmp_path)
    with Running(leftovers.owner("slow-1", tmp_path)) as owner:
        assert owner.line() == "has it"
        taken_at = time.time() - 200
        os.utime(tmp_path / lock_file_name("slow-1"), (taken_at, taken_at))
        status, words = found(tmp_path)["held"]
        assert status is Status.WARN
        assert f"slow-1 by process {owner.pid}: held for 2" in words
    assert found(tmp_path)["held"] == (Status.OK, "0 held, none for too long")
    with HostLock("slow-2", directory=tmp_path) as lock:
        os.utime(lock.path, (taken_at, taken_at))
        assert found(tmp_path)["held"][0] is Status.OK
        assert found(tmp_path, leftovers.kind(deadline_s=60.0))["held"][0] is Status.WARN


def test_who_holds_a_lock_file_that_was_removed_is_named(tmp_path: Path) -> None:
    """Others may take the same lock meanwhile."""
    with HostLock("mine", directory=tmp_path) as lock:
        lock.path.unlink()
        words = f"mine.hostlock, which is not there any more, by process {os.getpid()}"
        assert found(tmp_path)["held"] == (Status.WARN, words)
    assert found(tmp_path)["held"] == (Status.OK, "0 held, none for too long")


def test_what_is_left_lying_about_is_named(tmp_path: Path) -> None:
    """Stale files, with the command that removes them, and files that nobody can judge."""
    lock = HostLock("old", directory=tmp_path)
    lock.acquire()
    lock.release()
    os.utime(lock.path, (0, 0))
    assert found(tmp_path)["stale"] == (Status.WARN, "lock files that nobody needs: 1")
    assert lock.path.exists()
    (tmp_path / lock_file_name("odd")).symlink_to(lock.path)
    assert "odd.hostlock" in found(tmp_path)["stale"][1]


def test_a_directory_that_cannot_be_used_is_78(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, qwf_dsn: str
) -> None:
    """Its failure alone makes the status; what needs it is skipped."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("QWF_LOCK_DIR", str(tmp_path / "file" / "locks"))
    said = json.loads(qwf_here("--db", qwf_dsn, "doctor", "--json", status=78).stdout)
    statuses = {check["name"]: check["status"] for check in said["checks"]}
    assert [statuses[name] for name in ("lock directory", "held", "stale")] == ["fail", "skip", "skip"]


def test_where_locks_would_live_is_told_without_making_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chosen place, the machine's, or the user's own."""
    monkeypatch.setattr(flock, "SHARED", tmp_path / "run" / "lock" / "qwf")
    runtime = {"XDG_RUNTIME_DIR": str(tmp_path / "user")}
    assert flock.expected_directory(tmp_path / "mine", runtime) == tmp_path / "mine"
    assert flock.expected_directory(None, runtime) == tmp_path / "user" / "qwf"
    (tmp_path / "run" / "lock").mkdir(parents=True)
    assert flock.expected_directory(None, runtime) == tmp_path / "run" / "lock" / "qwf"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
