"""Lines out of a pipe, with a word when it pauses: a reader of batches need not wait for a slow writer."""

from __future__ import annotations

import os
import select
from typing import Final

_CHUNK: Final = 262_144


class PipedLines:
    """`readline` as files have it, except that it gives None when nothing comes for `pause_s`."""

    def __init__(self, fd: int, *, pause_s: float = 0.2) -> None:
        self._fd = fd
        self._pause_s = pause_s
        self._held = bytearray()
        self._searched = 0
        self._at_end = False

    def readline(self, limit: int) -> bytes | None:
        """A line with its end, as much of one as `limit` allows, or what the pipe ends with."""
        while True:
            end = self._held.find(b"\n", self._searched, limit) + 1
            if end or self._at_end or len(self._held) >= limit:
                return self._take(end or limit)
            self._searched = len(self._held)
            if not select.select([self._fd], [], [], self._pause_s)[0]:
                return None
            chunk = os.read(self._fd, _CHUNK)
            self._held += chunk
            self._at_end = not chunk

    def _take(self, size: int) -> bytes:
        line = bytes(self._held[:size])
        del self._held[:size]
        self._searched = 0
        return line
