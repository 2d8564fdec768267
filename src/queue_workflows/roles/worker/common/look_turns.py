"""When a worker that was woken looks for a job, so that not all of its host do for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from queue_workflows import clock as time
from queue_workflows.host.wake_turns import WakeTurns

# How long the next in line waits for a look to come back: twice as long as its own last one took.
_LEAST_S: Final = 0.001
_MOST_S: Final = 0.01


class LookTurns:
    """The main thread's; where `make` brings no turns the worker looks whenever it is woken."""

    def __init__(self, make: Callable[[], WakeTurns | None]) -> None:
        """Once it is connected the worker can `make` them, among those with the same database."""
        self._make = make
        self._turns: WakeTurns | None = None
        self._step_s = _LEAST_S
        self._is_free = True

    def begin(self) -> None:
        """Find those with which to look in turn."""
        self._turns = self._make()

    def wait_in_line(self, *, is_free: bool) -> None:
        """Be seen to wait for jobs, one that `is_free` before those that hold some."""
        self._is_free = is_free
        if self._turns is not None:
            self._turns.wait_in_line(is_free=is_free)

    def leave(self) -> None:
        """Be seen to be at work."""
        if self._turns is not None:
            self._turns.leave()

    def pause(self, *, is_resting: bool = False) -> float:
        """How long to leave to those ahead what this worker was woken for; they double from wave to wave."""
        if self._turns is None:
            return 0.0
        # Two at once: one of them finds that nothing is left, and on a busy machine the other may come first.
        # But one that would have to connect first leaves it to those that need not.
        ahead = self._turns.ahead()
        return (ahead if is_resting else ahead // 2).bit_length() * self._step_s

    def is_behind(self) -> bool:
        """Whether another worker of this host waits in front of this one."""
        return self._turns is not None and self._turns.ahead() > 0

    def looked(self, began: float, *, found: bool, is_free: bool) -> None:
        """Learn from a look at everything, by a worker that `is_free` for whatever there is."""
        if self._turns is None:
            return
        self._step_s = min(max(2 * (time.monotonic() - began), _LEAST_S), _MOST_S)
        if not found:
            self._turns.found_nothing(began, is_free=is_free)

    def is_seen_to(self, woken: float) -> bool:
        """Whether another has looked since, and there was nothing left for this worker."""
        return self._turns is not None and self._turns.has_found_nothing_since(
            woken, time.monotonic(), is_free=self._is_free
        )

    def close(self) -> None:
        """Wait no more."""
        if self._turns is not None:
            self._turns.close()
