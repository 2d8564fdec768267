"""Setting and clearing rates of keys, and how they are written and said."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from queue_workflows.drawing.words import on_one_line
from queue_workflows.repositories.limits.rates import DeclaredRate, RateRepository
from queue_workflows.settings.declared_limits import UNITS
from queue_workflows.views.limits.rates import read_rates

HOW: Final = "write 5/s, 100/min, 1000/h or 10000/d"


def shown_rate(per_s: float) -> str:
    """A rate in the first unit in which it is a whole number, else in the first in which it is one."""
    fitting = [unit for unit, seconds in UNITS.items() if per_s * seconds >= 0.999_999]
    whole = [unit for unit in fitting if math.isclose(per_s * UNITS[unit], round(per_s * UNITS[unit]))]
    unit = (whole or fitting or ["d"])[0]
    return f"{per_s * UNITS[unit]:g}/{unit}"


@dataclass(frozen=True, slots=True)
class RateChange:
    """A key's rate as it is now and as it was, None for none, and what apps declare of it."""

    key: str
    per_s: float
    burst: float
    was: dict[str, float] | None
    declared: DeclaredRate | None

    def as_json(self) -> dict[str, Any]:
        """What `qwf limits set KEY --rate … --json` prints."""
        return {"key": self.key, "per_s": self.per_s, "burst": self.burst, "was_rate": self.was}


def set_rate(
    connection: psycopg.Connection[Any],
    key: str,
    per_s: float,
    burst: float | None,
    *,
    actor: str,
    reason: str | None,
) -> RateChange:
    """Say how fast a key may be used; what to tell of it."""
    seen = read_rates(connection, [key])
    was = [{"per_s": seen.per_s(row), "burst": row.burst} for row in seen.rates]
    now = RateRepository(connection).set(key, per_s, burst, actor=actor, reason=reason)
    return RateChange(key, now.tokens_per_s, now.burst, was[0] if was else None, seen.declared.get(key))


def said_of_rate(change: RateChange) -> str:
    """One line of a rate that was set."""
    return f"{on_one_line(change.key)}: {rate_rule(change.per_s, change.burst)}, was {_said_before(change)}"


def _said_before(change: RateChange) -> str:
    """What it was, with the apps that declare it, also where an operator's word stood above theirs."""
    was, declared = change.was, change.declared
    rate = "no rate of its own" if was is None else rate_rule(was["per_s"], was["burst"])
    if declared is None:
        return rate
    by = f"declared by {on_one_line(', '.join(declared.owners))}"
    is_theirs = was is not None and math.isclose(was["per_s"], declared.per_s)
    return f"{rate}, {by}" if is_theirs else f"{rate}; {by}: {shown_rate(declared.per_s)}"


def rate_rule(per_s: float, burst: float) -> str:
    """A rate with how often at once."""
    return f"{shown_rate(per_s)}, {burst:g} at once"
