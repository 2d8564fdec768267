"""How a process of ours proves that its exit status was chosen by its own code, and which jobs it had begun.

A status alone proves nothing. A job that calls `os._exit(0)`, or a C library that calls `exit()`, ends its
worker with any number it likes, among them those that say "done" or "the schema is wrong". So a supervisor
gives each process that it starts a file in memory, and believes a status only if it was announced there.

    supervisor ──file, its number in the environment──> process
        │                                                  ├─ the jobs that its threads began last
        │                                                  │ decides to end, what it held is given back
        │                                                  ├─ "pid status" into the file
        │                                                  └─ ends with that status
        └─ it has ended: a status that this pid announced is believed, any other end is a crash

The file is closed by an exec, named in no environment that jobs hand on, and of no use to a forked child,
as its pid is another. A job that closes descriptors which are not its own closes this one too, and then the
end is a crash; the number may be a file of the job's by then, so it is looked at before it is written to.

A worker of several jobs claims more than it has threads for. What no thread had begun when it crashed is not
to blame, so each thread writes the job that it begins to its own place behind the words, in memory that is
shared with the supervisor: that costs no call, and survives whatever ends the process. A job stays there
until the next, as what it left behind may be what crashes.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Collection, MutableMapping
from contextlib import suppress
from typing import Final

from queue_workflows.db.connections.descriptors import Descriptors

PIPE: Final = "_QWF_LAST_WORD"
_WORDS: Final = 4096
_PLACES: Final = 4096
_PLACE: Final = "q"
# In a place of its own: some thread has no place, so what has begun is not known.
_UNKNOWN: Final = -1
_SIZE: Final = _WORDS + _PLACES * struct.calcsize(_PLACE)


class LastWord:
    """The supervisor's hand on the file; `fd` is the other one, for the child to inherit.

    It closes when nothing refers to it any more.
    """

    def __init__(self) -> None:
        self._file = _file_in_memory()
        os.truncate(self._file, _SIZE)
        self.fd = os.dup(self._file)

    def handed_over(self) -> None:
        """Close our copy of the child's end: the child has it."""
        os.close(self.fd)

    def announced(self, pid: int, status: int) -> bool:
        """Whether this process, which has ended, said that it would end so."""
        return _words(pid, status) in self._words_heard()

    def said(self, pid: int) -> int | None:
        """The status with which this process, which has ended, said that it would; None if it said none."""
        own = [words.split() for words in self._words_heard() if words.startswith(b"%d " % pid)]
        return int(own[-1][1]) if own else None

    def begun(self) -> frozenset[int]:
        """The jobs that its threads began last; empty where that is not known."""
        written = os.pread(self._file, _SIZE - _WORDS, _WORDS)
        begun = frozenset(job_id for job_id in memoryview(written).cast(_PLACE) if job_id)
        return frozenset() if _UNKNOWN in begun else begun

    def _words_heard(self) -> list[bytes]:
        return os.pread(self._file, _WORDS, 0).rstrip(b"\0").splitlines(keepends=True)

    def __del__(self) -> None:
        os.close(self._file)


class Announcer:
    """The process's own hand on the file; without a supervisor it announces to nobody."""

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        self.take(environ)

    def take(self, environ: MutableMapping[str, str] = os.environ) -> None:
        """Take the file that this process was given, out of the environment and of what an exec hands on."""
        given = environ.pop(PIPE, "")
        self._fd = int(given) if given.isdecimal() else -1
        self._pid = os.getpid()
        self._files = Descriptors(self._fd)
        self._places: memoryview | None = None
        if self._files.are_ours():
            os.set_inheritable(self._fd, False)
            with suppress(OSError, ValueError):
                self._places = memoryview(mmap.mmap(self._fd, _SIZE))[_WORDS:].cast(_PLACE)

    @property
    def has_file(self) -> bool:
        """Whether the file is there still, and this is the process that it was given to."""
        return self._pid == os.getpid() and self._files.are_ours()

    def begins(self, place: int, job_id: int) -> None:
        """The thread at this place begins a job now."""
        if (places := self._places) is None:
            return
        if place >= _PLACES:
            place, job_id = _PLACES - 1, _UNKNOWN
        places[place] = job_id

    def have_begun(self, job_ids: Collection[int]) -> None:
        """This process ends now, and holds these jobs, which had begun; their threads may be at others."""
        # From behind, as threads that go on write to the places in front.
        for place, job_id in zip(range(_PLACES - 1, -1, -1), job_ids, strict=False):
            self.begins(place if len(job_ids) <= _PLACES else _PLACES, job_id)

    def announce(self, status: int) -> None:
        """This process ends now, with this status, because our code decided so."""
        if self.has_file:
            # A supervisor that is gone is told nothing.
            with suppress(OSError):
                os.write(self._fd, _words(self._pid, status))

    def hand_on(self, environ: MutableMapping[str, str] = os.environ) -> None:
        """Let this process announce also after it executes itself anew, with the pid it has now."""
        if self.has_file:
            os.set_inheritable(self._fd, True)
            environ[PIPE] = str(self._fd)


def _file_in_memory() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("qwf-last-word")
    from tempfile import TemporaryFile

    with TemporaryFile() as file:
        return os.dup(file.fileno())


def _words(pid: int, status: int) -> bytes:
    return b"%d %d\n" % (pid, status)


# Taken once, as early as this module is loaded: whatever a job starts is started later.
own: Final = Announcer()
