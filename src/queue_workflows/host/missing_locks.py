"""What a janitor makes of locks that are not there: they may have gone alone, or with their holders.

The kernel keeps the lock of a file that somebody removed, alone or with its directory: the holder lives, and
nobody meets it at the path. So whoever concludes from a missing file that there is no owner looks first
whether a process has the removed one open.

    the directory is missing, and this janitor starts        what is done
    ──────────────────────────────────────────────────────   ───────────────────────────────────────────────
    it was there under another boot id                       made: a reboot emptied it, and ended all holders
    it is the default one, and no janitor has seen it yet    made: nothing has had a lock on this machine
    any other                                                waited for: it was removed, or is not mounted
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from queue_workflows.host.flock import expected_directory, lock_directory
from queue_workflows.host.locks import SUFFIX

_log = logging.getLogger(__name__)

_SEEN: Final = "lock-directories.json"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_PROC: Final = Path("/proc")
_DELETED: Final = " (deleted)"


def holders_of_removed(directory: Path) -> dict[str, int]:
    """The names of lock files that were removed while a process had them open, with that process.

    Of the processes that this one may look into: those of its user, in its PID namespace.
    """
    above, end = f"{os.path.realpath(directory)}/", SUFFIX + _DELETED
    return {
        link.removeprefix(above).removesuffix(_DELETED): pid
        for pid, link in _open_files()
        if link.endswith(end) and link.startswith(above)
    }


def _open_files() -> Iterator[tuple[int, str]]:
    with suppress(FileNotFoundError):  # no /proc
        for pid in filter(str.isdigit, os.listdir(_PROC)):
            with suppress(OSError):  # ended, or another user's
                for fd in os.listdir(_PROC / pid / "fd"):
                    with suppress(OSError):
                        yield int(pid), os.readlink(f"{_PROC}/{pid}/fd/{fd}")


def open_directory(chosen: Path | None, data_dir: Path, *, boot_id: Path = _BOOT_ID) -> Path:
    """Where the locks are, at a janitor's start; made where all holders are known to be gone.

    ConfigurationError where something else is in the way; one that cannot be written to is left to each look.
    """
    directory = expected_directory(chosen)
    seen, boot = _seen(data_dir), _boot(boot_id)
    before = seen.get(str(directory))
    is_new = before is None and chosen is None
    if not (os.path.lexists(directory) or is_new or (before and boot and before != boot)):
        _log.warning(
            "%s, the directory of the locks, is not there: nothing is ended until it is; make it if "
            "nothing that lives can hold a lock of it",
            directory,
        )
        return directory
    if not directory.is_dir():
        directory = lock_directory(chosen)
    if boot and before != boot:
        _remember(data_dir, seen | {str(directory): boot})
    return directory


def _boot(boot_id: Path) -> str:
    try:
        return boot_id.read_text().strip()
    except OSError:
        return ""


def _seen(data_dir: Path) -> dict[str, str]:
    """By directory, the boot under which a janitor saw it last."""
    with suppress(OSError, ValueError):
        match json.loads((data_dir / _SEEN).read_text()):
            case dict(found):
                return {str(key): str(value) for key, value in found.items()}
    return {}


def _remember(data_dir: Path, seen: dict[str, str]) -> None:
    """As well as can be: without it, a missing directory is waited for."""
    new = data_dir / f"{_SEEN}.{os.getpid()}"
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        new.write_text(json.dumps(seen))
        new.replace(data_dir / _SEEN)
    except OSError as exc:
        _log.info("%s cannot be written: %s", new, exc.strerror or exc)
