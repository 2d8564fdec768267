"""Node jobs and the durable outbox of their ends."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from sqlalchemy import (
    CheckConstraint,
    ForeignKey,
    Identity,
    Index,
    Integer,
    Sequence,
    SmallInteger,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from queue_workflows.models.base import Base, store_with
from queue_workflows.models.claimable import (
    JOB_STORAGE,
    Claimable,
    claimable_constraints,
    claimable_indexes,
)
from queue_workflows.states import NODE_STATUSES

NODE_POSITION = Sequence("workflow_node_jobs_position_seq", metadata=Base.metadata)


def _warm_indexes() -> Iterator[Index]:
    """The order of workers that keep models loaded, from either end of `host_priority`."""
    here = text("COALESCE(status = 'queued' AND queue = 'gpu', false)")
    for name, host_priority in (("high", text("host_priority DESC")), ("low", text("host_priority"))):
        order = (text("priority DESC"), host_priority, "position")
        yield Index(f"ix_workflow_node_jobs_any_{name}", *order, postgresql_where=here)
        yield Index(f"ix_workflow_node_jobs_model_{name}", "required_model", *order, postgresql_where=here)


class WorkflowNodeJob(Claimable, Base):
    """A row that executes a node of a run: one, or one per `for_each` element."""

    __tablename__ = "workflow_node_jobs"

    id: Mapped[int] = mapped_column(Identity(always=False), primary_key=True)
    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("workflow_runs.id", ondelete="CASCADE"))
    node_id: Mapped[str]
    # Index of the `for_each` element; -1 and not NULL, so that the unique key holds for plain nodes too.
    map_index: Mapped[int] = mapped_column(Integer, server_default=text("-1"))
    kind: Mapped[str] = mapped_column(server_default="task")
    # A name for the resolver's allow-list, never imported as it stands.
    node_module: Mapped[str | None]
    plugin: Mapped[str | None]
    # Order of claims within a priority.
    position: Mapped[int] = mapped_column(server_default=NODE_POSITION.next_value())
    # A host's preference among equals; its direction is the host's own.
    host_priority: Mapped[int] = mapped_column(SmallInteger, server_default=text("0"))
    required_model: Mapped[str | None]
    # Refs as written; resolved when the node executes.
    inputs: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    # The element of a `for_each` that this job is for; JSON, so its null is one too.
    item: Mapped[Any | None] = mapped_column(JSONB(none_as_null=True))
    # What the node returned; downstream nodes refer into it.
    context_delta: Mapped[dict[str, Any] | None]
    step: Mapped[int | None] = mapped_column(SmallInteger)
    # Outside the worker's concurrency and the step's barrier.
    background: Mapped[bool] = mapped_column(server_default=text("false"))
    # May go on without its lease while the database is away.
    survives_outage: Mapped[bool] = mapped_column(server_default=text("false"))
    # The run's, as the claim of hooks goes by it; NULL until some job of the run was claimed.
    pinned_host: Mapped[str | None]
    # When a node that awaits input gives up waiting; NULL is never.
    expires_at: Mapped[datetime | None]

    __table_args__ = (
        *claimable_constraints(NODE_STATUSES),
        CheckConstraint("map_index >= -1", name="map_index"),
        UniqueConstraint("run_id", "node_id", "map_index", name="uq_workflow_node_jobs_node"),
        *claimable_indexes("workflow_node_jobs"),
        # The claim of hooks: those of this host, then those of no host yet; background ones apart.
        Index(
            "ix_workflow_node_jobs_hooks",
            text("COALESCE(pinned_host, '')"),
            "background",
            text("priority DESC"),
            "position",
            postgresql_where=text("COALESCE(status = 'queued' AND queue = 'hooks', false)"),
        ),
        *_warm_indexes(),
        # Jobs that wait for an answer, by when their time is up.
        Index(
            "ix_workflow_node_jobs_awaiting",
            "expires_at",
            postgresql_where=text("status = 'awaiting_input'"),
        ),
    )


class WorkflowDispatchEvent(Base):
    """What the orchestrator has yet to act on; written in the transaction that ended the node."""

    __tablename__ = "workflow_dispatch_events"

    id: Mapped[int] = mapped_column(Identity(always=False), primary_key=True)
    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("workflow_runs.id", ondelete="CASCADE"))
    # NULL for events of the run itself.
    node_job_id: Mapped[int | None] = mapped_column(ForeignKey("workflow_node_jobs.id", ondelete="CASCADE"))
    generation: Mapped[int] = mapped_column(Integer)
    attempt: Mapped[int] = mapped_column(Integer)
    kind: Mapped[str]
    payload: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    tries: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    last_error: Mapped[str | None]
    next_try_at: Mapped[datetime] = mapped_column(server_default=func.now())
    # Given up after too many tries; kept for the operator, out of the way of others.
    poisoned_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())

    __table_args__ = (
        # A second event for one end of one attempt is a bug or a replay; either way it is the same event.
        UniqueConstraint(
            "node_job_id", "generation", "attempt", "kind", name="uq_workflow_dispatch_events_end"
        ),
        # Drained per run, in order of id; never read by id > cursor.
        Index("ix_workflow_dispatch_events_run", "run_id", "id"),
        # Ends of runs for which hooks are to be called.
        Index(
            "ix_workflow_dispatch_events_finished",
            "next_try_at",
            postgresql_where=text("kind = 'run_finished' AND poisoned_at IS NULL"),
        ),
        Index(
            "ix_workflow_dispatch_events_poisoned",
            "poisoned_at",
            postgresql_where=text("poisoned_at IS NOT NULL"),
        ),
    )


store_with(WorkflowNodeJob, **JOB_STORAGE)
store_with(
    WorkflowDispatchEvent,
    autovacuum_vacuum_scale_factor=0,
    autovacuum_vacuum_threshold=1000,
    autovacuum_vacuum_cost_delay=0,
)
