"""When a failed job runs again: exponential backoff with jitter, from nothing but numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

LONGEST_BACKOFF_S: Final = 86_400.0
# As far as a float can be doubled without thinking about it.
_DOUBLINGS: Final = 64


@dataclass(frozen=True, slots=True)
class Backoff:
    """The engine's defaults: the first delay, and how much is at most added to each by chance."""

    backoff_s: float = 60.0
    jitter_s: float = 15.0

    def delay_s(self, failures: int, own_backoff_s: float | None, chance: float) -> float:
        """Seconds until the try after the `failures`-th counted failure; `chance` is from 0 to 1.

        The delay doubles with each failure, up to a day unless it begins longer. Jitter comes on top, so that
        jobs which failed together do not come back together, and none before its backoff.
        """
        first = self.backoff_s if own_backoff_s is None else own_backoff_s
        doubled = math.ldexp(first, min(max(failures, 1) - 1, _DOUBLINGS))
        return min(doubled, max(LONGEST_BACKOFF_S, first)) + chance * self.jitter_s
