"""Setting and clearing rates of keys, and how they are written and said."""

from __future__ import annotations

import math
from typing import Any, Final

import psycopg

from queue_workflows.drawing.words import on_one_line
from queue_workflows.repositories.limits.rates import RateRepository
from queue_workflows.settings.declared_limits import UNITS

HOW: Final = "write 5/s, 100/min, 1000/h or 10000/d"


def shown_rate(per_s: float) -> str:
    """A rate in the first unit in which it is a whole number, else in the first in which it is one."""
    fitting = [unit for unit, seconds in UNITS.items() if per_s * seconds >= 0.999_999]
    whole = [unit for unit in fitting if math.isclose(per_s * UNITS[unit], round(per_s * UNITS[unit]))]
    unit = (whole or fitting or ["d"])[0]
    return f"{per_s * UNITS[unit]:g}/{unit}"


def set_rate(
    connection: psycopg.Connection[Any],
    key: str,
    per_s: float,
    burst: float | None,
    *,
    actor: str,
    reason: str | None,
) -> dict[str, Any]:
    """Say how fast a key may be used; what to tell of it."""
    rates = RateRepository(connection)
    before = rates.fetch(key)
    now = rates.set(key, per_s, burst, actor=actor, reason=reason)
    was = None if before is None else {"per_s": before.tokens_per_s, "burst": before.burst}
    return {"key": key, "per_s": now.tokens_per_s, "burst": now.burst, "was_rate": was}


def said_of_rate(told: dict[str, Any]) -> str:
    """One line of a rate that was set."""
    was = told["was_rate"]
    before = "no rate of its own" if was is None else rate_rule(was["per_s"], was["burst"])
    return f"{on_one_line(told['key'])}: {rate_rule(told['per_s'], told['burst'])}, was {before}"


def rate_rule(per_s: float, burst: float) -> str:
    """A rate with how often at once."""
    return f"{shown_rate(per_s)}, {burst:g} at once"
