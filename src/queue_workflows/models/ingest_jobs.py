"""Ingest jobs: standalone work on host-defined queues."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    CheckConstraint,
    Column,
    Identity,
    Index,
    PrimaryKeyConstraint,
    Sequence,
    Table,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from queue_workflows.models.base import Base, among, store_with
from queue_workflows.models.claimable import (
    JOB_STORAGE,
    Claimable,
    claimable_constraints,
    claimable_indexes,
)
from queue_workflows.states import HISTORY_STATUSES, INGEST_STATUSES

INGEST_POSITION = Sequence("ingest_jobs_position_seq", metadata=Base.metadata)


class IngestJob(Claimable, Base):
    """A job without a DAG."""

    __tablename__ = "ingest_jobs"

    id: Mapped[int] = mapped_column(Identity(always=False), primary_key=True)
    task_name: Mapped[str]
    # Why it was enqueued, in the caller's words; handed to the task.
    reason: Mapped[str | None]
    args: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    # Unique per task while the row exists: after the end for `retention_days` and `dedupe_ttl_days`.
    dedupe_key: Mapped[str | None]
    # Order of claims within a priority.
    position: Mapped[int] = mapped_column(server_default=INGEST_POSITION.next_value())
    # Whatever JSON the task returned.
    result: Mapped[Any | None] = mapped_column(JSONB(none_as_null=True))
    # The tick this row stands for, so that any number of tickers inserts it once.
    schedule_name: Mapped[str | None]
    tick_at: Mapped[datetime | None]
    # The durable function that spawned it, as in `ingest:7`; its end wakes that one.
    spawned_by: Mapped[str | None]

    __table_args__ = (
        *claimable_constraints(INGEST_STATUSES),
        CheckConstraint("(schedule_name IS NULL) = (tick_at IS NULL)", name="tick_has_schedule"),
        Index(
            "uq_ingest_jobs_dedupe",
            "task_name",
            "dedupe_key",
            unique=True,
            postgresql_where=text("dedupe_key IS NOT NULL"),
        ),
        Index(
            "uq_ingest_jobs_tick",
            "schedule_name",
            "tick_at",
            unique=True,
            postgresql_where=text("schedule_name IS NOT NULL"),
        ),
        Index("ix_ingest_jobs_spawned_by", "spawned_by", postgresql_where=text("spawned_by IS NOT NULL")),
        *claimable_indexes("ingest_jobs"),
    )


store_with(IngestJob, **JOB_STORAGE)

# What is over, by the month in which it ended, where history is by months: no keys, so nothing to be unique
# but the id, and no index but of ids and of when they ended. Functions of the database move rows.
Table(
    "ingest_jobs_history",
    Base.metadata,
    *(
        Column(column.name, column.type, nullable=column.nullable and column.name != "finished_at")
        for column in IngestJob.__table__.columns
    ),
    PrimaryKeyConstraint("id", "finished_at"),
    Index(None, "finished_at"),
    CheckConstraint(
        f"{among('status', HISTORY_STATUSES)} AND dedupe_key IS NULL AND schedule_name IS NULL"
        " AND spawned_by IS NULL",
        name="moves",
    ),
    postgresql_partition_by="RANGE (finished_at)",
)


class HistoryMode(Base):
    """Whether what is over is moved to a history by months, or comes back from there."""

    __tablename__ = "history_modes"

    family: Mapped[str] = mapped_column(primary_key=True)
    is_partitioned: Mapped[bool]
    # What ended earlier has been looked at, and moved if it moves at all.
    moved_before: Mapped[datetime | None]
    changed_at: Mapped[datetime] = mapped_column(server_default=func.now())

    __table_args__ = (CheckConstraint("family IN ('ingest')", name="family"),)
