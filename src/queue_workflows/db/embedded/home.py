"""Where the embedded Postgres lives and as which account it runs.

Postgres refuses to run as root, and an unprivileged account cannot reach a root-only checkout. So as root the
server runs as an account that already exists, and where that account cannot follow, the data goes below
/var/lib/queue_workflows. No existing permission is ever loosened and no account is made.
"""

from __future__ import annotations

import errno
import hashlib
import os
import pwd
import re
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from queue_workflows.db.embedded.keeper import PORT, Place
from queue_workflows.errors import ConfigurationError, EmbeddedServerError, EmbeddedSetupError
from queue_workflows.path_ownership import DATA, check_directory, open_directory

FALLBACK = Path("/var/lib/queue_workflows")
POINTER = "WHERE"
_SHORT_SOCKET_PARENT = Path("/tmp")  # noqa: S108 - a fixed name, because processes may disagree about TMPDIR
_SOCKET_PATH_LIMIT = 107 if sys.platform == "linux" else 103
_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./-]+")
_UNREADABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_DEFAULT_ACCOUNTS = ("postgres", "nobody")
_ELSEWHERE = "name another directory with QWF_DATA_DIR, or use a server of your own with QWF_DB_URL"
# What time or a bigger disk mends, as against what only another configuration does.
_PASSING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM})


@dataclass(frozen=True)
class Account:
    """The account that the server runs as when that is not our own."""

    name: str
    uid: int
    gid: int

    def switch(self) -> dict[str, Any]:
        """The arguments of `subprocess` that run a child as this account and nothing more."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


def environment() -> dict[str, str]:
    """What server processes see: no secrets of ours, and none of the PG* variables that redirect Postgres."""
    passed = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
    return {**{name: os.environ[name] for name in passed if name in os.environ}, "LC_ALL": "C"}


def run_as(account: Account | None, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run one of Postgres's programs to its end, in the server's environment and as its account."""
    switch = account.switch() if account else {}
    return subprocess.run(
        command,
        **switch,
        **options,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd="/",
        umask=0o077,
        env=environment(),
        check=False,
    )


def cannot(do: str, error: OSError, advice: str = _ELSEWHERE) -> EmbeddedServerError:
    """What a refusal of the operating system means."""
    kind = EmbeddedServerError if error.errno in _PASSING else EmbeddedSetupError
    return kind(f"cannot {do} for the embedded Postgres: {error.strerror or error}", advice=advice)


def absent(place: Path) -> EmbeddedSetupError:
    """The error for a caller that would only look at an embedded database, where there is none yet."""
    return EmbeddedSetupError(
        f"no database is named, and there is no embedded one in {place} yet",
        advice="`qwf db upgrade` makes it; QWF_DB_URL names a database of your own",
    )


def settle(
    data_dir: Path, run_as_name: str | None, fallback: Path, *, creates: bool = True
) -> tuple[Place, Account | None]:
    """Choose home, socket directory and account for the server of `data_dir`, and make them if `creates`."""
    _refuse_unreadable_name(data_dir)
    try:
        return _settled(data_dir, run_as_name, fallback, creates)
    except OSError as error:
        raise cannot(f"use the directory {data_dir}", error) from error


def _refuse_unreadable_name(data_dir: Path) -> None:
    """Bytes that are no text cannot be logged, printed or put into a URL."""
    full = os.path.realpath(data_dir)
    if _UNREADABLE.search(full):
        raise EmbeddedSetupError(
            f"the directory {full!a} for the embedded Postgres has a name that is no readable text",
            advice=_ELSEWHERE,
        )


def _settled(
    data_dir: Path, run_as_name: str | None, fallback: Path, creates: bool
) -> tuple[Place, Account | None]:
    data_dir = _prepared(data_dir, creates)
    home = _existing_home(data_dir, fallback)
    if home is None and not creates:
        raise absent(_in_place(data_dir))
    if home is None:
        account = _account(run_as_name, None)
        home = _in_place(data_dir)
        if account is not None and not _reaches(account, data_dir):
            home = _relocated(data_dir, fallback, account)
    else:
        account = _account(run_as_name, home)
        if account is not None and not _reaches(account, home):
            raise EmbeddedSetupError(
                f"the account {account.name} can no longer reach the embedded Postgres's data in {home}",
                advice="restore the execute permission for others on the directories above it",
            )
    _make_home(home)
    return Place(home=str(home), socket_dir=str(_socket_dir(home, account))), account


