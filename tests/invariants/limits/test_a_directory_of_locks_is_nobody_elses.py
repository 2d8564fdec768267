"""No other account decides where locks and files of ours live, whatever the settings name.

Root is the victim here and an unprivileged account the attacker: what one of them can replace is refused with
one sentence and 78, by every command alike, and nothing is written where a planted link leads.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
from support.processes.programs import environment, linux_only
from support.servers.places import passable_directory

from queue_workflows.db.embedded.server import EmbeddedServer
from queue_workflows.errors import ConfigurationError, ExitCode, QwfError
from queue_workflows.host.directories.workspaces import workspace
from queue_workflows.host.janitor.doctor_checks import check_locks
from queue_workflows.host.janitor.missing_lock_directory import open_directory
from queue_workflows.host.locks.flock import lock_directory
from queue_workflows.host.locks.lock import HostLock

THEM, GROUP = 54_321, 54_322
TESTS = Path(__file__).parents[2]
QWF = [sys.executable, "-m", "queue_workflows"]
pytestmark = [
    linux_only,
    pytest.mark.skipif(os.geteuid() != 0, reason="two accounts are needed, and only root can be both"),
]


def by(uid: int, act: Callable[[], object], *groups: int) -> int:
    """Do it as another account, in a process of its own; its exit status."""
    child = os.fork()
    if child == 0:
        status = 70
        try:
            os.setgroups(groups)
            os.setgid(uid)
            os.setuid(uid)
            os.umask(0o022)
            act()
            status = 0
        except QwfError as refused:
            status = int(refused.exit_code)
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def as_them(act: Callable[[], object]) -> None:
    assert by(THEM, act) == 0


class Machine:
    """`common` is like /tmp, `precious` is root's, and `them` is the home of the other account."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.common = self.made("common", 0o1777)
        self.precious = self.made("precious", 0o755)
        self.them = self.made("them", 0o755)
        os.chown(self.them, THEM, THEM)

    def made(self, name: str, mode: int) -> Path:
        directory = self.place / name
        directory.mkdir()
        directory.chmod(mode)
        return directory

    def planted(self, kind: str) -> tuple[Path, str]:
        """What a setting may name that is not for us, and what is said of it."""
        return KINDS[kind](self)

    def link(self) -> tuple[Path, str]:
        as_them(lambda: (self.common / "locks").symlink_to(self.precious))
        return self.common / "locks", f"it is a link of user {THEM}"

    def below_a_link(self) -> tuple[Path, str]:
        way = self.common / "way"
        as_them(lambda: way.symlink_to(self.place))
        return way / "precious", f"{way}, on the way there, is a link of user {THEM}"

    def behind_a_link_of_ours(self) -> tuple[Path, str]:
        theirs = self.common / "theirs"
        as_them(lambda: theirs.symlink_to(self.precious))
        (self.place / "ours").symlink_to("common/theirs")
        return self.place / "ours", f"{theirs}, on the way there, is a link of user {THEM}"

    def open_directory(self) -> tuple[Path, str]:
        as_them(lambda: ((self.common / "open").mkdir(), (self.common / "open").chmod(0o777)))
        return self.common / "open", f"it belongs to user {THEM}"

    def directory(self) -> tuple[Path, str]:
        return self.them, f"it belongs to user {THEM}"

    def missing(self) -> tuple[Path, str]:
        return self.them / "a" / "b", f"{self.them}, on the way there, belongs to user {THEM}"

    def open_to_all(self) -> tuple[Path, str]:
        return self.made("open", 0o777), "it is open: everybody may remove what lies there"

    def below_what_is_open(self) -> tuple[Path, str]:
        above = self.made("open", 0o777)
        (above / "ours").mkdir()
        return above / "ours", f"{above}, on the way there, is open: everybody may remove what lies there"


KINDS: Final = {
    "a link of theirs": Machine.link,
    "below a link of theirs": Machine.below_a_link,
    "behind a link of ours": Machine.behind_a_link_of_ours,
    "an open directory of theirs": Machine.open_directory,
    "a directory of theirs": Machine.directory,
    "missing, below theirs": Machine.missing,
    "open to all": Machine.open_to_all,
    "below what is open to all": Machine.below_what_is_open,
}


@pytest.fixture
def machine() -> Iterator[Machine]:
    with passable_directory() as place:
        yield Machine(place)


def files_in(place: Path) -> set[str]:
    return {str(each.relative_to(place)) for each in place.rglob("*")}


@pytest.mark.parametrize("kind", KINDS)
def test_what_others_can_change_holds_no_lock(machine: Machine, kind: str) -> None:
    """A lock, a janitor and `qwf doctor` say the same of it, and nothing is made anywhere."""
    chosen, flaw = machine.planted(kind)
    before = files_in(machine.place)
    said = f"locks cannot live in {chosen}: {flaw}"
    for take in (
        lambda: lock_directory(chosen),
        lambda: HostLock("camera", directory=chosen),
        lambda: open_directory(chosen, machine.precious),
    ):
        with pytest.raises(ConfigurationError) as refused:
            take()
        assert (refused.value.message, refused.value.exit_code) == (said, ExitCode.CONFIGURATION)
        assert "QWF_LOCK_DIR" in str(refused.value)
    check = check_locks(chosen, ())[0]
    assert (check.status, check.found, check.code) == ("fail", said, ExitCode.CONFIGURATION)
    assert files_in(machine.place) == before


