"""Which of the living workers is dead in truth: flagged by others, or silent for too long.

Silence is measured by our own clock, from when a heartbeat was last seen to *change*: no step of the server's
clock or of ours can make one look old. While the database is away nobody can be heard, so silence counts from
its return, and a flag that somebody set meanwhile counts only when its worker had time to clear it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import inf

from queue_workflows.repositories.workers.heartbeats import Sign


@dataclass(frozen=True)
class Signs:
    """What was read at one moment; `steady_since` is when the database was last away, or the machine asleep.

    `switched_on` are those of the queues asked about that the operator does not want off; `suspects` says
    of others whether suspects wait there.
    """

    read_at: float = -inf
    steady_since: float = -inf
    beats: Mapping[str, Sign] = field(default_factory=dict)
    switched_on: frozenset[str] = frozenset()
    suspects: Mapping[str, bool] = field(default_factory=dict)


@dataclass
class _Life:
    since: float
    seen: datetime | None = None


class Liveness:
    """Remembers when each worker was last heard of; told the time by what it is given."""

    def __init__(self, *, stale_s: float, first_s: float) -> None:
        self._stale_s = stale_s
        self._first_s = first_s
        self._lives: dict[str, _Life] = {}

    def begin(self, worker_id: str, now: float) -> None:
        """A worker was started."""
        self._lives[worker_id] = _Life(now)

    def end(self, worker_id: str) -> None:
        """Judge this worker no more: it has ended, or is being ended."""
        self._lives.pop(worker_id, None)

    def judge(self, signs: Signs) -> dict[str, str]:
        """Which workers have to be killed, and why."""
        judged = {name: self._judge(life, signs, signs.beats.get(name)) for name, life in self._lives.items()}
        return {name: reason for name, reason in judged.items() if reason is not None}

    def _judge(self, life: _Life, signs: Signs, sign: Sign | None) -> str | None:
        if sign is not None and sign.last_seen != life.seen:
            life.since, life.seen = signs.read_at, sign.last_seen
        if sign is not None and sign.flagged and signs.read_at - signs.steady_since > self._stale_s:
            return "flagged dead"
        silence = signs.read_at - max(life.since, signs.steady_since)
        if life.seen is None:
            return f"no first heartbeat within {self._first_s:g} s" if silence > self._first_s else None
        return f"no heartbeat for {silence:.0f} s" if silence > self._stale_s else None
