"""Several hands at once, let go at one moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def together(*tasks: Callable[[], T]) -> list[T]:
    """Run all of them, each in a thread, begun at a barrier; what they returned, in order."""
    barrier = threading.Barrier(len(tasks))

    def begin(task: Callable[[], T]) -> T:
        barrier.wait(150)
        return task()

    with ThreadPoolExecutor(len(tasks)) as pool:
        return [each.result(150) for each in [pool.submit(begin, task) for task in tasks]]


def in_time(task: Callable[[], T]) -> T:
    """Run what may wait for itself for ever in a thread of its own, which is then left behind."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(task())
        except BaseException as exc:
            done.set_exception(exc)

    threading.Thread(target=run, daemon=True).start()
    return done.result(150)
