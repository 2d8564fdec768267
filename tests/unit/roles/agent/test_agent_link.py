"""What a worker and its host's agent say to each other arrives as it was said, or they part."""

from __future__ import annotations

import json
import secrets
import socket
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from queue_workflows.repositories.claims.hold_lease import Found, Watched
from queue_workflows.repositories.workers.control import Control
from queue_workflows.roles.agent_link.address import AgentGone, Link, serving
from queue_workflows.roles.agent_link.watch import STALE_S, STEADY_S, AgentWatch, Told
from queue_workflows.states import DesiredState

NOBODY: frozenset[int] = frozenset()
PAUSED = Told(
    Watched(
        NOBODY,
        NOBODY,
        7,
        Control(DesiredState.PAUSE, 7, "*", "fetch", "why", "me", datetime(2026, 1, 2, tzinfo=UTC)),
    ),
    Found(queued=True, held=frozenset({"host_lock", "unknown_task"})),
    sweeps=True,
)
ON = Told(Watched(NOBODY, NOBODY, 0, None), Found(queued=False, held=frozenset()))


@pytest.fixture
def secret() -> str:
    return secrets.token_hex(8)


def came_in(door: socket.socket) -> Link:
    """The agent's end of what came last."""
    came, _ = door.accept()
    return Link(came)


def shout(agent: Link) -> None:
    """More than any socket holds."""
    for _ in range(1_000_000):
        agent.say("note", "channel", "x" * 1_000)


@pytest.mark.parametrize("told", [PAUSED, ON])
def test_what_is_told_comes_back_from_json(told: Told) -> None:
    """A wish with its time, and what there is in the queue."""
    assert Told.of(*json.loads(json.dumps(told.words()))) == told


def test_nobody_is_there(secret: str) -> None:
    """Without an agent there is no link, and nothing to wait for."""
    assert Link.dial(secret) is None


def test_each_message_arrives_once_and_then_the_end(secret: str) -> None:
    """The secret comes first; what was said before the end is heard before it."""
    with serving(secret) as door:
        link = Link.dial(secret)
        assert link is not None
        agent = came_in(door)
        link.say("idle", 1, "fetch")
        link.say("busy", 2, "fetch")
        link.close()
        assert agent.heard() == [["secret", secret], ["idle", 1, "fetch"], ["busy", 2, "fetch"]]
        with pytest.raises(AgentGone):
            agent.heard()
        agent.close()


def test_one_that_does_not_read_is_left(secret: str) -> None:
    """What no more fits into the socket ends it: the other end is to notice that it has missed something."""
    with serving(secret) as door:
        link = Link.dial(secret)
        assert link is not None
        agent = came_in(door)
        with pytest.raises(AgentGone):
            shout(agent)


def test_a_watch_is_steady_while_it_is_told_something(secret: str) -> None:
    """It is believed after some seconds, and no more when nothing has come for some."""
    with serving(secret) as door:
        watch = AgentWatch(secret, host_label="here", queue="fetch")
        assert watch.told(10.0) is None
        agent = came_in(door)
        assert agent.heard() == [["secret", secret], ["watch", "here", "fetch"]]
        agent.say("told", *ON.words())
        assert (watch.told(11.0), watch.is_steady(11.0)) == (replace(ON, heard_at=11.0), False)
        agent.say("told", *PAUSED.words())
        heard = replace(PAUSED, heard_at=12.0)
        assert (watch.told(12.0), watch.is_steady(11.0 + STEADY_S)) == (heard, True)
        assert watch.told(12.5) == heard
        assert watch.beat("here:fetch:1", {"state": "idle"}, 12.5)
        assert agent.heard() == [["beat", "here:fetch:1", {"state": "idle"}, 12.5]]
        assert watch.told(12.1 + STALE_S) is None
        agent.say("told", *ON.words())
        assert (watch.told(20.0), watch.is_steady(20.0)) == (replace(ON, heard_at=20.0), False)
        agent.say("nonsense")
        assert watch.told(21.0) is None
        assert watch.link is None
