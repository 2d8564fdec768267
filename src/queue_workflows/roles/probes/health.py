"""What a probe is told of a worker, or of an orchestrator.

Live: both its threads get on. The main one may be at a job for as long as that may last, which the guardian
watches; without a job it has to come around. A worker that is not live should be restarted.

Ready: it can claim. A worker that is not ready (no database, paused, stopping) needs no restart.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from json import dumps
from typing import Final


@dataclass(frozen=True)
class Pulse:
    """When each part of a worker last got on, on the monotonic clock, and what it is at."""

    worker_id: str
    state: str
    main_at: float
    guardian_at: float
    database_at: float
    is_busy: bool
    obstacle: str | None = None


@dataclass(frozen=True)
class Health:
    """The answer to a probe; `reasons` say what is wrong, and are empty where nothing is."""

    live: bool
    ready: bool
    worker_id: str | None
    state: str
    reasons: tuple[str, ...] = ()

    def text(self) -> str:
        """This answer as a probe reads it."""
        return dumps(asdict(self) | {"pid": os.getpid()})


STARTING: Final = Health(
    live=True,
    ready=False,
    worker_id=None,
    state="starting",
    reasons=("it waits for its database and schema",),
)


STOPPING: Final = Health(
    live=True, ready=False, worker_id=None, state="stopping", reasons=("it was told to stop",)
)


def judge(pulse: Pulse, *, now: float, patience_s: float, poll_s: float) -> Health:
    """What this pulse means; `patience_s` is how long a thread may take for one round."""
    dead = []
    if now - pulse.guardian_at > patience_s:
        dead.append(f"its guardian did nothing for {now - pulse.guardian_at:.0f} s")
    if not pulse.is_busy and now - pulse.main_at > patience_s + poll_s:
        dead.append(f"its main loop did nothing for {now - pulse.main_at:.0f} s")
    unready = [pulse.obstacle] if pulse.obstacle is not None else []
    if now - pulse.database_at > patience_s:
        unready.append(f"the database did not answer for {now - pulse.database_at:.0f} s")
    return Health(
        live=not dead,
        ready=not dead and not unready,
        worker_id=pulse.worker_id,
        state=pulse.state,
        reasons=(*dead, *unready),
    )


class HealthReport:
    """What to say at the moment; `look` is replaced as the worker gets further."""

    def __init__(self) -> None:
        self.look: Callable[[], Health] = lambda: STARTING
