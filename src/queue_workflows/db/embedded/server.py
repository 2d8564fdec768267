"""The embedded Postgres: a server on a private socket, started on demand and stopped when nobody uses it.

It is for development, demos and tests, where nobody named a database. `keeper` explains how
processes share one; `home` decides where it lives and as which account; `binaries` finds
Postgres itself.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.parse import quote

import psycopg
from psycopg.rows import TupleRow

from queue_workflows.db.embedded import data, keeper
from queue_workflows.db.embedded.binaries import Binaries, find_binaries, wheel_bindir
from queue_workflows.db.embedded.home import (
    FALLBACK,
    Account,
    absent,
    cannot,
    environment,
    make_private,
    refuse_squatted,
    settle,
)
from queue_workflows.errors import EmbeddedServerError, EmbeddedSetupError

_log = logging.getLogger(__name__)

DATABASE = "qwf"
_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 90.0
_FAILED_STOP_TIMEOUT_S = 5.0  # bad news should not wait for somebody else's slow start
_LOG_LIMIT = 16 * 1024 * 1024
# What a server says, or the kernel for it, that will take connections in a moment.
_PASSING = ("starting up", "not yet accepting", "recovery", "shutting down", "refused", "reset")
_TICK_S = 0.02

# A server dies of these when the one before it, killed, has not quite let go; they pass.
_PASSING_FAILURES = ('lock file "postmaster.pid" already exists', "pre-existing shared memory block")


class EmbeddedServer:
    """One process's use of an embedded server; the server runs while any process holds one of these."""

    def __init__(
        self,
        place: keeper.Place,
        account: Account | None,
        *,
        bindir: Path | None = None,
        server_settings: Mapping[str, str] | None = None,
        fallback: Path = FALLBACK,
        creates: bool = True,
        linger_s: float = 0.0,
    ) -> None:
        self._place = place
        self._account = account
        self._bindir = bindir
        self._settings = dict(server_settings or {})
        self._fallback = fallback
        self._creates = creates
        self._linger_s = linger_s
        self._users: int | None = None
        self.version = ""

    @classmethod
    def acquire(
        cls,
        data_dir: Path,
        *,
        bindir: Path | None = None,
        run_as: str | None = None,
        server_settings: Mapping[str, str] | None = None,
        fallback: Path = FALLBACK,
        creates: bool = True,
        linger_s: float = 0.0,
        timeout_s: float = _START_TIMEOUT_S,
    ) -> Self:
        """Use the server of `data_dir`, making and starting it as needed.

        `run_as` names the account for when we are root. `server_settings` are parameters for a server that
        this call starts; one that runs already is taken as it is. `fallback` is where data goes that the
        account could not reach in `data_dir`. Without `creates` a server that was never made stays unmade.
        A server that this call starts is kept for `linger_s` seconds after its last user, for the next one; a
        user that says 0 and is the last stops any.
        """
        place, account = settle(Path(data_dir), run_as, fallback, creates=creates)
        server = cls(
            place,
            account,
            bindir=bindir,
            server_settings=server_settings,
            fallback=fallback,
            creates=creates,
            linger_s=linger_s,
        )
        made = data.is_made(place)
        doing = "using the" if made else "making an"
        if made or creates:
            _log.info("%s embedded Postgres in %s; QWF_DB_URL names another database", doing, place.home)
        deadline = time.monotonic() + timeout_s
        server._users = server._wait_lock("users", fcntl.LOCK_SH, deadline)
        try:
            server.ensure_running(timeout_s=timeout_s)
        except BaseException:
            server._linger_s = 0.0
            server.release(timeout_s=min(timeout_s, _FAILED_STOP_TIMEOUT_S))
            raise
        return server

    @classmethod
    def stop(
        cls,
        data_dir: Path,
        *,
        run_as: str | None = None,
        fallback: Path = FALLBACK,
        timeout_s: float = _STOP_TIMEOUT_S,
    ) -> bool:
        """Stop the server of `data_dir` that lingers, and wait until it is gone; whether one ran.

        One that somebody uses goes on, and that is an error.
        """
        place, account = settle(Path(data_dir), run_as, fallback, creates=False)
        refuse_squatted(Path(place.socket_dir), account)
        ran = keeper.listening_pid(place.socket) is not None
        try:
            is_gone = keeper.stop_unless_used(place, time.monotonic() + timeout_s)
        except TimeoutError as error:
            raise _others_are_at_it(place) from error
        if not is_gone:
            raise EmbeddedServerError(
                f"the embedded Postgres in {place.home} is in use",
                advice="end what uses it first, such as `qwf up`, a worker or `qwf db serve`",
            )
        return ran

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @property
    def data_dir(self) -> Path:
        """Where the server keeps its data and its log; not always below the directory that was asked for."""
        return Path(self._place.home)

    @property
    def socket_dir(self) -> Path:
        return Path(self._place.socket_dir)

    @property
    def log_file(self) -> Path:
        return Path(self._place.log)

    @property
    def pid(self) -> int | None:
        """The server's pid, None when it does not run."""
        return keeper.listening_pid(self._place.socket)

    def program(self, name: str) -> str:
        """Where one of Postgres's programs is, or its bare name where it did not come with the server."""
        bindir = self._bindir or wheel_bindir()
        path = bindir / name if bindir else None
        return str(path) if path and os.access(path, os.X_OK) else name

    def dsn(self, dbname: str = DATABASE) -> str:
        """A libpq URI. It names port and address, so that no PGPORT or PGHOSTADDR can lead it astray."""
        where = f"host={self._place.socket_dir}&hostaddr=&port={keeper.PORT}"
        return f"postgresql://postgres@/{quote(dbname, safe='')}?{where}"

    def release(self, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        """Give the server up. Where it does not linger, the last to do so waits until it has stopped.

        A second call does nothing.
        """
        users, self._users = self._users, None
        if users is None:
            return
        if self._linger_s or not self._is_ours():
            os.close(users)
            return
        # The home was deleted, or others are leaving too and see to it.
        with suppress(FileNotFoundError, TimeoutError):
            keeper.leave(self._place, users, time.monotonic() + timeout_s)

    def _is_ours(self) -> bool:
        """Whether nobody squats on the socket: else we would stop somebody else's process."""
        try:
            refuse_squatted(self.socket_dir, self._account)
        except EmbeddedSetupError:
            return False
        return True

    def ensure_running(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Start the server, or start it again after a crash; with it a keeper, and the database."""
        deadline = time.monotonic() + timeout_s
        start = self._wait_lock("start", fcntl.LOCK_EX, deadline)
        try:
            self._ensure_running(start, deadline)
        except OSError as error:
            raise cannot(f"work in {self.data_dir}", error) from error
        finally:
            os.close(start)

    def _ensure_running(self, start: int, deadline: float) -> None:
        for attempt in itertools.count():
            refuse_squatted(self.socket_dir, self._account)
            logged = self._log_size()
            kept = self.pid is not None and self._has_keeper() and data.is_made(self._place)
            up = kept or self._start(start, deadline)
            if up and self._becomes_ready(deadline):
                return
            # One that ran before was just ending: the next round starts a fresh one.
            if time.monotonic() > deadline or not (kept or self._failure_passes(logged, attempt)):
                raise self._start_error(logged)
            time.sleep(0.1)

    def _wait_lock(self, name: str, operation: int, deadline: float) -> int:
        try:
            return keeper.wait_lock(self._place, name, operation, deadline)
        except TimeoutError as error:
            raise _others_are_at_it(self._place) from error
        except OSError as error:
            advice = "QWF_DATA_DIR must name a directory on a local filesystem that you own"
            raise cannot(f"lock {self._place.lock(name)}", error, advice) from error

    def _has_keeper(self) -> bool:
        free = keeper.try_lock(self._place, "keeper", fcntl.LOCK_EX)
        if free is not None:
            os.close(free)
        return free is None

    def _start(self, start: int, deadline: float) -> bool:
        """Start the server and its keeper; False when the server ended before it listened."""
        self._end_forlorn(deadline)
        if not self._creates and not data.is_made(self._place):
            raise absent(self.data_dir)
        binaries = find_binaries(self._bindir, self._account, self._fallback)
        sync = self._settings.get("fsync") != "off"
        data.initialise(self._place, self._account, binaries, start, sync=sync)
        data.refuse_other_major(self._place, binaries)
        data.forget_stale_pids(self._place)
        self._rotate_log()
        make_private(self.socket_dir, self._account)
        return self._run_keeper(self._command(binaries), start)

    def _end_forlorn(self, deadline: float) -> None:
        """End a server on our data that lost its keeper, which ends it anyway on Linux, or its socket."""
        found = data.server_in(self._place)
        pid = found.pid if found else self.pid
        if not pid:
            return
        _log.info("restarting the embedded Postgres in %s, which nobody could use or end", self.data_dir)
        keeper.end(pid, lambda: data.server_in(self._place) is None and self.pid != pid)
        with suppress(TimeoutError):
            os.close(keeper.wait_lock(self._place, "keeper", fcntl.LOCK_EX, deadline))

    def _run_keeper(self, command: list[str], start: int) -> bool:
        """Run the keeper's file; it inherits the start lock, so our death leaves nothing half-started."""
        order = {
            "place": {"home": self._place.home, "socket_dir": self._place.socket_dir},
            "command": command,
            "account": [self._account.uid, self._account.gid] if self._account else None,
            "environment": environment(),
            "start_fd": start,
            "linger_s": self._linger_s,
        }
        python = sys.executable or shutil.which("python3")
        if not python:
            raise EmbeddedServerError("no Python interpreter was found to run the embedded Postgres's keeper")
        # Interrupted, we leave it alone: the keeper finds that nobody is there, and stops the server.
        starter = subprocess.Popen(
            [python, "-I", "-S", keeper.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd="/",
            pass_fds=(start,),
            start_new_session=True,
        )
        output, _ = starter.communicate(json.dumps(order))
        if output:
            said = output.strip().splitlines()[-1]
            raise EmbeddedServerError(f"the embedded Postgres's keeper failed: {said}")
        return starter.returncode == 0

    def _command(self, binaries: Binaries) -> list[str]:
        quoted_dir = '"' + self._place.socket_dir.replace('"', '""') + '"'
        settings = {
            "listen_addresses": "",
            "port": str(keeper.PORT),
            "unix_socket_directories": quoted_dir,
            "unix_socket_permissions": "0700",
            **self._settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [str(binaries.bindir / "postgres"), "-D", self._place.data, *options]

    def _rotate_log(self) -> None:
        if self._log_size() > _LOG_LIMIT:
            os.replace(self._place.log, self._place.log + ".1")

    def _log_size(self) -> int:
        try:
            return os.stat(self._place.log).st_size
        except FileNotFoundError:
            return 0

    def _log_since(self, offset: int) -> str:
        try:
            with open(self._place.log, "rb") as log:
                log.seek(offset if offset <= self._log_size() else 0)
                return log.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def _failure_passes(self, logged: int, attempt: int) -> bool:
        said = self._log_since(logged)
        return attempt < 50 and any(words in said for words in _PASSING_FAILURES)

    def _start_error(self, logged: int) -> EmbeddedServerError:
        lines = self._log_since(logged).strip().splitlines()[-6:]
        return EmbeddedServerError(
            f"the embedded Postgres in {self.data_dir} did not start: {' | '.join(lines) or 'no log'}",
            advice=data.room_left(self._place) or f"the whole log is {self._place.log}",
        )

    def _see_to_database(self, connection: psycopg.Connection[TupleRow]) -> None:
        self.version = (connection.info.parameter_status("server_version") or "").split()[0]
        if not connection.execute("SELECT FROM pg_database WHERE datname = %s", (DATABASE,)).rowcount:
            connection.execute(f"CREATE DATABASE {DATABASE}")

    def _becomes_ready(self, deadline: float) -> bool:
        """Wait through crash recovery, then see to the database; False when the server dies on the way."""
        while True:
            try:
                with psycopg.connect(self.dsn("postgres"), autocommit=True, connect_timeout=10) as connection:
                    self._see_to_database(connection)
                return True
            except psycopg.Error as error:
                if self.pid is None:
                    return False
                meddling = sorted(name for name in os.environ if name.startswith("PG"))
                if meddling and not any(word in str(error) for word in _PASSING):
                    raise EmbeddedSetupError(
                        f"the embedded Postgres cannot be reached: {' '.join(str(error).split())}",
                        advice=f"unset {', '.join(meddling)}: the Postgres client reads it",
                    ) from error
                if time.monotonic() > deadline:
                    raise EmbeddedServerError(
                        f"the embedded Postgres in {self.data_dir} takes no connections: {error}",
                        advice=f"wait and try again, or see {self._place.log}",
                    ) from error
                time.sleep(_TICK_S)


def _others_are_at_it(place: keeper.Place) -> EmbeddedServerError:
    return EmbeddedServerError(
        f"another process is still starting or stopping the embedded Postgres in {place.home}",
        advice=f"wait for it, or see {place.log}",
    )
