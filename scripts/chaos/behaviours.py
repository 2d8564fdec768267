"""What a task may do to its worker, and what its job may come to: the table that tasks and model share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Any, Final

GOOD: Final = ("completed",)
BAD: Final = ("failed",)


@dataclass(frozen=True)
class Behaviour:
    """One of them.

    `ends` are the statuses in which its job may end when nobody else interferes. `kills` says that the
    attempt takes its process along, `hangs` that it ends by its timeout alone. `known` names an open defect,
    for the switch that leaves known defects out. `node` says whether it may be a node of a workflow.
    """

    name: str
    run: Callable[[dict[str, Any], Any], Any]
    ends: tuple[str, ...]
    kills: bool = False
    hangs: bool = False
    # Its attempt may harm the process so that others in it fail to go on; they must go on elsewhere.
    harms: bool = False
    known: str = ""
    node: bool = True

    @property
    def is_async(self) -> bool:
        """Whether it runs on the worker's event loop."""
        return iscoroutinefunction(self.run)


BEHAVIOURS: Final[dict[str, Behaviour]] = {}


def behaviour(
    *ends: str,
    kills: bool = False,
    hangs: bool = False,
    harms: bool = False,
    known: str = "",
    node: bool = True,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add a function to the table, under its own name."""

    def add(run: Callable[..., Any]) -> Callable[..., Any]:
        name = run.__name__
        # A second one of the name would silently take the first one's place.
        assert name not in BEHAVIOURS, name
        BEHAVIOURS[name] = Behaviour(name, run, ends, kills, hangs, harms, known, node)
        return run

    return add