def _in_place(data_dir: Path) -> Path:
    return data_dir / "postgres"


def _fallback_home(data_dir: Path, fallback: Path) -> Path:
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", data_dir.parent.name).strip("-")[:40] or "root"
    return fallback / f"{name}-{hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:12]}"


def _prepared(data_dir: Path, creates: bool) -> Path:
    """The resolved directory; one that we make is open to pass through, and ignored by git."""
    _refuse_where_others_lead(data_dir)
    named, data_dir = data_dir, Path(os.path.realpath(data_dir))
    try:
        if not data_dir.exists():
            if not creates:
                raise absent(_in_place(data_dir))
            os.close(open_directory(named, DATA, make=True))
            if os.geteuid() == 0:
                data_dir.chmod(0o755)
            (data_dir / ".gitignore").write_text("*\n")
    except OSError as error:
        raise cannot(f"make the directory {data_dir}", error) from error
    if not data_dir.is_dir():
        raise EmbeddedSetupError(
            f"{data_dir} is no directory, so the embedded Postgres cannot live in it", advice=_ELSEWHERE
        )
    return data_dir


def _refuse_where_others_lead(data_dir: Path) -> None:
    """What else is wrong with the path is told by what is done with it next."""
    try:
        check_directory(data_dir, DATA)
    except ConfigurationError as refused:
        raise EmbeddedSetupError(refused.message, advice=refused.advice) from None
    except OSError:
        pass


def _existing_home(data_dir: Path, fallback: Path) -> Path | None:
    """The home that an earlier call made for this directory, refused where it is not ours to use."""
    home = _in_place(data_dir)
    pointer = data_dir / POINTER
    elsewhere = _fallback_home(data_dir, fallback)
    said = _said_by(pointer)
    if said:
        if os.geteuid() != 0:
            raise EmbeddedSetupError(
                f"root made the embedded Postgres of {data_dir} and keeps its data in {said}",
                advice="run as root, or name a directory of your own with QWF_DATA_DIR",
            )
        if not Path(said).exists():
            pointer.unlink()  # the data there was deleted to start afresh
        elif said != str(elsewhere):
            raise EmbeddedSetupError(
                f"{data_dir} was moved or copied; the data of its embedded Postgres is in {said}",
                advice=f"move that to {elsewhere} to go on with it, or delete {pointer} to start afresh",
            )
        else:
            return elsewhere
    if home.is_symlink():
        raise EmbeddedSetupError(
            f"{home} is a link; the embedded Postgres follows none",
            advice="name its target with QWF_DATA_DIR",
        )
    if not home.exists():
        return elsewhere if os.geteuid() == 0 and elsewhere.exists() else None
    owner = home.stat().st_uid
    if os.geteuid() not in (0, owner):
        raise EmbeddedSetupError(
            f"the embedded Postgres in {home} belongs to {user_name(owner)}, and this process runs as"
            f" {user_name(os.geteuid())}",
            advice="run as its owner, or name a directory of your own with QWF_DATA_DIR",
        )
    return home


def _said_by(pointer: Path) -> str:
    """The first line of the pointer; empty where there is none, or one that a full disk left empty."""
    try:
        return next(iter(pointer.read_text(errors="replace").splitlines()), "").replace("\0", "")
    except FileNotFoundError:
        return ""


