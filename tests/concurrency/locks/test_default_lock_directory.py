"""Where locks live when nobody says where: `/run/lock/qwf`, the user's runtime directory, or a clear no."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.processes.programs import linux_only
from support.servers.places import passable_directory

from queue_workflows.errors import QwfError
from queue_workflows.host.locks import flock
from queue_workflows.host.locks.lock import HostLock

pytestmark = linux_only
NOBODY = 54_321


def as_normal_user(call: Callable[[], object]) -> str:
    """What it comes to in a process without root's rights; an error with its advice."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            said = str(call())
        except QwfError as exc:
            said = str(exc)
        except BaseException as exc:
            said = f"unexpected: {exc!r}"
        os.write(writable, pickle.dumps(said))
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable, "rb") as answer:
        said = pickle.loads(answer.read())
    os.waitpid(child, 0)
    return str(said)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place that everybody may enter, with `run/lock`, where this process alone may write."""
    with passable_directory() as directory:
        (directory / "run" / "lock").mkdir(parents=True)
        (directory / "user").mkdir()
        (directory / "user").chmod(0o1777)
        for each in (directory, directory / "run", directory / "run" / "lock"):
            each.chmod(0o755)
        monkeypatch.setattr(flock, "SHARED", directory / "run" / "lock" / "qwf")
        flock._say_once.cache_clear()
        yield directory


def locked(runtime: Path | None) -> str:
    """Where a lock is held that nobody named a directory for."""
    environ = {} if runtime is None else {"XDG_RUNTIME_DIR": str(runtime)}
    with HostLock("camera", directory=flock.lock_directory(None, environ)) as lock:
        return str(lock.path.parent)


def test_who_may_make_it_makes_it(machine: Path) -> None:
    """And all meet there from then on, whatever runtime directory they have."""
    assert locked(machine / "user") == str(machine / "run" / "lock" / "qwf")


@pytest.mark.parametrize("missing", ["run", "run/lock"])
def test_where_it_cannot_be_made_at_all_the_user_has_his_own(
    machine: Path, missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also root: what it would be in is not there, or is no directory. It is said once."""
    for inner in ("run/lock", "run"):
        if inner.startswith(missing):
            (machine / inner).rmdir()
    if missing == "run/lock":
        (machine / missing).touch()
    for _ in range(2):
        assert locked(machine / "user") == str(machine / "user" / "qwf")
    assert caplog.text.count("other users do not see them there") == 1


def test_a_normal_user_has_his_own(machine: Path) -> None:
    """Where he may not make the common one; in the directory of temporary files if he has no other."""
    if os.geteuid() != 0:
        (machine / "run" / "lock").chmod(0o555)
    assert as_normal_user(lambda: locked(machine / "user")) == str(machine / "user" / "qwf")
    tempfile.tempdir = str(machine / "user")
    try:
        uid = as_normal_user(os.getuid)
        assert as_normal_user(lambda: locked(None)) == str(machine / "user" / f"qwf-{uid}")
    finally:
        tempfile.tempdir = None


def test_a_normal_user_who_finds_the_common_one_closed_is_told_so(machine: Path) -> None:
    """A lock of his own would keep nobody out who locks there."""
    (machine / "run" / "lock" / "qwf").mkdir()
    (machine / "run" / "lock" / "qwf").chmod(0o555)
    said = as_normal_user(lambda: locked(machine / "user"))
    assert f"live in {machine}/run/lock/qwf, where this user cannot write" in said
    assert "QWF_LOCK_DIR" in said
    assert not (machine / "user" / "qwf").exists()


def test_a_normal_user_without_any_place_is_told_to_name_one(machine: Path) -> None:
    """The one line names what was tried and the setting."""
    (machine / "user").chmod(0o555)
    if os.geteuid() != 0:
        (machine / "run" / "lock").chmod(0o555)
    said = as_normal_user(lambda: locked(machine / "user"))
    assert said.startswith(f"locks cannot live in {machine}/user/qwf: Permission denied")
    assert "name a directory with QWF_LOCK_DIR" in said


def test_a_chosen_directory_that_is_closed_is_named(machine: Path) -> None:
    """What is there and may not be written to is found out at the first lock."""
    (machine / "user").chmod(0o555)
    said = as_normal_user(
        lambda: HostLock("camera", directory=flock.lock_directory(machine / "user")).try_acquire()
    )
    assert "camera" in said
    assert f"{machine}/user/camera.hostlock: Permission denied" in said
