"""Workflow runs, their nodes, and the answers to those that are parked."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Identity, Index, Integer, SmallInteger, func, text
from sqlalchemy.orm import Mapped, mapped_column

from queue_workflows.models import uuid7
from queue_workflows.models.base import Base, among, one_of, store_with
from queue_workflows.states import RUN_TERMINAL, NodeState, RunStatus, SubmissionStatus


class WorkflowRun(Base):
    """One execution of a workflow."""

    __tablename__ = "workflow_runs"

    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid7)
    workflow_name: Mapped[str]
    # 'node' is expanded by our dispatcher; any other mode belongs to the host app.
    mode: Mapped[str] = mapped_column(server_default="node")
    # A snapshot, so that a deploy never changes a run in flight; the hash groups runs of one document.
    spec: Mapped[dict[str, Any]]
    spec_hash: Mapped[str]
    inputs: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    outputs: Mapped[dict[str, Any] | None]
    status: Mapped[str] = mapped_column(server_default=RunStatus.QUEUED.value)
    priority: Mapped[int] = mapped_column(SmallInteger, server_default=text("5"))
    parent_run_id: Mapped[uuid.UUID | None] = mapped_column(
        ForeignKey("workflow_runs.id", ondelete="CASCADE")
    )
    # No foreign key: that job is a row of the parent run and goes with it.
    parent_node_job_id: Mapped[int | None]
    depth: Mapped[int] = mapped_column(SmallInteger, server_default=text("0"))
    # For hook pipelines, where jobs read each other's files: the host of the first claim.
    pinned_host: Mapped[str | None]
    seal_requested_at: Mapped[datetime | None]
    dedupe_key: Mapped[str | None]
    labels: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    # The host app's own grouping; opaque to us.
    parcel_id: Mapped[str | None]
    error: Mapped[dict[str, Any] | None]
    # Nodes that are not over, that have jobs, and that failed; the dispatcher's, as `stopping` is.
    nodes_left: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    nodes_active: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    nodes_failed: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    # Why nothing of it starts any more.
    stopping: Mapped[str | None]
    cancel_requested_at: Mapped[datetime | None]
    cancel_reason: Mapped[str | None]
    # Why a queued run is not to begin yet.
    hold_reason: Mapped[str | None]
    # How many runs of its tree may be open at once; of the run with which the tree began.
    max_open_runs: Mapped[int | None] = mapped_column(Integer)
    # The run that has such a cap for this one: itself, or one above it, which goes no earlier.
    capped_by: Mapped[uuid.UUID | None]
    # Has come to wait for the runs below it: it does nothing but that, and so is not open to the cap.
    awaits_descendants: Mapped[bool] = mapped_column(server_default=text("false"))
    # Was over before those below it were, so that one above it that waits for them must look further down.
    left_descendants: Mapped[bool] = mapped_column(server_default=text("false"))
    # The run that has set up the tree which this one is of, as that is for itself; no foreign key, as above.
    set_up_by: Mapped[uuid.UUID | None]
    # W3C trace context of the code that started the run.
    traceparent: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]

    __table_args__ = (
        CheckConstraint(among("status", RunStatus), name="status"),
        CheckConstraint(
            f"({among('status', sorted(RUN_TERMINAL))}) = (finished_at IS NOT NULL)",
            name="terminal_is_finished",
        ),
        CheckConstraint("priority BETWEEN 0 AND 9", name="priority"),
        CheckConstraint("depth >= 0", name="depth"),
        CheckConstraint(among("stopping", ("fail_fast", "cancel")), name="stopping"),
        CheckConstraint("max_open_runs > 0", name="max_open_runs"),
        Index(
            "uq_workflow_runs_dedupe",
            "workflow_name",
            "dedupe_key",
            unique=True,
            postgresql_where=text("dedupe_key IS NOT NULL"),
        ),
        # Expansion order of waiting runs: the second without those on hold; the first is for the code before.
        Index(
            "ix_workflow_runs_queued",
            text("priority DESC"),
            "id",
            postgresql_where=text("status = 'queued' AND mode = 'node'"),
        ),
        Index(
            "ix_workflow_runs_to_begin",
            text("priority DESC"),
            "id",
            postgresql_where=text("status = 'queued' AND mode = 'node' AND hold_reason IS NULL"),
        ),
        # What a waiting run looks for below it, and further down below what was over too early.
        Index(
            "ix_workflow_runs_below",
            "parent_run_id",
            postgresql_where=text("parent_run_id IS NOT NULL AND (finished_at IS NULL OR left_descendants)"),
        ),
        # Of a tree with a cap: what is open, which is counted, and what waits for its turn.
        Index(
            "ix_workflow_runs_capped_open",
            "capped_by",
            postgresql_where=text(
                "capped_by IS NOT NULL AND finished_at IS NULL AND hold_reason IS NULL"
                " AND NOT awaits_descendants"
            ),
        ),
        Index(
            "ix_workflow_runs_capped_held",
            "capped_by",
            text("priority DESC"),
            "id",
            postgresql_where=text("capped_by IS NOT NULL AND hold_reason IS NOT NULL"),
        ),
        # What is open of a tree that was set up: it follows its setup to another host, and ends with it.
        Index(
            "ix_workflow_runs_set_up_open",
            "set_up_by",
            postgresql_where=text("set_up_by IS NOT NULL AND finished_at IS NULL"),
        ),
        Index("ix_workflow_runs_running", "id", postgresql_where=text("status = 'running'")),
        # A node may have a hundred thousand children, and each asks at its end whether it has a successor.
        Index(
            "ix_workflow_runs_children",
            "parent_run_id",
            "parent_node_job_id",
            postgresql_where=text("parent_run_id IS NOT NULL"),
        ),
        Index("ix_workflow_runs_finished", "finished_at", postgresql_where=text("finished_at IS NOT NULL")),
        Index("ix_workflow_runs_labels", "labels", postgresql_using="gin"),
        Index("ix_workflow_runs_parcel", "parcel_id", postgresql_where=text("parcel_id IS NOT NULL")),
    )


class WorkflowNode(Base):
    """A node of a run from the moment that it is touched: its state, and counts instead of what they count.

    So one event costs the same in a run of 100 nodes and of 100,000.
    """

    __tablename__ = "workflow_nodes"

    run_id: Mapped[uuid.UUID] = mapped_column(
        ForeignKey("workflow_runs.id", ondelete="CASCADE"), primary_key=True
    )
    node_id: Mapped[str] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(server_default=NodeState.WAITING.value)
    # One job per element of a list.
    mapped: Mapped[bool] = mapped_column(server_default=text("false"))
    parents_left: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    parents_completed: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    parents_skipped: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    parents_bad: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    jobs_total: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    jobs_left: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    jobs_completed: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    jobs_skipped: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    jobs_failed: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    jobs_cancelled: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    # Jobs of a step that no later step waits for any more, as their first attempt has ended.
    jobs_attempted: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    error: Mapped[dict[str, Any] | None]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]

    __table_args__ = (CheckConstraint(among("state", NodeState), name="state"),)


class WorkflowInputSubmission(Base):
    """An answer to a parked node; a host app may insert these rows by itself."""

    __tablename__ = "workflow_input_submissions"

    id: Mapped[int] = mapped_column(Identity(always=False), primary_key=True)
    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("workflow_runs.id", ondelete="CASCADE"))
    node_id: Mapped[str]
    payload: Mapped[dict[str, Any]]
    submitted_by: Mapped[str | None]
    status: Mapped[str] = mapped_column(server_default=SubmissionStatus.PENDING.value)
    error: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    processed_at: Mapped[datetime | None]

    __table_args__ = (
        CheckConstraint(one_of("status", SubmissionStatus), name="status"),
        CheckConstraint("(status = 'pending') = (processed_at IS NULL)", name="pending_is_unprocessed"),
        Index("ix_workflow_input_submissions_run", "run_id", "node_id"),
        Index("ix_workflow_input_submissions_pending", "id", postgresql_where=text("status = 'pending'")),
    )


store_with(
    WorkflowNode,
    fillfactor=80,
    autovacuum_vacuum_scale_factor=0.05,
    autovacuum_analyze_scale_factor=0.05,
    autovacuum_vacuum_cost_delay=1,
)
store_with(
    WorkflowRun,
    fillfactor=80,
    autovacuum_vacuum_scale_factor=0.05,
    autovacuum_analyze_scale_factor=0.05,
)
