"""How a crew of producers is told to begin together, and says how long it took; the standard library only."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable


def take_orders(forms: dict[str, Callable[[int], None]]) -> None:
    """For each line "FORM COUNT" that comes in, do that, and say between which moments.

    The clock is one that all processes of a machine share.
    """
    print("ready", flush=True)
    for line in sys.stdin:
        form, count = line.split()
        began = time.monotonic_ns()
        forms[form](int(count))
        print(began, time.monotonic_ns(), flush=True)
