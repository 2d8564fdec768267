"""The shapes of loads: what takes how long, with which key, and what comes in meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

KEY: Final = "host:slow.example"
KEY_CAP: Final = 2


@dataclass(frozen=True, slots=True)
class Job:
    """A job to enqueue: its task, for how long it sleeps, and its key, priority and delay."""

    task: str
    s: float
    limit_key: str | None = None
    priority: int = 5
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Shape:
    """A load: `jobs` makes so many of them; a part of `urgent` a second comes in at a higher priority."""

    jobs: Callable[[Random, int], Iterator[Job]]
    urgent_per_s: float = 0.0


def _steady(chance: Random, count: int) -> Iterator[Job]:
    for _ in range(count):
        yield Job("quick", chance.uniform(0.2, 0.6))


def _burst(chance: Random, count: int) -> Iterator[Job]:
    for _ in range(count):
        yield Job("quick", chance.lognormvariate(-1.2, 0.7))


def _mixed(chance: Random, count: int) -> Iterator[Job]:
    """One slow job to four quick ones, the slow ones at the end of each half."""
    for number in range(count):
        is_slow = number * 2 % count > count * 0.6
        yield Job("slow", chance.uniform(0.6, 1.4)) if is_slow else Job("quick", chance.uniform(0.1, 0.3))


def _keyed(chance: Random, count: int) -> Iterator[Job]:
    """A third with a key of which only some run at once, so that its jobs are the last."""
    for number in range(count):
        yield Job("quick", chance.uniform(0.2, 0.6), KEY if number % 3 == 0 else None)


def _heavy(chance: Random, count: int) -> Iterator[Job]:
    """Most are short, and some are thirty times as long."""
    for _ in range(count):
        yield Job("quick", min(5.0, 0.15 * chance.paretovariate(1.3)))


SHAPES: Final[Mapping[str, Shape]] = {
    "steady": Shape(_steady, urgent_per_s=3.0),
    "burst": Shape(_burst),
    "mixed": Shape(_mixed),
    "keyed": Shape(_keyed),
    "heavy": Shape(_heavy),
}
