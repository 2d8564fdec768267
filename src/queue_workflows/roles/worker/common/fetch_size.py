"""How much of what is on hold for its tasks a worker fetches that came up short of work, and how soon again.

Others on the queue may not know these tasks, and put aside again what they find. So a page is what this
worker had of the last one, twice over, and no more than it can do in some seconds; the next is fetched as
soon as it has had some of this one and runs dry. A worker that finds nothing looks about once a second.
"""

from __future__ import annotations

import math
from typing import Final

from queue_workflows.repositories.sql.table import LONGEST_PAGE

PER_HAND: Final = 10
AHEAD_S: Final = 3.0
EVERY_S: Final = 1.0
LONGEST_S: Final = 60.0
_FIRST_PAUSE_S: Final = 0.02
# A look takes no more than this part of an idle worker's time, however much others keep on hold.
_PART: Final = 100


class FetchSize:
    """How much one worker fetches; `had` is how many jobs it has taken so far, `now` the monotonic clock."""

    def __init__(self, concurrency: int) -> None:
        self._least = min(LONGEST_PAGE, max(1, concurrency) * PER_HAND)
        self._had = 0
        self._at = self._due = -math.inf
        self._pause = _FIRST_PAUSE_S
        self._has_found = False
        self._asked = self._least
        # Whether there may be more than was fetched last.
        self.was_full = False

    def is_due(self, had: int, now: float) -> bool:
        """Whether to fetch, if there is nothing else to do."""
        return now >= self._due or (self._has_found and had > self._had)

    def due_in(self, now: float) -> float:
        """How many seconds to wait before fetching again what others took of a page; infinite without one."""
        return max(0.0, self._due - now) if self._has_found else math.inf

    def page(self, had: int, now: float) -> int:
        """How many to fetch."""
        took_s = max(now - self._at, 1e-3)
        able = int((had - self._had) * min(2.0, AHEAD_S / took_s))
        self._asked = max(self._least, min(LONGEST_PAGE, able))
        return self._asked

    def fetched(self, found: int, had: int, now: float, took_s: float) -> None:
        """What a look has found."""
        if not found:
            pause, self._pause = min(LONGEST_S, max(EVERY_S, _PART * took_s)), _FIRST_PAUSE_S
        else:
            # Others took the whole of the last one: they are many, or faster.
            self._pause = _FIRST_PAUSE_S if had > self._had else min(EVERY_S, self._pause * 2)
            pause = self._pause
        self._has_found, self.was_full = found > 0, found >= self._asked
        self._had, self._at, self._due = had, now, now + pause
