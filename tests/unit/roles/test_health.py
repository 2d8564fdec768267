"""What a probe is told, judged from a pulse and a clock that is given."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from queue_workflows.roles.probes.health import STARTING, Pulse, judge

PULSE = Pulse(
    worker_id="here:fetch:1", state="idle", main_at=100, guardian_at=100, database_at=100, is_busy=False
)


def judged(now: float = 101, **changes: object) -> tuple[bool, bool]:
    health = judge(replace(PULSE, **changes), now=now, patience_s=30, poll_s=1)
    assert (health.reasons == ()) == health.ready
    return health.live, health.ready


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, (True, True)),
        ({"is_busy": True, "main_at": -9999.0}, (True, True)),
        ({"main_at": 69.0}, (False, False)),
        ({"main_at": 71.0}, (True, True)),
        ({"guardian_at": 70.0}, (False, False)),
        ({"guardian_at": 70.0, "is_busy": True}, (False, False)),
        ({"database_at": 70.0}, (True, False)),
        ({"obstacle": "it was told to stop"}, (True, False)),
    ],
)
def test_live_and_ready(changes, verdict):
    """Both threads have to get on, a job excuses the main one; without a database it is not ready."""
    assert judged(**changes) == verdict


def test_one_that_starts_is_live():
    """Restarting it would not bring its database any sooner."""
    told = json.loads(STARTING.text())
    assert (told["live"], told["ready"], told["worker_id"]) == (True, False, None)
