"""Where a command's output goes: a file that never grows beyond its cap, whatever is printed."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

_CHUNK: Final = 65_536
_DISCARDED_AT_ONCE: Final = 1 << 20
_LAST_WORDS: Final = 65_536
_LONGEST_LINE: Final = 1 << 20
_NEW: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW


class LineWatch:
    """Looks for a line that matches, in all that several streams bring, whatever is kept of it.

    A return ends a line as well. Of one that is very long the end is looked at.
    """

    def __init__(self, pattern: str, seen: Callable[[], object] = bool) -> None:
        """`seen` is called once, for the first of them."""
        self._pattern, self._seen = re.compile(pattern.encode()), seen
        self._is_over = False

    def stream(self) -> Callable[[bytes], bool]:
        """What to call with each part of a stream; false once there is no need to look any more."""
        rest = b""

        def look(data: bytes) -> bool:
            nonlocal rest
            *lines, rest = (rest + data.replace(b"\r", b"\n")).split(b"\n")
            rest = rest[-_LONGEST_LINE:]
            if not self._is_over and any(self._pattern.search(line) for line in lines):
                self._is_over = True
                self._seen()
            return not self._is_over

        return look


class Sink(ABC):
    """A new file, in the open directory `within`, and a count.

    `wrong` is the errno of a write that failed, after which nothing is kept. `look` is called with all that
    comes, until it says that it has seen enough.
    """

    look: Callable[[bytes], bool] | None = None

    def __init__(self, path: str, cap: int, within: int | None = None) -> None:
        try:
            self._file = os.open(path, _NEW, 0o666, dir_fd=within)
        except FileExistsError:
            with suppress(FileNotFoundError):
                os.unlink(path, dir_fd=within)  # also a link or a FIFO that somebody put there
            self._file = os.open(path, _NEW, 0o666, dir_fd=within)
        self._room = cap
        self.size = 0
        self.is_cut = False
        self.wrong: int | None = None

    @abstractmethod
    def take(self, pipe: int) -> bool:
        """Read once; False at the end of the pipe, BlockingIOError when it is empty."""

    def close(self) -> int | None:
        """Finish the file; what was wrong with it, if anything."""
        os.close(self._file)
        return self.wrong

    def _read(self, pipe: int, most: int) -> bytes:
        data = os.read(pipe, most)
        if self.look is not None and not self.look(data):
            self.look = None
        return data

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view and self.wrong is None:
            try:
                view = view[os.write(self._file, view) :]
            except OSError as wrong:
                self.wrong, self._room = wrong.errno, 0


class Capped(Sink):
    """Keeps the beginning; what comes after the cap is not even copied, where the kernel can do without."""

    def __init__(self, path: str, cap: int, within: int | None = None) -> None:
        super().__init__(path, cap, within)
        self._nowhere: int | None = None

    def take(self, pipe: int) -> bool:
        if self._room <= 0:
            return self._discard(pipe)
        data = self._read(pipe, min(_CHUNK, self._room))
        self.size += len(data)
        self._room -= len(data)
        self._write(data)
        return bool(data)

    def _discard(self, pipe: int) -> bool:
        if self._nowhere is None:
            self._nowhere = os.open(os.devnull, os.O_WRONLY)
        if self.look is None and hasattr(os, "splice"):
            gone = os.splice(pipe, self._nowhere, _DISCARDED_AT_ONCE)
        else:
            gone = len(self._read(pipe, _CHUNK))
        self.size += gone
        self.is_cut = self.is_cut or gone > 0
        return gone > 0


class HeadAndTail(Sink):
    """Keeps the beginning and the end, half of the cap each: errors tend to stand at either.

    `last_words` are what its file ends with once it is closed. It is not read again by its path: the command
    may have put anything there.
    """

    last_words: bytes = b""

    def __init__(self, path: str, cap: int, within: int | None = None) -> None:
        super().__init__(path, cap // 2, within)
        self._longest_tail = cap - cap // 2
        self._tail: deque[bytes] = deque()
        self._in_tail = 0

    def take(self, pipe: int) -> bool:
        data = self._read(pipe, _CHUNK)
        self.size += len(data)
        head, rest = data[: self._room], data[self._room :]
        self._room -= len(head)
        self._write(head)
        if rest:
            self._keep(rest)
        return bool(data)

    def _keep(self, data: bytes) -> None:
        self._tail.append(data)
        self._in_tail += len(data)
        while self._tail and self._in_tail - len(self._tail[0]) >= self._longest_tail:
            self._in_tail -= len(self._tail.popleft())
            self.is_cut = True

    def close(self) -> int | None:
        self._write_tail()
        with suppress(OSError):
            end = os.fstat(self._file).st_size
            self.last_words = os.pread(self._file, _LAST_WORDS, max(end - _LAST_WORDS, 0))
        return super().close()

    def _write_tail(self) -> None:
        tail = b"".join(self._tail)
        if len(tail) > self._longest_tail:
            tail, self.is_cut = tail[-self._longest_tail :], True
        if self.is_cut:
            kept = os.fstat(self._file).st_size + len(tail)
            self._write(f"\n… {self.size - kept:,} bytes left out …\n".encode())
        self._write(tail)