def user_name(uid: int) -> str:
    """The name of a user, or else its number in words."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _account(name: str | None, home: Path | None) -> Account | None:
    """As root: the account that owns the data already, else the wanted one, else one that exists."""
    if os.geteuid() != 0:
        if name is not None and name != user_name(os.geteuid()):
            raise EmbeddedSetupError(f"only root can run the embedded Postgres as {name}")
        return None
    owner = _data_owner(home) if home is not None else 0
    if owner:
        name, wanted = user_name(owner), name
        if wanted is not None and wanted != name:
            raise EmbeddedSetupError(
                f"the embedded Postgres's data in {home} belongs to {name}, so it cannot run as {wanted}",
                advice=f"run it as {name}, or move the data away",
            )
        return Account(name, owner, _group(owner))
    for candidate in (name,) if name else _DEFAULT_ACCOUNTS:
        try:
            entry = pwd.getpwnam(candidate)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(candidate, entry.pw_uid, entry.pw_gid)
    raise EmbeddedSetupError(
        f"Postgres refuses to run as root, and there is no account {name or ' or '.join(_DEFAULT_ACCOUNTS)}"
        " to run it as",
        advice="make one, run as an ordinary user, or use a server of your own with QWF_DB_URL",
    )


def _data_owner(home: Path) -> int:
    data = home / "data"
    return (data if data.exists() else home).stat().st_uid


def _group(uid: int) -> int:
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return uid


def _reaches(account: Account, directory: Path) -> bool:
    """Ask the kernel, as the account: modes, ACLs and mount options all have a say."""
    try:
        return run_as(account, ["/bin/sh", "-c", 'test -x "$1"', "sh", str(directory)]).returncode == 0
    except (PermissionError, subprocess.SubprocessError) as error:
        raise EmbeddedSetupError(
            f"this process may not run programs as {account.name}, and Postgres refuses to run as root",
            advice="run as an ordinary user, or use a server of your own with QWF_DB_URL",
        ) from error


def _relocated(data_dir: Path, fallback: Path, account: Account) -> Path:
    """A home below /var/lib, and a note in the data directory that says so."""
    home = _fallback_home(data_dir, fallback)
    make_fallback(fallback, account)
    draft = data_dir / f".{POINTER}-{os.getpid()}"
    draft.write_text(
        f"{home}\n\n"
        f"The embedded Postgres of {data_dir} keeps its data there: it was first started by root, runs as"
        f" the account {account.name}, and that account cannot reach this directory.\n"
    )
    draft.replace(data_dir / POINTER)
    return home


def make_fallback(fallback: Path, account: Account) -> None:
    try:
        if not fallback.exists():
            fallback.mkdir(parents=True, exist_ok=True)
            fallback.chmod(0o755)
        entry = fallback.lstat()
    except OSError as error:
        advice = "make it, run as an ordinary user, or use a server of your own with QWF_DB_URL"
        raise cannot(f"make {fallback}", error, advice) from error
    if not stat.S_ISDIR(entry.st_mode) or entry.st_uid != 0 or not _reaches(account, fallback):
        raise EmbeddedSetupError(
            f"{fallback} must be a directory of root's that {account.name} can pass through",
            advice="remove it, or use a server of your own with QWF_DB_URL",
        )


def _make_home(home: Path) -> None:
    try:
        home.mkdir(exist_ok=True, mode=0o711 if os.geteuid() == 0 else 0o700)
        if home.stat().st_uid == 0 == os.geteuid():
            home.chmod(0o711)  # ours alone, and mkdir's mode was subject to the umask
    except OSError as error:
        raise cannot(f"make {home}", error) from error


def _socket_dir(home: Path, account: Account | None) -> Path:
    """Inside the home, unless the path is too long for a socket or could trip a connection string."""
    inside = home / "socket"
    full = str(inside / f".s.PGSQL.{PORT}")
    if len(full) <= _SOCKET_PATH_LIMIT and _PLAIN_PATH.fullmatch(full):
        return inside
    uid = account.uid if account else os.geteuid()
    return _SHORT_SOCKET_PARENT / f"qwf-{uid}-{hashlib.sha256(os.fsencode(home)).hexdigest()[:16]}"


def make_private(directory: Path, account: Account | None) -> None:
    """A 0700 directory of the server's account; one that somebody else made is refused, whatever it holds."""
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        entry = directory.lstat()
        if account is not None and stat.S_ISDIR(entry.st_mode) and entry.st_uid == 0:
            os.chown(directory, account.uid, account.gid, follow_symlinks=False)
    except FileExistsError:
        pass  # a file or a link that leads nowhere: refused below
    except OSError as error:
        raise cannot(f"make {directory}", error) from error
    refuse_squatted(directory, account)


def refuse_squatted(directory: Path, account: Account | None) -> None:
    """No other account that made a predictable name first may serve our clients; nothing there is fine."""
    uid = account.uid if account else os.geteuid()
    try:
        entry = directory.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    if stat.S_ISDIR(entry.st_mode) and account is not None and entry.st_uid == 0:
        return  # ours, made a moment ago for the account
    if not stat.S_ISDIR(entry.st_mode) or entry.st_uid != uid or stat.S_IMODE(entry.st_mode) & 0o077:
        raise EmbeddedSetupError(
            f"{directory} was made by somebody else, or is open to others",
            advice="look which account made it and remove it",
        )
