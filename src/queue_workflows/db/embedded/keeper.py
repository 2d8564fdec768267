"""How processes share one embedded Postgres, start it once, and stop it with the last of them.

Nothing here counts processes or stores pids: the kernel drops a flock with the process that held it, also
after `kill -9`, so lock files below the server's home are the whole truth.

    users   SHARED by every process that uses the server, for as long as it does; EXCLUSIVE is the right
            to stop it, to be had only when nobody uses it
    start   EXCLUSIVE while the server is initialised or started; always taken after `users`, never before
    keeper  EXCLUSIVE by the keeper, the server's parent, from before the server starts until it has ended
    leave   EXCLUSIVE by the one process that is leaving and would stop the server, taken before it gives up
            `users`, so that two that leave at once do not mistake each other for users; and by the keeper,
            for a moment, each time it looks whether the server is used again

             first user: users SHARED, start EXCLUSIVE, runs this file
                                 │
      stopped ───────────────────┴──────────────> running, keeper waits for users EXCLUSIVE <── used again
         ^                                             │ last user gone: released, exited or killed    │
         │                                          lingering, as long as the first user said ─────────┘
         │                                             │ that is over, or `leave` is held, or the home is gone
         └───── SIGINT (fast shutdown), wait <──── whatever gets users EXCLUSIVE: a leaving user or the keeper

A server lingers so that the next command need not start it again. Its keeper counts the time, holding no lock
but its own, so that a newcomer finds nothing in its way. A process that wants the server stopped at once
holds `leave` while nobody uses it, which the keeper takes for the end of the wait.

A newcomer that meets the stopping server waits for its shared lock and then starts the server afresh. A user
that dies half-way leaves nothing undecided: `initdb` and the keeper inherit the start lock, so it stays held
until they are through, also when their user was killed. The keeper ends with its server; and should the
keeper be killed, Linux stops the server in the same moment (PDEATHSIG), so that a server never outlives
both its users and its keeper; elsewhere its next user does. Whether a server runs is
asked of its socket, which only it can listen on, and the kernel names the listener's pid; its keeper knows
the pid of its child even when somebody removed the socket.

The keeper runs this file as a script with nothing but the standard library, so that it starts in
milliseconds and keeps no application code in memory.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

PORT = 5432
_TICK_S = 0.02
_BUSY_PATIENCE_S = 5.0
_LISTEN_TIMEOUT_S = 60.0
_LOOK_S = 0.1
_UP, _ENDED = "up", "ended"


@dataclass(frozen=True)
class Place:
    """Where one server keeps its things: `home` is its users', `data` and `socket_dir` are its account's."""

    home: str
    socket_dir: str

    @property
    def data(self) -> str:
        return os.path.join(self.home, "data")

    @property
    def log(self) -> str:
        return os.path.join(self.home, "server.log")

    @property
    def socket(self) -> str:
        return os.path.join(self.socket_dir, f".s.PGSQL.{PORT}")

    def lock(self, name: str) -> str:
        return os.path.join(self.home, f"{name}.lock")


def open_beside(place: Place, path: str, flags: int) -> int:
    """Open a file of the home, never through a link; what root makes is given to the home's owner."""
    fd = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    owner = os.stat(place.home)
    if os.geteuid() == 0 and owner.st_uid != os.fstat(fd).st_uid:
        os.fchown(fd, owner.st_uid, owner.st_gid)
    return fd


