"""A loop that waits on a descriptor, and the thread that connects for it: how they hand over."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from typing import Final

import psycopg

from queue_workflows.db.connections.bounded_wire import ListenWire, WireLost
from queue_workflows.db.connections.descriptors import Descriptors
from queue_workflows.db.connections.failures import classify_failure
from queue_workflows.errors import QwfError, SessionsNotKept
from queue_workflows.thread_start import start_thread

_log = logging.getLogger(__name__)

INTERRUPT: Final = b"i"
ARRIVED: Final = b"a"


class Wakeup:
    """A pipe to end a poll with: a byte is all that a signal handler may safely write, so it says it all.

    It closes when nobody refers to it any more: before, somebody could still ring, by then on a descriptor
    of others. Once a job has closed its descriptors it does nothing any more, for the same reason.
    """

    # Until it is whole: a signal may end its making at any point.
    _descriptors: Descriptors | None = None

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        # One of the two, as a ring should cost little: what closes the one closes the other.
        self._descriptors = Descriptors(self._writer)

    def __del__(self) -> None:
        if self.is_whole():
            os.close(self._writer)
            os.close(self._reader)

    def is_whole(self) -> bool:
        """Whether its descriptors are its own still."""
        return self._descriptors is not None and self._descriptors.are_ours()

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._reader

    @property
    def writer(self) -> int:
        """The descriptor to ring by, for a caller that can only write to one."""
        return self._writer

    def ring(self, what: bytes) -> None:
        """Never blocks; a full pipe rings already."""
        if self.is_whole():
            with contextlib.suppress(BlockingIOError):
                os.write(self._writer, what)

    def answer(self) -> bytes:
        """Stop ringing, and return what rang."""
        rang = b""
        with contextlib.suppress(BlockingIOError):
            while more := os.read(self._reader, 4096):
                rang += more
        return rang


class Attempt:
    """One try to join, in a thread for which no end waits: name resolution cannot be cut short."""

    def __init__(
        self,
        join: Callable[[], ListenWire],
        bell: Wakeup,
        on_failure: Callable[[Exception], None] = lambda _exc: None,
    ) -> None:
        """`on_failure` ends the process where not the server, but the process is at fault."""
        self._join_server = join
        self._bell = bell
        self._on_failure = on_failure
        self._hand_over = threading.Lock()
        self._abandoned = False
        self.begun = self.done = False
        self.wire: ListenWire | None = None
        self.trouble: str | None = None
        # Nothing went wrong: what was found between us and the server allows no LISTEN, and that was said.
        self.is_pointless = False

    def start(self) -> None:
        """Have a thread try, which may be lost before its first step."""
        start_thread(self.run, "qwf-listen")

    def run(self) -> None:
        """Try, and ring when it is decided."""
        self.begun = True
        wire: ListenWire | None = None
        try:
            wire = self._join_server()
        except SessionsNotKept as exc:
            self.trouble, self.is_pointless = str(exc), True
        except Exception as exc:
            self._on_failure(exc)
            self.trouble = _in_words(exc)
        with self._hand_over:
            self.wire, self.done = wire, True
            unwanted = self._abandoned
        if not unwanted:
            self._bell.ring(ARRIVED)
        elif wire is not None:
            wire.close()

    def abandon(self) -> None:
        """Nobody will take the result: whichever side comes second closes it."""
        with self._hand_over:
            self._abandoned = True
            wire = self.wire if self.done else None
        if wire is not None:
            wire.close()


def _in_words(failure: Exception) -> str:
    if isinstance(failure, psycopg.Error):
        return str(classify_failure(failure, ""))
    if isinstance(failure, QwfError | WireLost | OSError | MemoryError):
        return str(failure) or type(failure).__name__
    _log.error("joining failed", exc_info=failure)
    return f"{type(failure).__name__}: {failure}"
