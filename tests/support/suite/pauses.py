"""How long to sleep between two looks at something that another process is about to do.

Each look takes the processor from what is waited for, most of all one that asks the database.
"""

from __future__ import annotations

import time

_FIRST_S = 0.01
_LONGEST_S = 0.06
_GROWTH = 1.25
# So many times as long as the look before it has worked.
_SHARE = 3


class Pauses:
    """Short at first, then longer, and longer than a look takes."""

    def __init__(self) -> None:
        self._pause_s = _FIRST_S
        self._worked_s = time.thread_time()

    def sleep(self) -> None:
        """Wait until the next look."""
        time.sleep(max(self._pause_s, _SHARE * (time.thread_time() - self._worked_s)))
        self._pause_s = min(self._pause_s * _GROWTH, _LONGEST_S)
        self._worked_s = time.thread_time()
