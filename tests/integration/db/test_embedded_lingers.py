"""The embedded server after its last user: it waits for another, and is gone when nobody wants it."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from support.processes.embedded_users import (
    User,
    acquire,
    alive,
    answers,
    holders,
    ordinary_user,
    processes_below,
    until,
)
from support.processes.fifos import open_for_its_reader

from queue_workflows.db.embedded.binaries import find_binaries
from queue_workflows.db.embedded.home import settle
from queue_workflows.db.embedded.server import EmbeddedServer
from queue_workflows.errors import EmbeddedServerError, EmbeddedSetupError

LONG = 600.0


def left_behind(data_dir: Path, **options: float) -> int:
    """The pid of a server that was used and given up, and so waits for its next user."""
    with acquire(data_dir, linger_s=LONG, **options) as server:
        pid = server.pid
    assert pid
    return pid


def ends(pid: int, data_dir: Path) -> None:
    """Wait until neither the server nor anything else is left."""
    until(lambda: not alive(pid), "the server ends")
    until(lambda: processes_below(data_dir) == [], "its keeper ends")


def test_the_next_user_finds_the_server_up_until_it_is_stopped(data_dir: Path) -> None:
    """Also when the last user was killed; to stop it takes one call, after which nothing is left."""
    pid = left_behind(data_dir)
    killed = User(data_dir, linger_s=LONG)
    assert killed.server_pid == pid
    killed.kill()
    with acquire(data_dir, linger_s=LONG) as server:
        assert server.pid == pid
        assert answers(server.dsn())
    assert alive(pid)
    assert EmbeddedServer.stop(data_dir)
    assert not alive(pid)
    assert not EmbeddedServer.stop(data_dir)
    ends(pid, data_dir)


def test_a_server_that_nobody_wants_any_more_ends_by_itself(data_dir: Path) -> None:
    """The time is counted anew after each user, the killed ones among them."""
    with acquire(data_dir, linger_s=0.2) as server:
        pid = server.pid
    assert pid
    ends(pid, data_dir)
    killed = User(data_dir, linger_s=0.2)
    again = killed.server_pid
    killed.kill()
    ends(again, data_dir)


@pytest.mark.slow
def test_a_last_user_that_leaves_nothing_stops_what_would_linger(data_dir: Path) -> None:
    """It joined a server of another one, and goes after that one."""
    first = User(data_dir, linger_s=LONG)
    pid = first.server_pid
    with acquire(data_dir) as last:
        first.release()
        assert answers(last.dsn())
    assert not alive(pid)
    ends(pid, data_dir)


@pytest.mark.slow
def test_users_of_both_kinds_may_leave_at_once(data_dir: Path) -> None:
    """Whichever is the last, the server is whole for the next one, and can be stopped."""
    users = [User(data_dir, linger_s=linger_s) for linger_s in (LONG, 0.0, LONG, 0.0)]
    assert len({user.server_pid for user in users}) == 1
    for user in users:
        assert user.process.stdin
        user.process.stdin.write("\n")
        user.process.stdin.flush()
    for user in users:
        user.process.wait(150)
    with acquire(data_dir, linger_s=LONG) as server:
        assert answers(server.dsn())
        pid = server.pid
    assert pid
    assert EmbeddedServer.stop(data_dir)
    ends(pid, data_dir)


def test_a_used_server_is_not_stopped(data_dir: Path) -> None:
    """The error says so, and its user notices nothing."""
    user = User(data_dir, linger_s=LONG)
    pid = user.server_pid
    with pytest.raises(EmbeddedServerError, match="is in use — end what uses it first"):
        EmbeddedServer.stop(data_dir)
    assert answers(user.report["dsn"])
    user.release()
    assert alive(pid)
    assert EmbeddedServer.stop(data_dir)
    ends(pid, data_dir)


def test_where_no_server_was_ever_made_there_is_none_to_stop(data_dir: Path) -> None:
    """And none is made for it."""
    with pytest.raises(EmbeddedSetupError, match=r"there is no embedded one in .* yet"):
        EmbeddedServer.stop(data_dir)
    assert not data_dir.exists()


@pytest.mark.slow
def test_a_server_may_be_stopped_while_it_starts(passable_dir: Path, data_dir: Path) -> None:
    """One with a user is in use already; one whose user was killed is awaited, and then stopped."""
    gate = passable_dir / "gate"
    os.mkfifo(gate)
    gate.chmod(0o666)
    starting = User(data_dir, linger_s=LONG, bindir=_gated(passable_dir, gate))
    with ThreadPoolExecutor() as pool:
        with open_for_its_reader(gate) as opened:
            with pytest.raises(EmbeddedServerError, match="is in use"):
                EmbeddedServer.stop(data_dir)
            starting.kill()
            stopping = pool.submit(EmbeddedServer.stop, data_dir)
            leave = data_dir / "postgres" / "leave.lock"
            until(lambda: is_held(leave), "it is being stopped")
            opened.write("go\n")
        stopping.result(150)
    until(lambda: processes_below(data_dir) == [], "all is gone")


def _gated(directory: Path, gate: Path) -> Path:
    """Binaries whose server does not start before somebody writes to the gate."""
    _, account = settle(directory / "probe", None, directory / "var")
    real = find_binaries(None, account, directory / "var").bindir
    bindir = directory / "wrapped" / "bin"
    bindir.mkdir(parents=True)
    (bindir / "initdb").symlink_to(real / "initdb")
    (bindir / "postgres").write_text(
        f'#!/bin/sh\ncase "$*" in *listen_addresses*) read _ < {gate};; esac\nexec {real / "postgres"} "$@"\n'
    )
    (bindir / "postgres").chmod(0o755)
    return bindir


@pytest.mark.slow
def test_one_that_comes_as_the_server_is_stopped_gets_a_fresh_one(data_dir: Path) -> None:
    """It waits until the old one is gone, and what it gets lasts."""
    old = left_behind(data_dir)
    os.kill(old, signal.SIGSTOP)
    with ThreadPoolExecutor() as pool:
        stopping = pool.submit(EmbeddedServer.stop, data_dir)
        start = data_dir / "postgres" / "start.lock"
        until(lambda: is_held(start), "the old one is being stopped")
        newcomer = User(data_dir, linger_s=LONG)
        os.kill(old, signal.SIGCONT)
        assert stopping.result(150)
    assert newcomer.server_pid != old
    assert answers(newcomer.report["dsn"])
    newcomer.release()
    assert EmbeddedServer.stop(data_dir)
    ends(newcomer.server_pid, data_dir)


def is_held(lock: Path) -> bool:
    """Whether something holds the lock, as the one that stops the server does."""
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)],
    ids=["killed", "terminated"],
)
def test_a_keeper_that_is_ended_takes_the_waiting_server_along(data_dir: Path, number: int) -> None:
    """As at the end of a session; the next user starts a server on the same data."""
    pid = left_behind(data_dir)
    (keeper,) = holders(data_dir / "postgres" / "keeper.lock")
    os.kill(keeper, number)
    ends(pid, data_dir)
    with acquire(data_dir) as server:
        assert answers(server.dsn())


@pytest.mark.parametrize("what", ["postgres", pytest.param("postgres/data", marks=pytest.mark.slow)])
def test_a_waiting_server_ends_when_its_directory_is_removed(data_dir: Path, what: str) -> None:
    """Who deletes the data to start afresh is not in the way of a server that nobody uses."""
    pid = left_behind(data_dir)
    _remove(data_dir / what)
    ends(pid, data_dir)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["postgres", "postgres/data"])
def test_after_the_directory_is_removed_the_next_user_starts_afresh(data_dir: Path, what: str) -> None:
    """At once: it does not join the server whose files are gone."""
    pid = left_behind(data_dir)
    _remove(data_dir / what)
    with acquire(data_dir) as server:
        assert server.pid != pid
        assert answers(server.dsn())
    ends(pid, data_dir)


def _remove(directory: Path) -> None:
    """A server that runs may make a file while its directory is being removed."""
    while directory.exists():
        with suppress(OSError):
            shutil.rmtree(directory)


@pytest.mark.slow
def test_an_ordinary_users_server_waits_too_and_root_may_stop_it(passable_dir: Path) -> None:
    """Root runs and ends it as that user."""
    if os.geteuid() != 0:
        pytest.skip("needs root: it is about root and another user at one directory")
    uid, python = ordinary_user()
    own = passable_dir / "own"
    own.mkdir()
    os.chown(own, uid, uid)
    first = User(own / ".qwf", uid=uid, python=python, linger_s=LONG)
    pid = first.server_pid
    first.release()
    with acquire(own / ".qwf", linger_s=LONG) as server:
        assert server.pid == pid
    again = User(own / ".qwf", uid=uid, python=python, linger_s=LONG)
    assert again.server_pid == pid
    again.release()
    assert EmbeddedServer.stop(own / ".qwf")
    ends(pid, own)
