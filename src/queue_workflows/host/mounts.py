"""What kind of file system a path is on, and which mount something open is on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

# Served by another machine, which decides how long a lock is kept. What a virtual machine gets from its own
# (9p, virtiofs) is not among these: its kernel keeps the locks.
_NETWORK: Final = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "ncpfs", "afs", "coda", "ceph", "lustre", "davfs"),
        *("glusterfs", "beegfs", "gpfs", "gfs2", "ocfs2", "orangefs", "pvfs2", "acfs"),
    }
)
# Programs that serve a file system as a rule fetch it from elsewhere, and need not know of locks.
_LOCAL_FUSE: Final = frozenset({"fuse.fuse-overlayfs", "fuse.bindfs", "fuse.mergerfs", "fuse.lxcfs"})
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


def network_file_system(path: Path, *, mountinfo: Path = Path("/proc/self/mountinfo")) -> str | None:
    """The kind of network file system that the path is on; None for a local one, or where nobody can tell."""
    try:
        with mountinfo.open(errors="surrogateescape") as mounts:
            kind = _kind_at(os.path.realpath(path), _mounted(mounts))
    except OSError:  # not Linux, or no /proc
        return None
    is_network = kind in _NETWORK or kind == "fuse" or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE)
    return kind if is_network else None


def mount_of(descriptor: int) -> tuple[int, str]:
    """What tells one mount from another, also two of one file system; without /proc only its device."""
    try:
        with open(f"/proc/self/fdinfo/{descriptor}") as lines:
            mount = next((line for line in lines if line.startswith("mnt_id:")), "")
    except OSError:
        mount = ""
    return os.fstat(descriptor).st_dev, mount


def _kind_at(path: str, mounts: Iterable[tuple[str, str]]) -> str:
    """The kind of the innermost mount; of several on one place the last one hides the others."""
    deepest, kind = "", ""
    for place, its_kind in mounts:
        inside = place.rstrip("/") + "/"
        if len(place) >= len(deepest) and f"{path}/".startswith(inside):
            deepest, kind = place, its_kind
    return kind


def _mounted(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        place, _, kind = line.partition(" - ")
        fields, kinds = place.split(), kind.split()
        if len(fields) > 4 and kinds:
            yield _ESCAPED.sub(lambda found: chr(int(found[1], 8)), fields[4]), kinds[0]
