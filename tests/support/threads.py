"""Several hands at once, let go at one moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def together(*tasks: Callable[[], T]) -> list[T]:
    """Run all of them, each in a thread, begun at a barrier; what they returned, in order."""
    barrier = threading.Barrier(len(tasks))

    def begin(task: Callable[[], T]) -> T:
        barrier.wait(30)
        return task()

    with ThreadPoolExecutor(len(tasks)) as pool:
        return [each.result(60) for each in [pool.submit(begin, task) for task in tasks]]
