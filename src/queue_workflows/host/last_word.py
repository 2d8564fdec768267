"""How a process of ours proves that its exit status was chosen by its own code.

A status alone proves nothing. A job that calls `os._exit(0)`, or a C library that calls `exit()`, ends its
worker with any number it likes, among them those that say "done" or "the schema is wrong". So a supervisor
gives each process that it starts a pipe, and believes a status only if it was announced there.

    supervisor ──pipe, its number in the environment──> process
        │                                                  │ decides to end, what it held is given back
        │                                                  ├─ "pid status" into the pipe
        │                                                  └─ ends with that status
        └─ it has ended: a status that this pid announced is believed, any other end is a crash

The pipe is closed by an exec, named in no environment that jobs hand on, and of no use to a forked child,
as its pid is another. A job that closes descriptors which are not its own closes this one too, and then the
end is a crash; the number may be a file of the job's by then, so it is looked at before it is written to.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Final

from queue_workflows.db.descriptors import Descriptors

PIPE: Final = "_QWF_LAST_WORD"
_LONGEST: Final = 4096


class LastWord:
    """The supervisor's end of the pipe; `fd` is the other one, for the child to inherit.

    It closes when nothing refers to it any more.
    """

    def __init__(self) -> None:
        self._pipe, self.fd = os.pipe()
        os.set_blocking(self._pipe, False)
        os.set_blocking(self.fd, False)
        self._heard = b""

    def handed_over(self) -> None:
        """The child has its end."""
        os.close(self.fd)

    def announced(self, pid: int, status: int) -> bool:
        """Whether this process, which has ended, said that it would end so."""
        return _words(pid, status) in self._words_heard()

    def said(self, pid: int) -> int | None:
        """The status with which this process, which has ended, said that it would; None if it said none."""
        own = [words.split() for words in self._words_heard() if words.startswith(b"%d " % pid)]
        return int(own[-1][1]) if own else None

    def _words_heard(self) -> list[bytes]:
        with suppress(BlockingIOError):
            self._heard += os.read(self._pipe, _LONGEST)
        return self._heard.splitlines(keepends=True)

    def __del__(self) -> None:
        os.close(self._pipe)


class Announcer:
    """The process's own end of the pipe; without a supervisor it announces to nobody."""

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        self.take(environ)

    def take(self, environ: MutableMapping[str, str] = os.environ) -> None:
        """Take the pipe that this process was given, out of the environment and of what an exec hands on."""
        given = environ.pop(PIPE, "")
        self._fd = int(given) if given.isdecimal() else -1
        self._pid = os.getpid()
        self._files = Descriptors(self._fd)
        if self._files.are_ours():
            os.set_inheritable(self._fd, False)

    @property
    def has_pipe(self) -> bool:
        """Whether the pipe is there still, and this is the process that it was given to."""
        return self._pid == os.getpid() and self._files.are_ours()

    def announce(self, status: int) -> None:
        """This process ends now, with this status, because our code decided so."""
        if self.has_pipe:
            # A supervisor that is gone is told nothing.
            with suppress(OSError):
                os.write(self._fd, _words(self._pid, status))

    def hand_on(self, environ: MutableMapping[str, str] = os.environ) -> None:
        """Before this process executes itself anew: it keeps its pid, and what follows may announce too."""
        if self.has_pipe:
            os.set_inheritable(self._fd, True)
            environ[PIPE] = str(self._fd)


def _words(pid: int, status: int) -> bytes:
    return b"%d %d\n" % (pid, status)


# Taken once, as early as this module is loaded: whatever a job starts is started later.
own: Final = Announcer()
