"""The embedded server and the accounts of a machine: root, ordinary users, and whom the server runs as."""

from __future__ import annotations

import os
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from support.processes.embedded_users import (
    User,
    acquire,
    alive,
    answers,
    hidden_binaries,
    ordinary_user,
    processes_below,
    until,
)

from queue_workflows.db.embedded.home import make_fallback, settle
from queue_workflows.errors import EmbeddedServerError

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="needs root: it is about root running the server as another account"
)


@pytest.mark.slow
def test_root_only_checkout_moves_the_data(passable_dir: Path) -> None:
    """Where the account cannot follow, data goes elsewhere, a note says where, no mode is touched."""
    checkout = passable_dir / "checkout"
    checkout.mkdir(mode=0o700)
    fallback = passable_dir / "var"
    with acquire(checkout / ".qwf", fallback=fallback) as server:
        assert answers(server.dsn())
        assert server.data_dir.parent == fallback
        assert server.data_dir.name.startswith("checkout-")
        home = server.data_dir
    assert stat.S_IMODE(checkout.stat().st_mode) == 0o700
    assert (checkout / ".qwf" / "WHERE").read_text().splitlines()[0] == str(home)
    checkout.chmod(0o755)
    with acquire(checkout / ".qwf", fallback=fallback) as server:
        assert server.data_dir == home
    checkout.rename(passable_dir / "renamed")
    with pytest.raises(
        EmbeddedServerError, match="was moved or copied; the data of its embedded Postgres is in"
    ):
        acquire(passable_dir / "renamed" / ".qwf", fallback=fallback)


@pytest.mark.slow
def test_root_only_binaries_are_copied(passable_dir: Path, data_dir: Path) -> None:
    """Binaries that the account cannot run are copied to where it can, once."""
    bindir = hidden_binaries(passable_dir)
    for _ in range(2):
        with acquire(data_dir, bindir=bindir, fallback=passable_dir / "var") as server:
            assert server.pid
            program = Path(f"/proc/{server.pid}/exe").readlink()
            assert program.is_relative_to(passable_dir / "var")
    assert len(list((passable_dir / "var").iterdir())) == 1
    assert stat.S_IMODE((passable_dir / "private").stat().st_mode) == 0o700


def test_root_runs_the_server_as_the_wanted_account(passable_dir: Path) -> None:
    """The server runs as the wanted account, without root's groups; that account must exist."""
    user = User(passable_dir / "a", run_as="nobody")
    assert psutil.Process(user.server_pid).username() == "nobody"
    status = Path(f"/proc/{user.server_pid}/status").read_text()
    assert next(line for line in status.splitlines() if line.startswith("Groups:")).split()[1:] == []
    user.release()
    with pytest.raises(EmbeddedServerError, match="belongs to nobody, so it cannot run as daemon"):
        acquire(passable_dir / "a", run_as="daemon")
    with pytest.raises(EmbeddedServerError, match="there is no account no-such-account"):
        acquire(passable_dir / "b", run_as="no-such-account")
    with pytest.raises(EmbeddedServerError, match="there is no account root"):
        acquire(passable_dir / "b", run_as="root")


@pytest.mark.slow
def test_ordinary_user_works_and_root_may_join(passable_dir: Path) -> None:
    """An ordinary user needs nothing of root; root, coming later, runs the server as that user."""
    uid, python = ordinary_user()
    own = passable_dir / "own"
    own.mkdir()
    os.chown(own, uid, uid)
    user = User(own / ".qwf", uid=uid, python=python)
    assert "error" not in user.report, user.report
    with acquire(own / ".qwf") as server:
        assert server.pid == user.server_pid
        user.release()
        assert answers(server.dsn())
    with acquire(own / ".qwf") as server:
        assert server.pid
        assert psutil.Process(server.pid).uids().real == uid
    again = User(own / ".qwf", uid=uid, python=python)
    assert "error" not in again.report, again.report
    again.kill()
    until(lambda: not alive(again.server_pid), "the keeper stops it")
    until(lambda: processes_below(own) == [], "the keeper ends")


