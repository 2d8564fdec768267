"""What a janitor makes of a directory of locks that is not there: it went alone, or with its holders.

Which process has the lock of a file that is not there is asked in `owner_note`.

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
from contextlib import suppress
from pathlib import Path
from typing import Final

from queue_workflows.errors import QwfError
from queue_workflows.host.directories.data import opened
from queue_workflows.host.locks.flock import expected_directory, lock_directory, usable

_log = logging.getLogger(__name__)

_SEEN: Final = "lock-directories.json"
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def open_directory(chosen: Path | None, data_dir: Path, *, boot_id: Path = _BOOT_ID) -> Path:
    """Where the locks are, at a janitor's start; made where all holders are known to be gone.

    ConfigurationError where something else is in the way, or others can change what is there; one that cannot
    be written to is left to each look.
    """
    directory = usable(expected_directory(chosen))
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
    """The boot under which a janitor last saw each directory."""
    with suppress(OSError, ValueError, QwfError), opened(data_dir.absolute(), makes=False) as above:
        seen = os.open(_SEEN, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=above)
        with os.fdopen(seen) as text:
            match json.load(text):
                case dict(found):
                    return {str(key): str(value) for key, value in found.items()}
    return {}


def _remember(data_dir: Path, seen: dict[str, str]) -> None:
    """Write down what was seen, if that can be: without it, a missing directory is waited for."""
    new = f"{_SEEN}.{os.getpid()}"
    how = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with opened(data_dir.absolute()) as above:
            with os.fdopen(os.open(new, how, 0o644, dir_fd=above), "w") as text:
                json.dump(seen, text)
            os.rename(new, _SEEN, src_dir_fd=above, dst_dir_fd=above)
    except (OSError, QwfError) as exc:
        _log.info("%s cannot be written: %s", data_dir / _SEEN, exc)
