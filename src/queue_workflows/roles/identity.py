"""Who a worker is: one incarnation of one process, so that a reused name or pid inherits nothing."""

from __future__ import annotations

import os
import platform
import uuid
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

# Told by the supervisor to the worker that it starts, so that it can take back what a dead one held.
INCARNATION = "_QWF_INCARNATION"


@dataclass(frozen=True, slots=True)
class Identity:
    """The names under which a worker claims and beats."""

    host_label: str
    queue: str
    incarnation: str
    pid: int

    @property
    def worker_id(self) -> str:
        """host:queue:incarnation."""
        return f"{self.host_label}:{self.queue}:{self.incarnation}"

    @classmethod
    def take(cls, host_label: str, queue: str, environ: MutableMapping[str, str] = os.environ) -> Identity:
        """The incarnation that the supervisor gave, else one of our own."""
        given = environ.get(INCARNATION, "")
        incarnation = given if given.isalnum() else uuid.uuid4().hex[:12]
        # Kept for the case that this process executes itself anew: it is still the same to its supervisor.
        environ[INCARNATION] = incarnation
        return cls(host_label, queue, incarnation, os.getpid())


def versions() -> dict[str, Any]:
    """What a worker runs on, for its heartbeat."""
    from importlib.metadata import version

    return {"queue_workflows": version("queue-workflows"), "python": platform.python_version()}