@pytest.mark.slow
@pytest.mark.parametrize("mode", [0o755, 0o700], ids=["in-place", "moved"])
def test_ordinary_user_meets_roots_directory(passable_dir: Path, mode: int) -> None:
    """A directory that root's server uses is refused to an ordinary user in one clear sentence."""
    uid, python = ordinary_user()
    checkout = passable_dir / "checkout"
    checkout.mkdir(mode=mode)
    acquire(checkout / ".qwf", fallback=passable_dir / "var").release()
    checkout.chmod(0o755)
    visitor = User(checkout / ".qwf", uid=uid, python=python, fallback=passable_dir / "var")
    assert "root" in visitor.report["error"]
    assert "QWF_DATA_DIR" in visitor.report["error"]
    assert visitor.process.wait(150) == 78


def test_ordinary_user_cannot_make_a_directory_of_roots(passable_dir: Path) -> None:
    """A place that an ordinary user may not write to is refused in one clear sentence."""
    uid, python = ordinary_user()
    visitor = User(passable_dir / ".qwf", uid=uid, python=python)
    assert "cannot make the directory" in visitor.report["error"]
    assert visitor.process.wait(150) == 78


def test_an_unreadable_directory_is_a_clear_error(passable_dir: Path) -> None:
    """A data directory that an ordinary user may not look into is refused in one sentence, with 78."""
    uid, python = ordinary_user()
    data_dir = passable_dir / ".qwf"
    data_dir.mkdir(mode=0o700)
    visitor = User(data_dir, uid=uid, python=python)
    assert "cannot use the directory" in visitor.report["error"]
    assert visitor.process.wait(150) == 78


def test_data_that_may_not_be_read_is_not_called_foreign(passable_dir: Path) -> None:
    """Whose database cannot be looked into is told so, and never to move it away."""
    uid, python = ordinary_user()
    home = passable_dir / ".qwf" / "postgres"
    data = home / "data"
    data.mkdir(parents=True)
    for made in (home.parent, home):
        os.chown(made, uid, -1)
    (data / "PG_VERSION").write_text("17\n")
    data.chmod(0o700)
    visitor = User(passable_dir / ".qwf", uid=uid, python=python)
    assert f"{data} is not readable for " in visitor.report["error"]
    assert "run as its owner root" in visitor.report["error"]
    assert "move it away" not in visitor.report["error"]
    assert visitor.process.wait(150) == 78


def test_a_uid_without_an_account_is_a_clear_error(passable_dir: Path) -> None:
    """As in a container with an arbitrary uid: initdb would only say that its user does not exist."""
    _, python = ordinary_user()
    own = passable_dir / "own"
    own.mkdir()
    os.chown(own, 54321, 54321)
    visitor = User(own / ".qwf", uid=54321, python=python)
    assert "uid 54321 has no account" in visitor.report["error"]
    assert visitor.process.wait(150) == 78


@pytest.mark.slow
def test_an_empty_note_of_where_the_data_is_does_no_harm(passable_dir: Path) -> None:
    """A disk that was full may have left the note empty; the data is found all the same."""
    checkout = passable_dir / "checkout"
    checkout.mkdir(mode=0o700)
    fallback = passable_dir / "var"
    with acquire(checkout / ".qwf", fallback=fallback) as server:
        home = server.data_dir
    (checkout / ".qwf" / "WHERE").write_text("")
    with acquire(checkout / ".qwf", fallback=fallback) as server:
        assert server.data_dir == home


@pytest.mark.slow
def test_processes_that_begin_at_once_make_one_place(passable_dir: Path) -> None:
    """As the processes of a test run do that is the first of its machine."""
    _, account = settle(passable_dir / "probe", None, passable_dir / "unused")
    assert account is not None
    together = threading.Barrier(4)

    def make(fallback: Path) -> None:
        together.wait(150)
        make_fallback(fallback, account)

    with ThreadPoolExecutor(4) as pool:
        for number in range(30):
            list(pool.map(make, [passable_dir / f"var{number}"] * 4))
