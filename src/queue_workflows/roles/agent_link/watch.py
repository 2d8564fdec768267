"""What a worker that rests is told by the host agent each second, and its heartbeats, which the agent writes.

The agent writes a heartbeat for each that it is told, and none by itself: it says no more than the worker has
said. What the agent tells is believed for as long as it comes regularly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Self

from queue_workflows.repositories.claims.hold_lease import Found, Watched
from queue_workflows.repositories.workers.control import Control
from queue_workflows.roles.agent_link.address import AgentGone, Link
from queue_workflows.states import DesiredState

# How old what was told may be; the agent tells something each second.
STALE_S: Final = 2.5
# How long it must have told something before a connection is let go of for that.
STEADY_S: Final = 3.0
_AGAIN_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Told:
    """The operator's wish, what there is in the queue, and whether this worker is to sweep for others."""

    watched: Watched
    found: Found
    sweeps: bool = False
    # When the worker read it.
    heard_at: float = 0.0

    def words(self) -> list[Any]:
        """As JSON."""
        wish = self.watched.control
        control = wish and [
            wish.desired,
            wish.version,
            wish.host_label,
            wish.queue,
            wish.reason,
            wish.actor,
            wish.expires_at and wish.expires_at.isoformat(),
        ]
        found = self.found
        return [self.watched.control_version, control, found.queued, sorted(found.held), self.sweeps]

    @classmethod
    def of(
        cls, version: int, control: list[Any] | None, queued: bool, held: Iterable[str], sweeps: bool
    ) -> Self:
        """From `words`."""
        wish = None
        if control is not None:
            desired, number, host_label, of_queue, reason, actor, until = control
            expires_at = None if until is None else datetime.fromisoformat(until)
            wish = Control(DesiredState(desired), number, host_label, of_queue, reason, actor, expires_at)
        none: frozenset[int] = frozenset()
        return cls(Watched(none, none, version, wish), Found(queued, frozenset(held)), sweeps)


class AgentWatch:
    """One guardian's; it is connected while its worker rests."""

    def __init__(self, secret: str, *, host_label: str, queue: str) -> None:
        self._secret = secret
        self._names = host_label, queue
        self._link: Link | None = None
        self._try_at = 0.0
        self._since = 0.0
        self._told: Told | None = None

    @property
    def link(self) -> Link | None:
        """What to wait on."""
        return self._link

    def told(self, now: float) -> Told | None:
        """What the agent says; None while it has not for some seconds."""
        if self._link is None and now >= self._try_at:
            self._try_at = now + _AGAIN_S
            self._link = Link.dial(self._secret)
            self._say("watch", *self._names)
        try:
            messages = [] if self._link is None else self._link.heard()
            for _, *words in messages[-1:]:
                self._since = self._since if self._is_fresh(now) else now
                self._told = replace(Told.of(*words), heard_at=now)
        except (AgentGone, TypeError, ValueError):
            # Also what another version tells.
            self.leave()
            return None
        return self._told if self._is_fresh(now) else None

    def is_steady(self, now: float) -> bool:
        """Whether it has told something regularly for a while."""
        return self._is_fresh(now) and now - self._since >= STEADY_S

    def _is_fresh(self, now: float) -> bool:
        return self._told is not None and now - self._told.heard_at <= STALE_S

    def beat(self, worker_id: str, said: Mapping[str, Any], now: float) -> bool:
        """Have a heartbeat of this moment written; whether the agent was told."""
        return self._say("beat", worker_id, said, now)

    def leave(self) -> None:
        """Rest no more."""
        link, self._link, self._told = self._link, None, None
        if link is not None:
            link.close()

    def _say(self, *words: Any) -> bool:
        try:
            if self._link is not None:
                self._link.say(*words)
        except AgentGone:
            self.leave()
        return self._link is not None
