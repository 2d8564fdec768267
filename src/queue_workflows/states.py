"""The statuses of runs, nodes, jobs and programs, and the one table of legal moves between them.

CHECK constraints keep what a row looks like in each status, and each statement that moves a row names the
status it moves it from; `check_move` is what both are held against. The diagrams in
docs/reference/states.md are drawn from these tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from queue_workflows.errors import IllegalTransition


class RunStatus(StrEnum):
    """A run waits to be expanded, runs, and ends."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class JobStatus(StrEnum):
    """A job of either family; only a node job may be awaiting input."""

    SCHEDULED = "scheduled"
    QUEUED = "queued"
    RUNNING = "running"
    AWAITING_INPUT = "awaiting_input"
    COMPLETED = "completed"
    SKIPPED = "skipped"
    FAILED = "failed"
    CANCELLED = "cancelled"


class NodeState(StrEnum):
    """A node of a run: it waits for what it depends on, is worked on by its jobs, and is over."""

    WAITING = "waiting"
    ACTIVE = "active"
    COMPLETED = "completed"
    SKIPPED = "skipped"
    FAILED = "failed"
    CANCELLED = "cancelled"


class JobFamily(StrEnum):
    """Which of the two tables a job's id is of."""

    NODE = "node"
    INGEST = "ingest"


class SubmissionStatus(StrEnum):
    """What became of an answer to a parked node."""

    PENDING = "pending"
    ACCEPTED = "accepted"
    REJECTED = "rejected"


class WorkerState(StrEnum):
    """What a worker says of itself in its heartbeat."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    PAUSED = "paused"
    PARKED = "parked"
    STOPPING = "stopping"
    QUARANTINED = "quarantined"


class DesiredState(StrEnum):
    """What an operator wants of a host's queue; the strictest matching row wins."""

    ON = "on"
    PAUSE = "pause"
    OFF = "off"


class CatchUp(StrEnum):
    """What a schedule does about ticks that passed while nobody looked."""

    NONE = "none"
    LATEST = "latest"
    ALL = "all"


class StepKind(StrEnum):
    """What a stored step of a durable function was."""

    STEP = "step"
    SLEEP = "sleep"
    EVENT = "event"
    CHILD = "child"
    CHILDREN = "children"
    NOW = "now"
    ROUND = "round"


class StepStatus(StrEnum):
    """A step that is stored has come to its result or its error; only a wait is stored before it is over."""

    DONE = "done"
    FAILED = "failed"
    WAITING = "waiting"


class BinaryStatus(StrEnum):
    """A binary that a plugin needs on one machine."""

    QUEUED = "queued"
    RUNNING = "running"
    INSTALLED = "installed"
    FAILED = "failed"


Moves = Mapping[str, frozenset[str]]

RUN_TERMINAL: Final = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})
JOB_TERMINAL: Final = frozenset(
    {JobStatus.COMPLETED, JobStatus.SKIPPED, JobStatus.FAILED, JobStatus.CANCELLED}
)
# Of ingest jobs those that move to a history by months; failures are few, and looked for by what they say.
HISTORY_STATUSES: Final = (JobStatus.CANCELLED, JobStatus.COMPLETED, JobStatus.SKIPPED)
# What is known of a program; either is looked at again.
BINARY_FINAL: Final = frozenset({BinaryStatus.INSTALLED, BinaryStatus.FAILED})
NODE_OVER: Final = frozenset({NodeState.COMPLETED, NodeState.SKIPPED, NodeState.FAILED, NodeState.CANCELLED})
INGEST_STATUSES: Final = tuple(status for status in JobStatus if status is not JobStatus.AWAITING_INPUT)
NODE_STATUSES: Final = tuple(JobStatus)

