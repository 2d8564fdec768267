"""Waiting until workers do what an operator asked of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from queue_workflows.repositories.workers.obedience import Obedience, Standing

LOOK_EVERY_S: Final = 0.2


@dataclass(frozen=True)
class Awaited:
    """The workers that are not there yet, and those not waited for as they were silent for too long."""

    behind: tuple[Standing, ...]
    silent: tuple[Standing, ...]


def await_obedience(
    look: Callable[[], Sequence[Standing]],
    *,
    version: int,
    stale_s: float,
    timeout_s: float,
    now: Callable[[], float],
    sleep: Callable[[float], None],
    tell: Callable[[Awaited], None] = lambda _: None,
) -> Awaited:
    """Look until all that are heard of obey, or the time is over; `tell` hears of each change on the way."""
    until = now() + timeout_s
    told: list[tuple[str, Obedience]] | None = None
    while True:
        awaited = _behind(look(), version, stale_s)
        if not awaited.behind or now() >= until:
            return awaited
        news = [(one.worker_id, one.obedience(version)) for one in awaited.behind]
        if news != told:
            tell(awaited)
            told = news
        sleep(LOOK_EVERY_S)


def _behind(workers: Sequence[Standing], version: int, stale_s: float) -> Awaited:
    behind = [
        one for one in workers if not one.is_quarantined and one.obedience(version) is not Obedience.OBEYED
    ]
    return Awaited(
        tuple(one for one in behind if one.age_s <= stale_s),
        tuple(one for one in behind if one.age_s > stale_s),
    )
