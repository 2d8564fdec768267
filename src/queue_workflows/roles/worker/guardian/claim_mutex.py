"""The turns of two threads: one claims and ends jobs, the other may have to end the process."""

from __future__ import annotations

from threading import Lock


class FairMutex:
    """A lock that the main thread takes again and again: the other thread, if it waits, has the next turn."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting = Lock()

    @property
    def is_wanted(self) -> bool:
        """Whether the other thread waits."""
        return self._waiting.locked()

    def acquire(self, timeout: float) -> bool:
        """Wait as the other thread; whether its turn came within so many seconds."""
        with self._waiting:
            return self._lock.acquire(timeout=timeout)

    def take(self) -> None:
        """Take the lock as the main thread, after the other one if that waits."""
        if self._waiting.locked():
            with self._waiting:
                pass
        self._lock.acquire()

    def release(self) -> None:
        """End the turn."""
        self._lock.release()

    def __enter__(self) -> None:
        self.take()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
