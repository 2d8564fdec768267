"""The files that a hook left: a walk that stays beneath a directory that its owner may change meanwhile.

Every directory and file is opened by name in the directory above it, never through a link, and judged by what
was opened. So whatever is swapped between a look and an open, nothing outside is read, and nothing blocks.
"""

from __future__ import annotations

import errno
import hashlib
import mimetypes
import os
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from queue_workflows.host.directories.below import DIRECTORY

_BLOCK: Final = 1 << 20
_MOMENT_NS: Final = 2_000_000_000
# Smaller files are read as quickly as they are looked up.
_WORTH_KEEPING: Final = 65_536
_MOST_KEPT: Final = 20_000
_LONGEST_SMALL: Final = 1 << 20
# Without O_NONBLOCK the open of a FIFO waits for its other end.
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
# Python's own table alone: what the machine's files say differs from one to the next.
_MIMETYPES: Final = mimetypes.MimeTypes()
_MORE_TYPES: Final = {
    ".jsonl": "application/jsonl",
    ".md": "text/markdown",
    ".warc": "application/warc",
    ".webp": "image/webp",
    ".woff2": "font/woff2",
    ".yaml": "application/yaml",
}
for _suffix, _type in _MORE_TYPES.items():
    _MIMETYPES.add_type(_type, _suffix)
UNKNOWN_TYPE: Final = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class FileCaps:
    """How much of a directory is looked at; what is beyond is not listed, and the listing says so."""

    files: int = 5_000
    entries: int = 50_000
    depth: int = 32
    # Of the files that are listed, how many bytes are read for their checksums.
    hashed_bytes: int = 4 << 30


USUAL_CAPS: Final = FileCaps()


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A regular file: its path from the directory on, and what was read of it; no checksum is too large.

    `changed_ns` is when it was last changed by anybody, whatever time the file claims for itself.
    """

    path: str
    size: int
    mimetype: str
    sha256: str | None
    changed_ns: int = field(default=0, compare=False)

    def as_json(self) -> dict[str, Any]:
        """As it is stored."""
        return {"path": self.path, "size": self.size, "mimetype": self.mimetype, "sha256": self.sha256}


@dataclass(frozen=True, slots=True)
class FileListing:
    """The files in the order of their paths, and why there may be more."""

    files: tuple[FoundFile, ...] = ()
    left_out: tuple[str, ...] = ()


def open_regular(name: str, *, within: int) -> int:
    """A regular file of an open directory; `OSError` for a link, a FIFO, a device or a socket."""
    # The open of a device may have an effect, so it is looked at first; what counts is what was opened.
    if not stat.S_ISREG(os.stat(name, dir_fd=within, follow_symlinks=False).st_mode):
        raise OSError(f"{name!r} is no regular file")
    opened = os.open(name, _FILE, dir_fd=within)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(f"{name!r} is no regular file")
    return opened


def small_file(path: Path) -> bytes:
    """A plugin's own file, also behind a link; `OSError` for a FIFO, which has no end, and one too large."""
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        with os.fdopen(opened, "rb", closefd=False) as file:
            content = file.read(_LONGEST_SMALL + 1)
    finally:
        os.close(opened)
    if len(content) > _LONGEST_SMALL:
        raise OSError(errno.EFBIG, f"it is larger than {_LONGEST_SMALL:,} bytes")
    return content


