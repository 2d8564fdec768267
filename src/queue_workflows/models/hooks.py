"""What hook scripts emitted, and what is installed on each machine for them."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Identity, Index, Integer, UniqueConstraint, func, text
from sqlalchemy.orm import Mapped, mapped_column

from queue_workflows.models.base import Base, one_of
from queue_workflows.states import BinaryStatus


class HookRecord(Base):
    """One line that a hook printed: a record of any type, or a warning about one that was malformed."""

    __tablename__ = "hook_records"

    id: Mapped[int] = mapped_column(Identity(always=False), primary_key=True)
    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("workflow_runs.id", ondelete="CASCADE"))
    node_job_id: Mapped[int] = mapped_column(ForeignKey("workflow_node_jobs.id", ondelete="CASCADE"))
    attempt: Mapped[int] = mapped_column(Integer)
    plugin: Mapped[str]
    hook: Mapped[str]
    line_no: Mapped[int] = mapped_column(Integer)
    type: Mapped[str]
    payload: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    warning: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())

    __table_args__ = (
        # Reading an attempt's output twice stores it once.
        UniqueConstraint("node_job_id", "attempt", "line_no", name="uq_hook_records_line"),
        Index("ix_hook_records_run", "run_id", "type"),
    )


class Machine(Base):
    """A machine that runs hooks."""

    __tablename__ = "machines"

    id: Mapped[int] = mapped_column(Identity(always=False), primary_key=True)
    host_label: Mapped[str]
    facts: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    last_seen: Mapped[datetime] = mapped_column(server_default=func.now())

    __table_args__ = (UniqueConstraint("host_label"),)


class Binary(Base):
    """A program that a plugin needs, as found or installed on one machine."""

    __tablename__ = "binaries"

    id: Mapped[int] = mapped_column(Identity(always=False), primary_key=True)
    machine_id: Mapped[int] = mapped_column(ForeignKey("machines.id", ondelete="CASCADE"))
    name: Mapped[str]
    status: Mapped[str] = mapped_column(server_default=BinaryStatus.QUEUED.value)
    abspath: Mapped[str | None]
    version: Mapped[str | None]
    sha256: Mapped[str | None]
    provider: Mapped[str | None]
    overrides: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    error: Mapped[str | None]
    # The providers that may install it, in order; NULL is any that can.
    bin_providers: Mapped[str | None]
    # The fence of the worker that installs it, as jobs have one.
    attempt: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    claimed_by: Mapped[str | None]
    lease_expires_at: Mapped[datetime | None]
    failures: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    retry_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())

    __table_args__ = (
        CheckConstraint(one_of("status", BinaryStatus), name="status"),
        CheckConstraint("status <> 'installed' OR abspath IS NOT NULL", name="installed_has_path"),
        CheckConstraint(
            "(status = 'running') = (claimed_by IS NOT NULL AND lease_expires_at IS NOT NULL)",
            name="running_is_claimed",
        ),
        UniqueConstraint("machine_id", "name"),
    )
