"""The embedded Postgres: a server on a private socket, started on demand and stopped with its last user.

It is for development, demos and tests, where nobody named a database. `keeper` explains how
processes share one; `home` decides where it lives and as which account; `binaries` finds
Postgres itself.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import psutil
import psycopg
from psycopg.rows import TupleRow

from queue_workflows.db.embedded import keeper
from queue_workflows.db.embedded.binaries import Binaries, find_binaries
from queue_workflows.db.embedded.home import FALLBACK, Account, environment, make_private, run_as, settle
from queue_workflows.errors import EmbeddedServerError

DATABASE = "qwf"
_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 90.0
_FAILED_STOP_TIMEOUT_S = 5.0  # bad news should not wait for somebody else's slow start
_LOG_LIMIT = 16 * 1024 * 1024
# What a server says, or the kernel for it, that will take connections in a moment.
_PASSING = ("starting up", "not yet accepting", "recovery", "shutting down", "refused", "reset")
_TICK_S = 0.02

# What a fresh cluster gets beside Postgres's defaults; postgresql.conf is the developer's to edit afterwards.
_CONFIGURATION = """
# Written once by queue_workflows; yours to change.
max_connections = 200
timezone = 'UTC'
log_timezone = 'UTC'
log_line_prefix = '%m [%p] %q%a '
"""

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
    ) -> None:
        self._place = place
        self._account = account
        self._bindir = bindir
        self._settings = dict(server_settings or {})
        self._fallback = fallback
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
        timeout_s: float = _START_TIMEOUT_S,
    ) -> Self:
        """Use the server of `data_dir`, making and starting it as needed.

        `run_as` names the account for when we are root. `server_settings` are parameters for a server that
        this call starts; one that runs already is taken as it is. `fallback` is where data goes that the
        account could not reach in `data_dir`.
        """
        place, account = settle(Path(data_dir), run_as, fallback)
        server = cls(place, account, bindir=bindir, server_settings=server_settings, fallback=fallback)
        deadline = time.monotonic() + timeout_s
        server._users = server._wait_lock("users", fcntl.LOCK_SH, deadline)
        try:
            server.ensure_running(timeout_s=timeout_s)
        except BaseException:
            server.release(timeout_s=min(timeout_s, _FAILED_STOP_TIMEOUT_S))
            raise
        return server

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
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

    def dsn(self, dbname: str = DATABASE) -> str:
        """A libpq URI. It names the port, so that no PGPORT of the environment can lead it astray."""
        where = f"host={self._place.socket_dir}&port={keeper.PORT}"
        return f"postgresql://postgres@/{quote(dbname, safe='')}?{where}"

    def release(self, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        """Give the server up; the last to do so waits until it has stopped. A second call does nothing."""
        if self._users is None:
            return
        # Closed, not unlocked: a forked child that still uses the server shares this lock and keeps it.
        os.close(self._users)
        self._users = None
        try:
            keeper.leave(self._place, time.monotonic() + timeout_s)
        except (FileNotFoundError, TimeoutError):
            return  # the home was deleted, or others are leaving too and see to it

    def ensure_running(self, timeout_s: float = _START_TIMEOUT_S) -> None:
        """Start the server, or start it again after a crash; with it a keeper, and the database."""
        deadline = time.monotonic() + timeout_s
        start = self._wait_lock("start", fcntl.LOCK_EX, deadline)
        try:
            for attempt in range(sys.maxsize):
                logged = self._log_size()
                if self._start(start) and self._becomes_ready(deadline):
                    return
                if not self._failure_passes(logged, attempt, deadline):
                    raise self._start_error(logged)
                time.sleep(0.1)
        finally:
            os.close(start)

    def _wait_lock(self, name: str, operation: int, deadline: float) -> int:
        try:
            return keeper.wait_lock(self._place, name, operation, deadline)
        except TimeoutError as error:
            raise EmbeddedServerError(
                f"another process is still starting or stopping the embedded Postgres in {self.data_dir}",
                advice=f"wait for it, or see {self._place.log}",
            ) from error
        except OSError as error:
            raise EmbeddedServerError(
                f"cannot lock {self._place.lock(name)}: {error.strerror}",
                advice="QWF_DATA_DIR must name a directory on a local filesystem that you own",
            ) from error

    def _start(self, start: int) -> bool:
        """See to a server and a keeper; False when the server ended before it listened."""
        command: list[str] = []
        if self.pid is None:
            binaries = find_binaries(self._bindir, self._account, self._fallback)
            self._initialise(binaries, start)
            self._refuse_other_major(binaries)
            self._forget_stale_pids()
            self._rotate_log()
            make_private(self.socket_dir, self._account)
            command = self._command(binaries)
        else:
            watched = keeper.try_lock(self._place, "keeper", fcntl.LOCK_EX)
            if watched is None:
                return True
            os.close(watched)
        order = {
            "place": {"home": self._place.home, "socket_dir": self._place.socket_dir},
            "command": command,
            "account": [self._account.uid, self._account.gid] if self._account else None,
            "environment": environment(),
            "start_fd": start,
        }
        return self._run_keeper(order, start)

    def _run_keeper(self, order: dict[str, Any], start: int) -> bool:
        """Run the keeper's file; it inherits the start lock, so our death leaves nothing half-started."""
        python = sys.executable or shutil.which("python3")
        if not python:
            raise EmbeddedServerError("no Python interpreter was found to run the embedded Postgres's keeper")
        # Interrupted, we leave the starter alone: it becomes the keeper, finds nobody, and stops the server.
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

    def _initialise(self, binaries: Binaries, start: int) -> None:
        """Make the cluster beside its place and move it there whole, so that a kill never leaves half of one.

        The start lock goes along: if we are killed, nobody sweeps away what an orphaned initdb still writes.
        """
        data, scratch = Path(self._place.data), self.data_dir / "init"
        if (data / "PG_VERSION").exists():
            return
        if data.exists():
            raise EmbeddedServerError(f"{data} is not a Postgres data directory", advice="move it away")
        shutil.rmtree(scratch, ignore_errors=True)
        make_private(scratch, self._account)
        locale = ["--locale=C"]
        if binaries.major >= 17:
            locale += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        ran = run_as(
            self._account,
            [
                *(
                    str(binaries.bindir / "initdb"),
                    "-D",
                    str(scratch),
                    "--username=postgres",
                    "--encoding=UTF8",
                ),
                *locale,
                *("--auth-local=trust", "--auth-host=reject", "--no-instructions"),
                *(["--no-sync"] if self._settings.get("fsync") == "off" else []),
            ],
            pass_fds=(start,),
        )
        if ran.returncode != 0:
            said = " | ".join(ran.stdout.strip().splitlines()[-5:])
            raise EmbeddedServerError(f"could not initialise a Postgres in {self.data_dir}: {said}")
        configuration = os.open(scratch / "postgresql.conf", os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
        with os.fdopen(configuration, "w") as file:
            file.write(_CONFIGURATION)
        scratch.rename(data)

    def _refuse_other_major(self, binaries: Binaries) -> None:
        made_by = (Path(self._place.data) / "PG_VERSION").read_text().strip()
        if made_by != str(binaries.major):
            raise EmbeddedServerError(
                f"the data in {self.data_dir} was made by PostgreSQL {made_by}, the binaries in"
                f" {binaries.bindir} are {binaries.version}",
                advice=f"let QWF_PG_BINDIR name binaries of PostgreSQL {made_by},"
                f" or move {self.data_dir} away to start afresh",
            )

    def _forget_stale_pids(self) -> None:
        """Remove lock files whose pid is a zombie or another process by now: Postgres would not dare."""
        for path in (os.path.join(self._place.data, "postmaster.pid"), self._place.socket + ".lock"):
            try:
                pid = int(Path(path).read_text().split("\n", 1)[0])
                process = psutil.Process(pid)
                alive = process.status() != psutil.STATUS_ZOMBIE
                if alive and process.cwd() == os.path.realpath(self._place.data):
                    continue
            except (OSError, ValueError, psutil.Error):
                continue  # no such process: Postgres sees that itself
            Path(path).unlink(missing_ok=True)

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

    def _failure_passes(self, logged: int, attempt: int, deadline: float) -> bool:
        said = self._log_since(logged)
        passing = any(words in said for words in _PASSING_FAILURES)
        return passing and attempt < 50 and time.monotonic() < deadline

    def _start_error(self, logged: int) -> EmbeddedServerError:
        lines = self._log_since(logged).strip().splitlines()[-6:]
        return EmbeddedServerError(
            f"the embedded Postgres in {self.data_dir} did not start: {' | '.join(lines) or 'no log'}",
            advice=f"the whole log is {self._place.log}",
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
            except psycopg.OperationalError as error:
                if self.pid is None:
                    return False
                meddling = sorted(name for name in os.environ if name.startswith("PG"))
                if meddling and not any(word in str(error) for word in _PASSING):
                    raise EmbeddedServerError(
                        f"the embedded Postgres cannot be reached: {' '.join(str(error).split())}",
                        advice=f"unset {', '.join(meddling)}: the Postgres client reads it",
                    ) from error
                if time.monotonic() > deadline:
                    raise EmbeddedServerError(
                        f"the embedded Postgres in {self.data_dir} takes no connections: {error}",
                        advice=f"wait and try again, or see {self._place.log}",
                    ) from error
                time.sleep(_TICK_S)
