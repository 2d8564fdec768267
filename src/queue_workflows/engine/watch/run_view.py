"""One run as a whole, to be looked at or watched: its nodes with what each is at."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from queue_workflows.states import RUN_TERMINAL


@dataclass(frozen=True, slots=True)
class Activity:
    """One job of a node that a worker runs now; `index` is -1 unless the node has one job per element."""

    index: int
    worker: str
    attempt: int
    started_at: datetime | None
    fraction: float | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Elements:
    """How far the jobs of a `for_each` node are; a count of running ones may be a part of them."""

    total: int
    completed: int = 0
    skipped: int = 0
    failed: int = 0
    cancelled: int = 0
    running: int = 0

    @property
    def ended(self) -> int:
        """How many are over, however they ended."""
        return self.completed + self.skipped + self.failed + self.cancelled


@dataclass(frozen=True, slots=True)
class NodeOverview:
    """A node: `state` is the node's, or while it is active the status of its job."""

    id: str
    type: str = "task"
    parents: tuple[str, ...] = ()
    state: str = "waiting"
    module: str | None = None
    queue: str | None = None
    attempt: int = 0
    started_at: datetime | None = None
    finished_at: datetime | None = None
    elements: Elements | None = None
    activities: tuple[Activity, ...] = ()
    hold: str | None = None
    due_at: datetime | None = None
    worker: str | None = None
    error: str | None = None
    child_run: uuid.UUID | None = None

    @property
    def fraction(self) -> float | None:
        """From 0 to 1, if that is known: of a `for_each` node the elements count, begun ones by their own."""
        begun = sum(one.fraction or 0.0 for one in self.activities)
        if self.elements is not None:
            return (self.elements.ended + begun) / self.elements.total if self.elements.total else None
        return next((one.fraction for one in self.activities), None)


@dataclass(frozen=True, slots=True)
class RunOverview:
    """A run and its nodes, in the order of the document; `at` is the database's clock."""

    id: uuid.UUID
    workflow: str
    status: str
    at: datetime
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    priority: int = 5
    labels: Mapping[str, Any] = field(default_factory=dict)
    cancel_requested_at: datetime | None = None
    cancel_reason: str | None = None
    error: str | None = None
    outputs: Mapping[str, Any] | None = None
    nodes: tuple[NodeOverview, ...] = ()
    # Nodes by state, where there are too many to list them.
    counts: Mapping[str, int] = field(default_factory=dict)
    parent_run: uuid.UUID | None = None
    # Why it is not to begin yet.
    hold: str | None = None
    # How many events wait for an orchestrator, to a bound; and those that were given up.
    events: int = 0
    poisoned: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens to it, unless somebody retries it."""
        return self.status in RUN_TERMINAL
