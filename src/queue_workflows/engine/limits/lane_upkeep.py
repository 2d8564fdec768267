"""What keeps keyed limits going beside claims and ends: slots of the dead, and lanes that have room."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import psycopg

from queue_workflows.repositories.limits.lanes import LaneRepository
from queue_workflows.repositories.limits.slots import SlotRepository
from queue_workflows.repositories.sql.families import BY_NAME, FAMILIES


def free_left_by(connection: psycopg.Connection[Any], workers: Iterable[str]) -> None:
    """Free the slots that ended attempts of these workers left, and let other jobs of these keys go on."""
    slots = SlotRepository(connection)
    admit(connection, {key for worker in set(workers) for key in slots.free_left_by(worker)})


def admit(connection: psycopg.Connection[Any], keys: Iterable[str]) -> int:
    """Let out of the lanes of these keys what there is room for, in both families; how many."""
    given = list(keys)
    if not given:
        return 0
    return sum(LaneRepository(connection, family).admit(given) for family in FAMILIES)


@dataclass(slots=True)
class LaneWalk:
    """Looks at the lanes in turn, some each time; where it got to is kept between the times.

    It finds what nobody tells: slots with a lapsed lease, and jobs that went into a lane just as the last
    one of it came out.
    """

    _after: dict[str, str] = field(default_factory=dict)

    def step(self, connection: psycopg.Connection[Any], names: Iterable[str]) -> None:
        """The next ones of the families of these names."""
        for family in map(BY_NAME.__getitem__, names):
            after = self._after.get(family.name, "")
            self._after[family.name] = LaneRepository(connection, family).mend(after)


def admit_matching(connection: psycopg.Connection[Any], key_pattern: str) -> int:
    """Let out of the lanes of all keys that match a limit's pattern what there is room for; how many."""
    if not key_pattern.endswith("*"):
        return admit(connection, [key_pattern])
    admitted = 0
    for family in FAMILIES:
        lanes = LaneRepository(connection, family)
        after: str | None = ""
        while after is not None:
            keys = lanes.keys(after)
            admitted += lanes.admit([key for key in keys if key.startswith(key_pattern[:-1])])
            after = keys[-1] if keys else None
    return admitted