class Digests:
    """Checksums of files that were read before, as long as their `stat` says that they are the same.

    All hooks of a plugin share a directory, and each lists all of it: what one left is not read again for
    the others. A file that was written within a moment of its reading may bear the same times afterwards.
    """

    def __init__(self, *, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._kept: dict[tuple[int, int], tuple[tuple[int, int, int], str]] = {}

    def of(self, opened: int, seen: os.stat_result) -> tuple[str, int]:
        """The checksum of an open file, and of how many bytes it is."""
        key, stamp = (seen.st_dev, seen.st_ino), (seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)
        kept = self._kept.get(key)
        if kept is not None and kept[0] == stamp:
            return kept[1], seen.st_size
        settled = self._now_ns() - _MOMENT_NS
        digest, size = _digest(opened, seen.st_size)
        if size == seen.st_size >= _WORTH_KEEPING and max(stamp[1:]) < settled:
            with self._lock:
                self._kept.pop(key, None)
                self._kept[key] = stamp, digest
                if len(self._kept) > _MOST_KEPT:
                    del self._kept[next(iter(self._kept))]
        return digest, size


def digest_of(path: Path, digests: Digests, most: int) -> tuple[str | None, int]:
    """The checksum of a file of the machine's own, None if it has more than `most` bytes; and its size."""
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        seen = os.fstat(opened)
        if not stat.S_ISREG(seen.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        if seen.st_size > most:
            return None, seen.st_size
        return digests.of(opened, seen)
    finally:
        os.close(opened)


def find_files(directory: int, caps: FileCaps = USUAL_CAPS, digests: Digests | None = None) -> FileListing:
    """All regular files below an open directory; links are not followed."""
    walk = _Walk(caps, digests or Digests())
    walk.through(directory, "", 0)
    return FileListing(tuple(sorted(walk.files, key=lambda found: found.path)), tuple(walk.left_out))


class _Walk:
    """Depth first, in the order of names, so that a cap cuts the same files off every time."""

    def __init__(self, caps: FileCaps, digests: Digests) -> None:
        self._caps = caps
        self._digests = digests
        self._seen = 0
        self._hashed = 0
        self.files: list[FoundFile] = []
        self.left_out: dict[str, None] = {}

    def through(self, directory: int, prefix: str, depth: int) -> None:
        """List an open directory and what is below it."""
        for name in self._names(directory):
            path = f"{prefix}{name}"
            if len(self.files) >= self._caps.files:
                self.left_out[f"more than {self._caps.files:,} files"] = None
                return
            try:
                mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode):
                    self._below(directory, name, path, depth)
                elif stat.S_ISREG(mode):
                    self._keep(directory, name, path)
            except OSError:
                # Gone, swapped or unreadable since it was seen: then it is no file that the hook left.
                continue

    def _names(self, directory: int) -> list[str]:
        names = []
        with os.scandir(directory) as entries:
            for entry in entries:
                self._seen += 1
                if self._seen > self._caps.entries:
                    self.left_out[f"more than {self._caps.entries:,} entries"] = None
                    break
                names.append(entry.name)
        return sorted(names)

    def _below(self, directory: int, name: str, path: str, depth: int) -> None:
        if depth + 1 >= self._caps.depth:
            self.left_out[f"directories deeper than {self._caps.depth}"] = None
            return
        inner = os.open(name, DIRECTORY, dir_fd=directory)
        try:
            self.through(inner, f"{path}/", depth + 1)
        finally:
            os.close(inner)

    def _keep(self, directory: int, name: str, path: str) -> None:
        opened = open_regular(name, within=directory)
        try:
            seen = os.fstat(opened)
            size, digest = seen.st_size, None
            if self._hashed + size <= self._caps.hashed_bytes:
                self._hashed += size
                digest, size = self._digests.of(opened, seen)
            else:
                self.left_out["checksums, as the files are large"] = None
        finally:
            os.close(opened)
        shown = os.fsencode(path).decode("utf-8", "backslashreplace")
        mimetype = _MIMETYPES.guess_type(shown)[0] or UNKNOWN_TYPE
        self.files.append(FoundFile(shown, size, mimetype, digest, seen.st_ctime_ns))


def _digest(opened: int, size: int) -> tuple[str, int]:
    """The checksum of as much as the file had when opened: one that still grows must not hold us up."""
    digest, read = hashlib.sha256(), 0
    while read < size and (block := os.read(opened, min(_BLOCK, size - read))):
        digest.update(block)
        read += len(block)
    return digest.hexdigest(), read
