"""The data directory of the embedded server: made whole or not at all, and which process holds it."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path
from typing import Final

import psutil

from queue_workflows.db.embedded.binaries import Binaries
from queue_workflows.db.embedded.home import Account, make_private, run_as, user_name
from queue_workflows.db.embedded.keeper import Place
from queue_workflows.errors import EmbeddedServerError, EmbeddedSetupError

# What a fresh cluster gets beside Postgres's defaults; postgresql.conf is the developer's to edit afterwards.
CONFIGURATION: Final = """
# Written once by queue_workflows; yours to change.
max_connections = 200
timezone = 'UTC'
log_timezone = 'UTC'
log_line_prefix = '%m [%p] %q%a '
"""


def is_made(place: Place) -> bool:
    """Whether there is a database cluster; one that we may not look into is neither there nor missing."""
    try:
        os.stat(os.path.join(place.data, "PG_VERSION"))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError as error:
        raise EmbeddedSetupError(
            f"{place.data} is not readable for {user_name(os.geteuid())}",
            advice=f"leave it where it is, and run as {_owner(place)}, or restore its permissions"
            " (Postgres makes it 0700)",
        ) from error
    return True


def initialise(place: Place, account: Account | None, binaries: Binaries, start: int, *, sync: bool) -> None:
    """Make the cluster beside its place and move it there whole, so that a kill never leaves half of one.

    The start lock goes along: if we are killed, nobody sweeps away what an orphaned initdb still writes.
    """
    data, scratch = Path(place.data), Path(place.home) / "init"
    if is_made(place):
        return
    if data.exists():
        raise EmbeddedSetupError(f"{data} is not a Postgres data directory", advice="move it away")
    _refuse_nameless_account(account)
    shutil.rmtree(scratch, ignore_errors=True)
    make_private(scratch, account)
    locale = ["--locale=C"]
    if binaries.major >= 17:
        locale += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    ran = run_as(
        account,
        [
            *(str(binaries.bindir / "initdb"), "-D", str(scratch), "--username=postgres", "--encoding=UTF8"),
            *locale,
            *("--auth-local=trust", "--auth-host=reject", "--no-instructions"),
            *([] if sync else ["--no-sync"]),
        ],
        pass_fds=(start,),
    )
    if ran.returncode != 0:
        shutil.rmtree(scratch, ignore_errors=True)
        said = " | ".join(ran.stdout.strip().splitlines()[-5:])
        raise EmbeddedServerError(
            f"could not initialise a Postgres in {place.home}: {said}", advice=room_left(place)
        )
    configuration = os.open(scratch / "postgresql.conf", os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
    with os.fdopen(configuration, "w") as file:
        file.write(CONFIGURATION)
    scratch.rename(data)


def room_left(place: Place) -> str | None:
    """What to do where the disk is full, which Postgres's own words do not always tell."""
    free_mb = shutil.disk_usage(place.home).free // 2**20
    if free_mb >= 100:
        return None
    return f"the disk has {free_mb} MB left: make room, or name another directory with QWF_DATA_DIR"


def refuse_other_major(place: Place, binaries: Binaries) -> None:
    """Data is for the major version that made it."""
    made_by = (Path(place.data) / "PG_VERSION").read_text().strip()
    if made_by != str(binaries.major):
        raise EmbeddedSetupError(
            f"the data in {place.home} was made by PostgreSQL {made_by}, the binaries in"
            f" {binaries.bindir} are {binaries.version}",
            advice=f"let QWF_PG_BINDIR name binaries of PostgreSQL {made_by},"
            f" or move {place.home} away to start afresh",
        )


def server_in(place: Place) -> psutil.Process | None:
    """The living Postgres that the pid file names and that works in our data directory."""
    try:
        process = psutil.Process(_pid_in(os.path.join(place.data, "postmaster.pid")))
        return process if _is_server(place, process) else None
    except (OSError, ValueError, psutil.Error):
        return None


def forget_stale_pids(place: Place) -> None:
    """Remove lock files with a pid that is a zombie or another process by now: Postgres would not dare."""
    for path in (os.path.join(place.data, "postmaster.pid"), place.socket + ".lock"):
        try:
            if _is_server(place, psutil.Process(_pid_in(path))):
                continue
        except (OSError, ValueError, psutil.Error):
            continue  # no such process: Postgres sees that itself
        Path(path).unlink(missing_ok=True)


def _owner(place: Place) -> str:
    try:
        return f"its owner {user_name(os.stat(place.data).st_uid)}"
    except OSError:
        return "its owner"


def _is_server(place: Place, process: psutil.Process) -> bool:
    alive = process.status() != psutil.STATUS_ZOMBIE
    return alive and process.cwd() == os.path.realpath(place.data)


def _pid_in(path: str) -> int:
    return int(Path(path).read_text().split("\n", 1)[0])


def _refuse_nameless_account(account: Account | None) -> None:
    uid = account.uid if account else os.geteuid()
    try:
        pwd.getpwuid(uid)
    except KeyError as error:
        raise EmbeddedSetupError(
            f"uid {uid} has no account on this machine (no line in /etc/passwd), and initdb refuses that",
            advice="give it one, run as a user that has, or use a server of your own with QWF_DB_URL",
        ) from error