@pytest.mark.slow
def test_the_commands_end_with_78(machine: Machine) -> None:
    """As root types them, with a link to a directory of root's in the setting."""
    chosen, flaw = machine.planted("a link of theirs")
    said = f"locks cannot live in {chosen}: {flaw}"
    env = environment(
        {
            "QWF_LOCK_DIR": str(chosen),
            "QWF_DATA_DIR": str(machine.made("data", 0o755)),
            "LEFTOVERS": str(machine.place),
            "PYTHONPATH": os.pathsep.join([environment()["PYTHONPATH"], str(TESTS)]),
        }
    )
    for arguments in (
        ["run-job", "--lock", "camera", "--", "true"],
        ["--app", "support.apps.leftovers", "janitor", "--once"],
        ["--db", "postgresql://x@127.0.0.1:1/x", "doctor", "--json"],
    ):
        ended = subprocess.run(
            [*QWF, *arguments], env=env, cwd="/", capture_output=True, text=True, timeout=150, check=False
        )
        if "doctor" in arguments:
            found = {check["name"]: check for check in json.loads(ended.stdout)["checks"]}
            assert (found["lock directory"]["status"], found["lock directory"]["found"]) == ("fail", said)
        else:
            assert (ended.returncode, said in ended.stderr) == (78, True), ended.stderr
    assert files_in(machine.precious) == set()


def test_what_only_we_can_change_is_used(machine: Machine) -> None:
    """A sticky directory of root's for all accounts, a group's, links of root's: each goes on working."""
    shared = machine.made("shared", 0o1777)
    (machine.common / "link").symlink_to(shared)
    group = machine.made("group", 0o2775)
    os.chown(group, 0, GROUP)
    for chosen in (shared, machine.common / "link", group, machine.common / "new" / "deep"):
        with HostLock("camera", directory=lock_directory(chosen)):
            pass
        assert check_locks(chosen, ())[0].status == "ok"
    assert stat.S_IMODE((machine.common / "new").stat().st_mode) & 0o002 == 0
    for chosen in (shared, machine.common / "link", group, machine.them / "own"):
        as_one_of_the_group = by(
            THEM, lambda chosen=chosen: HostLock("disk", directory=lock_directory(chosen)).acquire(), GROUP
        )
        assert as_one_of_the_group == 0
    assert by(THEM, lambda: lock_directory(machine.precious)) == 0  # the first lock says that it is closed
    assert by(THEM + 1, lambda: lock_directory(machine.them / "own")) == ExitCode.CONFIGURATION


@pytest.mark.parametrize("rounds", [100, pytest.param(300, marks=pytest.mark.nightly)])
def test_who_plants_a_link_while_it_is_made_wins_nothing(machine: Machine, rounds: int) -> None:
    """A missing directory below one for all is ours or refused, however the two meet."""
    chosen = machine.common / "locks"
    readable, writable = os.pipe()
    planter = os.fork()
    if planter == 0:
        try:
            os.close(readable)
            os.setgid(THEM)
            os.setuid(THEM)
            while True:
                with suppress(FileExistsError):
                    chosen.symlink_to(machine.precious)
                    os.write(writable, b".")
                    chosen.unlink()
        finally:
            os._exit(0)
    os.close(writable)
    try:
        assert os.read(readable, 1) == b"."
        # A full pipe would stop the planter.
        os.set_blocking(readable, False)
        for _ in range(rounds):
            with suppress(BlockingIOError):
                os.read(readable, 65_536)
            with suppress(ConfigurationError):
                with HostLock("camera", directory=lock_directory(chosen)) as lock:
                    assert chosen.lstat().st_uid == 0
                    assert stat.S_ISDIR(chosen.lstat().st_mode)
                lock.path.unlink(missing_ok=True)
                (chosen / ".no-former-directory").unlink(missing_ok=True)
                chosen.rmdir()
    finally:
        os.close(readable)
        os.kill(planter, signal.SIGKILL)
        os.waitpid(planter, 0)
    assert files_in(machine.precious) == set()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "link" in kind or "open" in kind])
def test_what_everybody_can_change_holds_no_data(machine: Machine, kind: str) -> None:
    """Neither workspaces, nor the embedded server, nor what a janitor remembers."""
    chosen, flaw = machine.planted(kind)
    if kind == "an open directory of theirs":
        flaw = "it is open: everybody may remove what lies there"
    before = files_in(machine.place)
    said = f"files of ours cannot live in {chosen}: {flaw}"
    for take in (lambda: workspace("run", root=chosen), lambda: EmbeddedServer.acquire(chosen)):
        with pytest.raises(QwfError) as refused:
            take()
        assert (refused.value.message, refused.value.exit_code) == (said, ExitCode.CONFIGURATION)
        assert "QWF_DATA_DIR" in str(refused.value)
    open_directory(machine.place / "locks-of-root", chosen)
    assert files_in(machine.place) == before


def test_data_may_be_shared_with_who_owns_the_place(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory of another account's is used; its links only where code is read from as well."""
    workspace("run", root=machine.them).close()
    monkeypatch.chdir(machine.them)
    machine.them.chmod(0o777)
    workspace("run", root=Path(".qwf")).close()
    disk = machine.made("disk", 0o755)
    as_them(lambda: (machine.them / "disk").symlink_to(disk))
    workspace("run", root=Path("disk")).close()
    assert by(THEM + 1, lambda: (machine.them / "odd").symlink_to(machine.precious)) == 0
    with pytest.raises(ConfigurationError, match=f"it is a link of user {THEM + 1}"):
        workspace("run", root=Path("odd"))
    assert files_in(machine.precious) == set()