def is_current(fd: int, path: str) -> bool:
    """Whether the locked file still is the one at its path: a lock on a deleted file keeps nobody out.

    As `host/locks/flock` and its loop; but this file runs as a script that can import nothing of ours.
    """
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def try_lock(place: Place, name: str, operation: int) -> int | None:
    """Lock one of the home's lock files without waiting; the descriptor, or None when it is held."""
    path = place.lock(name)
    while True:
        fd = open_beside(place, path, os.O_RDWR)
        try:
            fcntl.flock(fd, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        if is_current(fd, path):
            return fd
        os.close(fd)


def wait_lock(place: Place, name: str, operation: int, deadline: float) -> int:
    """Lock one of the home's lock files; TimeoutError when it cannot be had by the (monotonic) deadline."""
    while (fd := try_lock(place, name, operation)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(place.lock(name))
        time.sleep(_TICK_S)
    return fd


def listening_pid(path: str) -> int | None:
    """The pid of the server that listens on the socket; None without one, 0 when the kernel hides it."""
    give_up = time.monotonic() + _BUSY_PATIENCE_S
    while time.monotonic() < give_up:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(5)
            try:
                client.connect(path)
            except (BlockingIOError, TimeoutError):
                time.sleep(_TICK_S)  # its backlog is full: alive, and busy
                continue
            except OSError:
                return None
            if hasattr(socket, "SO_PEERCRED"):
                credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                return int(struct.unpack("3i", credentials)[0])
            local_peerpid = 2  # <sys/un.h> of macOS, level SOL_LOCAL = 0
            return int(client.getsockopt(0, local_peerpid))
    return 0  # somebody holds the socket and takes no connection: it hangs


def pid_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _is_stopped(place: Place, pid: int) -> bool:
    """Postgres removes its pid file last; one that was killed leaves it, with a pid that is gone."""
    if listening_pid(place.socket) is not None:
        return False
    return not os.path.exists(os.path.join(place.data, "postmaster.pid")) or not pid_alive(pid)


def stop_server(place: Place, server: subprocess.Popen[bytes] | None = None) -> None:
    """Stop the server and wait; the caller holds users and start. `server` is for its keeper, its parent."""
    pid = server.pid if server is not None else listening_pid(place.socket)
    if not pid:
        return
    end(pid, lambda: server.poll() is not None if server is not None else _is_stopped(place, pid))
    with suppress(OSError):
        os.rmdir(place.socket_dir)


def end(pid: int, has_ended: Callable[[], bool]) -> None:
    """A fast shutdown; the harsher signals are for a server that hangs."""
    for fast_immediate_kill, patience_s in ((signal.SIGINT, 60), (signal.SIGQUIT, 10), (signal.SIGKILL, 10)):
        if has_ended():
            return
        with suppress(ProcessLookupError):
            os.kill(pid, fast_immediate_kill)
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            if has_ended():
                return
            time.sleep(_TICK_S)


def _stop_unused(place: Place, deadline: float, server: subprocess.Popen[bytes] | None = None) -> None:
    """Stop the server under an exclusive users lock, but let an orphaned starter get through first."""
    start = wait_lock(place, "start", fcntl.LOCK_EX, deadline)
    try:
        stop_server(place, server)
    finally:
        os.close(start)


def leave(place: Place, users: int, deadline: float) -> None:
    """Give up a users lock: return when others use the server, or it and its keeper are gone."""
    try:
        leaving = wait_lock(place, "leave", fcntl.LOCK_EX, deadline)
    finally:
        # Closed, not unlocked: a forked child that still uses the server shares this lock and keeps it.
        os.close(users)
    try:
        _stop_or_find_users(place, deadline)
    finally:
        os.close(leaving)


def stop_unless_used(place: Place, deadline: float) -> bool:
    """Stop a server that lingers, and return once it and its keeper are gone; False when somebody uses it."""
    leaving = wait_lock(place, "leave", fcntl.LOCK_EX, deadline)
    try:
        return _stop_or_find_users(place, deadline)
    finally:
        os.close(leaving)


def _stop_or_find_users(place: Place, deadline: float) -> bool:
    """Whether it is gone; the caller holds `leave`."""
    while (gone := _is_gone(place, deadline)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(place.lock("users"))
        time.sleep(_TICK_S)
    return gone


def _is_gone(place: Place, deadline: float) -> bool | None:
    """True: the server and its keeper, after we stopped them; False: it is used; None: not yet known."""
    users = try_lock(place, "users", fcntl.LOCK_EX)
    if users is None:  # other users share it, or the keeper is just stopping the server
        users = try_lock(place, "users", fcntl.LOCK_SH)
        if users is not None:
            os.close(users)
        return None if users is None else False
    try:
        _stop_unused(place, deadline)
        keeper = try_lock(place, "keeper", fcntl.LOCK_EX)
        if keeper is not None:
            os.close(keeper)
        return None if keeper is None else True
    finally:
        os.close(users)


def _dying_with_us() -> Callable[[], None] | None:
    """What makes the server end with its keeper, to be run in its process once that is its account's.

    Loaded here, while we are still ourselves: the server's account may not be able to read our Python.
    """
    if sys.platform != "linux":
        return None
    import ctypes

    prctl, ourselves, pr_set_pdeathsig = ctypes.CDLL(None).prctl, os.getpid(), 1

    def promise() -> None:
        prctl(pr_set_pdeathsig, int(signal.SIGINT), 0, 0, 0)
        if os.getppid() != ourselves:
            os._exit(1)

    return promise


def _start(
    place: Place, command: list[str], account: list[int] | None, environment: dict[str, str]
) -> subprocess.Popen[bytes] | None:
    """Run the server and wait until it listens; None when it ended before, what it said is in the log."""
    log = open_beside(place, place.log, os.O_WRONLY | os.O_APPEND)
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=environment,
        cwd="/",
        umask=0o077,
        start_new_session=True,
        user=account[0] if account else None,
        group=account[1] if account else None,
        extra_groups=[] if account else None,
        preexec_fn=_dying_with_us(),  # noqa: PLW1509 - safe, for the keeper has one thread
    )
    os.close(log)
    until = time.monotonic() + _LISTEN_TIMEOUT_S
    while time.monotonic() < until:
        if server.poll() is not None:
            return None
        if listening_pid(place.socket) is not None:
            return server
        time.sleep(_TICK_S)
    server.kill()
    server.wait()
    return None


class _ServerEnded(Exception):
    """The keeper's child is gone, so there is nothing left to keep."""


def _wait_until_unused(place: Place, users: int, linger_s: float) -> None:
    """Return with the `users` lock held EXCLUSIVE once nobody has used the server for so long."""
    fcntl.flock(users, fcntl.LOCK_EX)
    until = time.monotonic() + linger_s
    while time.monotonic() < until and _is_there(place, users):
        try:
            leaving = try_lock(place, "leave", fcntl.LOCK_EX)
        except OSError:
            return  # the home goes at this very moment, or its disk is full
        if leaving is None:
            return  # whatever holds it wants the server stopped, and nobody uses it
        fcntl.flock(users, fcntl.LOCK_UN)
        os.close(leaving)
        time.sleep(_LOOK_S)
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(users, fcntl.LOCK_EX)
            until = time.monotonic() + linger_s


def _is_there(place: Place, users: int) -> bool:
    """Whether the server's home and data are; deleted to start afresh, they free their server at once."""
    return is_current(users, place.lock("users")) and os.path.exists(place.data)


def _keep(place: Place, keeper: int, server: subprocess.Popen[bytes], linger_s: float) -> None:
    """Wait until nobody uses the server, or it ends by itself; then stop it.

    The keeper's lock goes before the exclusive users lock does, so that a newcomer never takes a keeper that
    is already leaving for one that will look after the server it starts.
    """

    def look(_number: int, _frame: FrameType | None) -> None:
        if server.poll() is not None:
            raise _ServerEnded

    with suppress(_ServerEnded):
        signal.signal(signal.SIGCHLD, look)
        look(signal.SIGCHLD, None)
        users = open_beside(place, place.lock("users"), os.O_RDWR)
        _wait_until_unused(place, users, linger_s)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if is_current(users, place.lock("users")):
            _stop_unused(place, time.monotonic() + 2 * _LISTEN_TIMEOUT_S, server)
        else:  # the home was deleted: what runs there now is not ours, but our child is
            stop_server(place, server)
    os.close(keeper)


def _become_keeper(order: dict[str, Any], tell: int) -> None:
    """Start the server and tell the starter how that went; then keep it to its end."""
    place = Place(**order["place"])
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.chdir("/")
    server = None
    try:
        # The keeper of a server that has just ended may still be about to leave.
        keeper = wait_lock(place, "keeper", fcntl.LOCK_EX, time.monotonic() + _LISTEN_TIMEOUT_S)
        server = _start(place, order["command"], order["account"], order["environment"])
        said = _UP if server else _ENDED
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    with suppress(BrokenPipeError):
        os.write(tell, said.encode(errors="replace"))
    os.close(tell)
    os.close(order["start_fd"])
    if server is not None:
        _keep(place, keeper, server, order["linger_s"])


def main() -> NoReturn:
    """Have a keeper start the server and look after it; stdin holds the order."""
    order = json.load(sys.stdin)
    heard, tell = os.pipe()
    if os.fork() == 0:
        os.close(heard)
        try:
            _become_keeper(order, tell)
        finally:
            os._exit(0)
    os.close(tell)
    with os.fdopen(heard, errors="replace") as pipe:
        said = pipe.read()
    if said not in (_UP, _ENDED):
        print(said or "it was killed")
    sys.exit(0 if said == _UP else 1)


if __name__ == "__main__":
    main()
