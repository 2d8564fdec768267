"""What a ticker does about one schedule at one moment: which ticks become jobs, and when to look again.

What fell due within the last seconds comes, whatever the policy: a pause of that length is nobody's absence.
Beyond that the policy of the schedule decides: `latest` takes the newest tick that is due, `none` does so if
that is on time, which it is for a minute, so that no deployment costs one, and `all` takes a capped number.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from queue_workflows.engine.schedules.cron import last_ticks, next_tick
from queue_workflows.states import CatchUp

PAUSE_S: Final = 5
ON_TIME_S: Final = 60.0
_SECOND: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Times:
    """When a schedule ticks; `reckoned` is the first tick that is not inserted yet.

    Where nobody has reckoned that, every tick after `since` is still to come.
    """

    cron: str
    timezone: str
    catch_up: str
    catch_up_cap: int
    since: datetime
    reckoned: datetime | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The ticks to insert, in order, and the one to wait for; None if there never is one again."""

    ticks: tuple[datetime, ...]
    next_at: datetime | None


def plan(times: Times, now: datetime) -> Plan:
    """What is due of a schedule at `now`."""
    cron, timezone = times.cron, times.timezone
    # Adding to a time in a zone with a jumping clock gives wall-clock time, up to an hour beside the moment.
    now = now.astimezone(UTC)
    since = times.since.astimezone(UTC)
    if times.reckoned is not None:
        since = times.reckoned.astimezone(UTC) - _SECOND
    first = next_tick(cron, timezone, since)
    if first is None or first > now:
        return Plan((), first)
    if first > now - timedelta(seconds=PAUSE_S):
        due = last_ticks(cron, timezone, since, now, PAUSE_S)
    elif times.catch_up == CatchUp.ALL:
        due = last_ticks(cron, timezone, since, now, times.catch_up_cap)
    else:
        due = last_ticks(cron, timezone, since, now, 1)
        if times.catch_up == CatchUp.NONE:
            due = [tick for tick in due if tick > now - timedelta(seconds=ON_TIME_S)]
    return Plan(tuple(due), next_tick(cron, timezone, now))


def begins_at(name: str, tick: datetime, jitter_s: float) -> datetime:
    """When the job of a tick may begin: later by the same part of the jitter for every caller."""
    if not jitter_s:
        return tick
    digest = hashlib.sha256(f"{name}\n{int(tick.timestamp())}".encode()).digest()
    return tick + timedelta(seconds=jitter_s * int.from_bytes(digest[:8]) / 2**64)


def reason_of(name: str, tick: datetime) -> str:
    """What the job of a tick is told as its reason."""
    return f"schedule {name} at {tick:%Y-%m-%dT%H:%M:%SZ}"
