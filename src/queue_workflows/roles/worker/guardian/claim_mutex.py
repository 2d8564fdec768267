"""Whose turn it is between the thread that claims and ends, and the one that may have to end the process."""

from __future__ import annotations

from threading import Lock


class FairMutex:
    """A lock whose owner, the main thread, takes it again and again: who waits for it has the next turn."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting = Lock()

    @property
    def is_wanted(self) -> bool:
        """Whether the other thread waits."""
        return self._waiting.locked()

    def acquire(self, timeout: float) -> bool:
        """For the other thread: whether it is its turn, within so many seconds."""
        with self._waiting:
            return self._lock.acquire(timeout=timeout)

    def take(self) -> None:
        """For the main thread."""
        if self._waiting.locked():
            with self._waiting:
                pass
        self._lock.acquire()

    def release(self) -> None:
        """The turn is over."""
        self._lock.release()

    def __enter__(self) -> None:
        self.take()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
