"""In which order results come to an async durable function: in that of their rows, in each attempt.

Where branches run side by side, what a function does next may depend on which of them was ready first, as
with `asyncio.as_completed`. So while it has branches their results are handed over one at a time, in the
order in which the server has stored them, and the next one when the function has come to a stop.

    a call has its result ──> it arrives ──> nothing is being stored that may be earlier, the loop has turned
                                              without a call or an end ──> the earliest is handed over
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import count
from typing import Final

from queue_workflows.engine.durable.history import Call

# How often the loop turns until whatever a result has set off has come to its next call, or its end.
STILL: Final = 12
_INSTANT_S: Final = 1e-6


class Arrivals:
    """The results of one attempt's calls that are yet to be handed over."""

    def __init__(self, begun_at: float) -> None:
        # When the last one was stored that was handed over, on the server's clock.
        self._last_at = begun_at
        self._arrived: list[tuple[float, str, int, int, asyncio.Future[None]]] = []
        self._numbers = count()
        self._storing: set[int] = set()
        self._happened = 0
        self._is_pumping = False
        self._seen = self._still = 0

    def happened(self) -> None:
        """The function has made a call, or one has ended."""
        self._happened += 1

    @contextmanager
    def storing(self) -> Iterator[None]:
        """What is stored meanwhile may have a time before that of what arrives meanwhile."""
        number = next(self._numbers)
        self._storing.add(number)
        try:
            yield
        finally:
            self._storing.discard(number)
            self._pump_soon()

    def moment(self) -> float:
        """A time for what is stored later than it is handed over: right after what was last."""
        return self._last_at + _INSTANT_S

    async def in_turn(self, call: Call, at: float, *, alone: bool) -> None:
        """Wait until it is the turn of a call's result, stored at this time; at once if it is `alone`."""
        if not alone:
            turn = asyncio.get_running_loop().create_future()
            heappush(self._arrived, (at, call.name, call.number, next(self._numbers), turn))
            self.happened()
            self._pump_soon()
            await turn
        self._last_at = max(self._last_at, at)

    def _pump_soon(self) -> None:
        if self._arrived and not self._is_pumping:
            self._is_pumping, self._still = True, 0
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """Turn with the loop until nothing happens, and hand over the earliest."""
        self._still = self._still + 1 if self._seen == self._happened else 0
        self._seen = self._happened
        if self._still < STILL:
            asyncio.get_running_loop().call_soon(self._pump)
            return
        self._is_pumping = False
        while self._arrived and self._arrived[0][-1].done():
            # Its branch was cancelled meanwhile.
            heappop(self._arrived)
        if not self._arrived or min(self._storing, default=self._arrived[0][-2]) < self._arrived[0][-2]:
            # What is being stored comes back here.
            return
        heappop(self._arrived)[-1].set_result(None)
        self.happened()
        self._pump_soon()
