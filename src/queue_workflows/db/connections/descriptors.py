"""Whether descriptors of this process still stand for what it opened.

A job that closes all descriptors but the first three, as code for daemons does, closes those of its worker.
Their numbers then go to whatever is opened next, such as a file of the job's: to write to one of them would
spoil that file, and two connections that share one socket would read each other's answers.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Final

# What the kernel calls a socket as long as it is up; of Linux alone, and Python has no name for it.
_SO_COOKIE: Final = 57
_COOKIE_BYTES: Final = 8


class Descriptors:
    """Some open files of this process, by their numbers."""

    def __init__(self, *numbers: int) -> None:
        self._files = [(number, _file_of(number)) for number in numbers]

    def are_ours(self) -> bool:
        """Whether each number stands for the file that it stood for, and stood for one."""
        return all(file is not None and _file_of(number) == file for number, file in self._files)


class MarkedSocket:
    """A socket of this process that is connected to nothing, and there to be looked at after each job.

    A job that closes all descriptors closes it too. To look at it is one call that keeps the GIL: threads
    that let go of that after each job of some microseconds would spend as long on handing it around.
    """

    # A signal may end this process while a socket is being marked.
    _is_marked = False

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._file = Descriptors(self._socket.fileno())
        self._option = self._socket.getsockopt
        self._cookie = self._asked()
        self._is_marked = True

    def is_ours(self) -> bool:
        """Whether its number stands for it still."""
        if self._cookie is None:
            return self._file.are_ours()
        try:
            return self._option(socket.SOL_SOCKET, _SO_COOKIE, _COOKIE_BYTES) == self._cookie
        except OSError:
            return False

    def _asked(self) -> bytes | None:
        with suppress(OSError):
            return self._option(socket.SOL_SOCKET, _SO_COOKIE, _COOKIE_BYTES)
        return None

    def __del__(self) -> None:
        if self._is_marked and not self.is_ours():
            # Its number is another's by now.
            self._socket.detach()


def _file_of(number: int) -> tuple[int, int] | None:
    with suppress(OSError, OverflowError):
        seen = os.fstat(number)
        return seen.st_dev, seen.st_ino
    return None
