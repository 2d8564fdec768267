"""A directory of its own for each run, with links to what is deliberately shared and to nothing else.

    {data}/workspaces/{run}/            0700, the same for every attempt of the run, and for all of its jobs
    {data}/workspaces/{run}/{name}  ->  what was shared under that name
    {data}/workspaces/.removed/         what the retention took away and is being deleted

Two runs never get the same directory, so two of one subject cannot meet in one; what they have to meet in is
shared by name. An attempt after the first finds what the one before left, as the run is the same.

It is held for as long as its user lives (see `directories`), and kept as long as the history of its run.
"""

from __future__ import annotations

import errno
import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from queue_workflows.config import effective_settings
from queue_workflows.errors import ConfigurationError
from queue_workflows.host.directories.data import hold

WORKSPACES: Final = "workspaces"
VARIABLE: Final = "QWF_WORKSPACE"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LONGEST: Final = 255


@dataclass
class Workspace:
    """A run's directory; kept from removal until `close`, the end of a `with`, or of this process."""

    path: Path
    shared: Mapping[str, Path]
    _held: int | None = field(repr=False)

    def export(self) -> dict[str, str]:
        """What a command that works here has in its environment."""
        return {VARIABLE: str(self.path)}

    def fileno(self) -> int:
        """The descriptor that keeps it, for a process that goes on with it."""
        if self._held is None:
            raise RuntimeError(f"the workspace {self.path} was closed")
        return self._held

    def close(self) -> None:
        """Keep it no more than its retention does."""
        held, self._held = self._held, None
        if held is not None:
            os.close(held)

    def __fspath__(self) -> str:
        return str(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def workspace(
    run_id: uuid.UUID | str,
    *,
    share: Mapping[str, str | os.PathLike[str]] | None = None,
    root: Path | None = None,
) -> Workspace:
    """The directory of a run, made if it is its first; `share` names what else it may reach, and where.

    `root` is the data directory, by default `QWF_DATA_DIR`. What was shared before and is not named again
    stays as it is.
    """
    name, shared = checked_name(str(run_id)), _targets(share or {})
    base = (effective_settings().data_dir if root is None else root).absolute()
    path = base / WORKSPACES / name
    held = hold(base, WORKSPACES, name)
    try:
        if os.fstat(held).st_uid != os.geteuid():
            raise ConfigurationError(
                f"{path} belongs to another user", advice="give each user a data directory with QWF_DATA_DIR"
            )
        for link, target in shared.items():
            _link(held, path, link, target)
    except BaseException:
        os.close(held)
        raise
    return Workspace(path, shared, held)


def checked_name(name: str) -> str:
    """A name that a run may have here, or ConfigurationError."""
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r:.120} cannot name a workspace",
            advice="use up to 100 letters, digits, `.`, `-` and `_`, and begin with a letter or a digit",
        )
    return name


def _targets(share: Mapping[str, str | os.PathLike[str]]) -> dict[str, Path]:
    found = {}
    for link, target in share.items():
        if link in ("", ".", "..") or "/" in link or "\0" in link or len(os.fsencode(link)) > _LONGEST:
            raise ConfigurationError(
                f"{link!r:.120} cannot name what is shared", advice="use one plain name, such as `servers`"
            )
        path = Path(os.path.expanduser(target)).absolute()
        if not path.exists():
            raise ConfigurationError(
                f"{path} cannot be shared as {link!r}: it is not there", advice="make it, or correct the path"
            )
        found[link] = path
    return found


def _link(held: int, path: Path, link: str, target: Path) -> None:
    """Set the link in one step, so that what works there finds it, the former or this, at any moment."""
    try:
        try:
            os.symlink(target, link, dir_fd=held)
        except FileExistsError:
            if (there := _led_to(held, link)) is None:
                raise
            if there != str(target):
                _replace(held, link, target)
    except OSError as wrong:
        what = "something else is there" if wrong.errno == errno.EEXIST else wrong.strerror
        raise ConfigurationError(
            f"{path / link} cannot lead to {target}: {what}", advice="share it under another name"
        ) from None


def _led_to(held: int, link: str) -> str | None:
    """Where a link leads; None for what is none."""
    try:
        return os.readlink(link, dir_fd=held)
    except OSError:
        return None


def _replace(held: int, link: str, target: Path) -> None:
    passing = f".{uuid.uuid4().hex}"
    os.symlink(target, passing, dir_fd=held)
    try:
        os.rename(passing, link, src_dir_fd=held, dst_dir_fd=held)
    except OSError:
        os.unlink(passing, dir_fd=held)
        raise
