"""What a worker is: one incarnation of one process, so that a reused name or pid inherits nothing."""

from __future__ import annotations

import os
import platform
import uuid
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

# Told by the supervisor to the worker that it starts, so that it can take back what a dead one held; and by a
# worker to the process that it turns into, with how many jobs it has done and which schema it has found.
INCARNATION: Final = "_QWF_INCARNATION"
JOBS_DONE: Final = "_QWF_JOBS_DONE"
SCHEMA: Final = "_QWF_SCHEMA"
# Told to one of the processes that take the place of a worker of several jobs: to run one, and its number.
PART: Final = "_QWF_PART"
# Told by a supervisor to all that it starts: the secret by which the agent of this host is found.
AGENT: Final = "_QWF_AGENT"


@dataclass(frozen=True, slots=True)
class Identity:
    """The names under which a worker claims and beats."""

    host_label: str
    queue: str
    incarnation: str
    pid: int
    jobs_done: int = 0
    # What was needed of which database, and was there; empty before anybody has looked.
    schema: str = ""
    # Of the processes that take the place of one with several jobs; 0 is none of these.
    part: int = 0
    # By what the agent of this host is found; empty where there is none.
    agent: str = field(default="", repr=False)

    @property
    def worker_id(self) -> str:
        """host:queue:incarnation."""
        return f"{self.host_label}:{self.queue}:{self.incarnation}"

    @classmethod
    def take(cls, host_label: str, queue: str, environ: MutableMapping[str, str] = os.environ) -> Identity:
        """The incarnation that the supervisor gave, else one of our own."""
        # Taken out: a worker that a job starts is another one.
        given, done = environ.pop(INCARNATION, ""), environ.pop(JOBS_DONE, "")
        schema, part = environ.pop(SCHEMA, ""), environ.pop(PART, "")
        agent = environ.pop(AGENT, "")
        incarnation = given if given.isalnum() else uuid.uuid4().hex[:12]
        jobs_done = int(done) if done.isdecimal() else 0
        number = int(part) if part.isdecimal() else 0
        return cls(host_label, queue, incarnation, os.getpid(), jobs_done, schema, number, agent)

    def hand_on(self, jobs_done: int, environ: MutableMapping[str, str] = os.environ) -> None:
        """Keep this identity when the process executes itself anew: to supervisor and counts it is one."""
        environ[INCARNATION] = self.incarnation
        environ[JOBS_DONE] = str(jobs_done)
        environ[SCHEMA] = self.schema
        if self.part:
            environ[PART] = str(self.part)
        if self.agent:
            environ[AGENT] = self.agent


def given_to(incarnation: str, part: int = 0) -> dict[str, str]:
    """What a supervisor tells a worker that it starts."""
    return {INCARNATION: incarnation} | ({PART: str(part)} if part else {})


@cache
def versions() -> dict[str, Any]:
    """What a worker runs on, for its heartbeat."""
    from queue_workflows import __version__

    return {"queue_workflows": __version__, "python": platform.python_version()}
