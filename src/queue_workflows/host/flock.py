"""A lock on a file that only one process tree of this machine can hold, and that ends with its last holder.

The lock is the kernel's: it belongs to the open file, so a child that inherits the descriptor holds it too,
and nobody has to break it. Files stay where they are: whoever removed one would let two in.
"""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from queue_workflows.errors import ConfigurationError

_log = logging.getLogger(__name__)

SHARED: Final = Path("/run/lock/qwf")


def lock_directory(chosen: Path | None, environ: Mapping[str, str] = os.environ) -> Path:
    """Where locks live: where the setting says, else where all of this machine meet, else the user's own.

    Who finds the meeting place and cannot write there must not lock elsewhere: nobody would see it.
    """
    if chosen is None and (shared := _shared()) is not None:
        return shared
    runtime = environ.get("XDG_RUNTIME_DIR")
    own = Path(runtime) / "qwf" if runtime else Path(tempfile.gettempdir()) / f"qwf-{os.getuid()}"
    found = chosen or own
    try:
        found.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise ConfigurationError(
            f"locks cannot live in {found}: {exc.strerror or exc}",
            advice="name a directory with QWF_LOCK_DIR",
        ) from exc
    if chosen is None:
        _log.warning("locks live in %s, as %s cannot be made: other users do not see them there", own, SHARED)
    return found


def _shared() -> Path | None:
    try:
        SHARED.mkdir(exist_ok=True)
    except OSError:
        return None
    if not os.access(SHARED, os.W_OK | os.X_OK):
        raise ConfigurationError(
            f"the locks of this machine live in {SHARED}, where this user cannot write",
            advice="run all that share its devices as one user, or name one directory in QWF_LOCK_DIR",
        )
    return SHARED


def try_lock(path: Path) -> int | None:
    """The descriptor that holds the lock, close-on-exec; None where another process does."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(fd, path):
                return fd
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def _is_at(fd: int, path: Path) -> bool:
    """Whether the file still is the one at that path: it may have been replaced while we took its lock."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), there)