# Terminal -> running again is an operator's `run retry`, which reopens the run and some of its jobs.
RUN_MOVES: Final[Moves] = {
    RunStatus.QUEUED: frozenset({RunStatus.RUNNING, RunStatus.FAILED, RunStatus.CANCELLED}),
    RunStatus.RUNNING: RUN_TERMINAL,
    RunStatus.COMPLETED: frozenset({RunStatus.RUNNING}),
    RunStatus.FAILED: frozenset({RunStatus.RUNNING}),
    RunStatus.CANCELLED: frozenset({RunStatus.RUNNING}),
}

# Waiting ends at once where nothing has to run; an operator's `run retry` lets what is over wait again. The
# loss of a session does so too, and lets wait what is active.
GRAPH_MOVES: Final[Moves] = {
    NodeState.WAITING: NODE_OVER | {NodeState.ACTIVE},
    NodeState.ACTIVE: NODE_OVER | {NodeState.WAITING},
    **{state: frozenset({NodeState.WAITING}) for state in NODE_OVER},
}

# Terminal -> queued is an operator's retry and opens a new generation; nothing else leaves a terminal status.
# Scheduled -> running is a claim from a hold: of a job that is left to hosts where its lock is free. In the
# queue the one where that is held could claim it as well, and would put it aside again.
INGEST_MOVES: Final[Moves] = {
    JobStatus.SCHEDULED: frozenset({JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.CANCELLED}),
    JobStatus.QUEUED: frozenset({JobStatus.RUNNING, JobStatus.SCHEDULED, JobStatus.CANCELLED}),
    JobStatus.RUNNING: JOB_TERMINAL | {JobStatus.QUEUED, JobStatus.SCHEDULED},
    **{status: frozenset({JobStatus.QUEUED}) for status in JOB_TERMINAL},
}

# A parked node is answered (completed), asked again (queued), expires (failed) or is cancelled. A `run retry`
# opens a node as if it were new, so it may also be parked or skipped at once, or be for later.
NODE_MOVES: Final[Moves] = {
    **INGEST_MOVES,
    JobStatus.QUEUED: INGEST_MOVES[JobStatus.QUEUED] | {JobStatus.SKIPPED, JobStatus.AWAITING_INPUT},
    JobStatus.RUNNING: INGEST_MOVES[JobStatus.RUNNING] | {JobStatus.AWAITING_INPUT},
    JobStatus.AWAITING_INPUT: frozenset(
        {JobStatus.COMPLETED, JobStatus.QUEUED, JobStatus.FAILED, JobStatus.CANCELLED}
    ),
    **{
        status: frozenset(
            {JobStatus.QUEUED, JobStatus.SCHEDULED, JobStatus.AWAITING_INPUT, JobStatus.SKIPPED} - {status}
        )
        for status in JOB_TERMINAL
    },
}

# Found by a hook of its own, a program is installed without anybody's claim. What could not be installed is
# tried again after a while, and what is gone from the disk at once; so neither is the end of it.
BINARY_MOVES: Final[Moves] = {
    BinaryStatus.QUEUED: frozenset({BinaryStatus.RUNNING, BinaryStatus.INSTALLED}),
    BinaryStatus.RUNNING: frozenset({BinaryStatus.INSTALLED, BinaryStatus.FAILED, BinaryStatus.QUEUED}),
    BinaryStatus.INSTALLED: frozenset({BinaryStatus.QUEUED}),
    BinaryStatus.FAILED: frozenset({BinaryStatus.RUNNING, BinaryStatus.QUEUED, BinaryStatus.INSTALLED}),
}

MOVES: Final[Mapping[str, Moves]] = {
    "run": RUN_MOVES,
    "node": GRAPH_MOVES,
    "node job": NODE_MOVES,
    "ingest job": INGEST_MOVES,
    "binary": BINARY_MOVES,
}


def check_move(family: str, old: str, new: str) -> None:
    """Refuse a move that the table does not have; `family` is a key of MOVES."""
    if new not in MOVES[family].get(old, frozenset()):
        raise IllegalTransition(family, old, new)
