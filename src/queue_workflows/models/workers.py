"""Workers as they see themselves and as operators want them; acts of operators, and marks of retention."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, Identity, Index, Integer, Sequence, func, text, true
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from queue_workflows.models.base import Base, one_of, store_with
from queue_workflows.states import DesiredState, JobFamily, WorkerState

CONTROL_VERSION = Sequence("worker_control_version_seq", metadata=Base.metadata)


class WorkerHeartbeat(Base):
    """The last sign of life of one worker process."""

    __tablename__ = "worker_heartbeats"

    # host:queue:incarnation, so that a reused hostname or pid never inherits anything.
    worker_id: Mapped[str] = mapped_column(primary_key=True)
    host_label: Mapped[str]
    queue: Mapped[str]
    pid: Mapped[int] = mapped_column(Integer)
    state: Mapped[str] = mapped_column(server_default=WorkerState.STARTING.value)
    # Why, where the state needs a word (what quarantined or parked it).
    state_reason: Mapped[str | None]
    # Ids are numbered per family, so that one alone names two jobs.
    current_job_family: Mapped[str | None]
    current_job_id: Mapped[int | None]
    jobs_held: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    current_model: Mapped[str | None]
    cached_models: Mapped[list[Any]] = mapped_column(
        JSONB(none_as_null=True), server_default=text("'[]'::jsonb")
    )
    # Of the package, of Python, of the host app.
    versions: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    load: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    # Of worker_control: every change up to this one has been seen by the worker.
    control_version: Mapped[int] = mapped_column(server_default=text("0"))
    started_at: Mapped[datetime] = mapped_column(server_default=func.now())
    last_seen: Mapped[datetime] = mapped_column(server_default=func.now())
    # Set by the process that found the beat too old; cleared by a fresh beat.
    last_flagged_dead_at: Mapped[datetime | None]

    __table_args__ = (
        CheckConstraint(one_of("state", WorkerState), name="state"),
        CheckConstraint(one_of("current_job_family", JobFamily), name="current_job_family"),
        Index("ix_worker_heartbeats_host", "host_label", "queue"),
    )


class WorkerCode(Base):
    """What the code of some workers of a queue knows; a worker's row names it by `versions ->> 'code'`.

    One row for each content, shared by all workers that run it and kept for a while after the last of them,
    so that it can be told which version knew a task, and until when.
    """

    __tablename__ = "worker_code"

    digest: Mapped[str] = mapped_column(primary_key=True)
    queue: Mapped[str]
    app_version: Mapped[str | None]
    # Tasks or node modules; with `is_open` there may be more that only a look finds out.
    names: Mapped[list[Any]] = mapped_column(JSONB(none_as_null=True))
    is_open: Mapped[bool]
    first_seen: Mapped[datetime] = mapped_column(server_default=func.now())
    last_seen: Mapped[datetime] = mapped_column(server_default=func.now())


class WorkerControl(Base):
    """What an operator wants of a queue on a host; `*` stands for any."""

    __tablename__ = "worker_control"

    host_label: Mapped[str] = mapped_column(primary_key=True)
    queue: Mapped[str] = mapped_column(primary_key=True)
    desired: Mapped[str]
    reason: Mapped[str | None]
    actor: Mapped[str]
    expires_at: Mapped[datetime | None]
    # Taken from the clock: rises with every change anywhere.
    version: Mapped[int] = mapped_column(server_default=CONTROL_VERSION.next_value())
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())

    __table_args__ = (CheckConstraint(one_of("desired", DesiredState), name="desired"),)


class WorkerControlClock(Base):
    """The version of the last change of worker_control, a removal too; one row, or none before the first.

    Every change of worker_control locks it first, so that versions are committed in their order and a reader
    that sees one has seen all before it.
    """

    __tablename__ = "worker_control_clock"

    singleton: Mapped[bool] = mapped_column(primary_key=True, server_default=true())
    version: Mapped[int]

    __table_args__ = (CheckConstraint("singleton", name="singleton"),)


class AuditLog(Base):
    """An operator's cancel, retry, pause, switch-off or raised limit: its actor, its time, its reason."""

    __tablename__ = "audit_log"

    id: Mapped[int] = mapped_column(Identity(always=False), primary_key=True)
    at: Mapped[datetime] = mapped_column(server_default=func.now())
    actor: Mapped[str]
    action: Mapped[str]
    subject_kind: Mapped[str]
    subject_id: Mapped[str]
    reason: Mapped[str | None]
    details: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))

    __table_args__ = (Index("ix_audit_log_subject", "subject_kind", "subject_id"),)


class RetentionMark(Base):
    """How far what is over has been pruned: what ended earlier is gone, or stays for its dedupe key."""

    __tablename__ = "retention_marks"

    # `ingest` for ingest jobs, `node` for runs with their jobs.
    family: Mapped[str] = mapped_column(primary_key=True)
    seen_before: Mapped[datetime]

    __table_args__ = (CheckConstraint(one_of("family", JobFamily), name="family"),)


# Beaten every few seconds by every worker: room for HOT updates, vacuumed by count and not by share.
store_with(
    WorkerHeartbeat,
    fillfactor=50,
    autovacuum_vacuum_scale_factor=0,
    autovacuum_vacuum_threshold=500,
)
