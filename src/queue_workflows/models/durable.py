"""Durable functions: what each of them has done and waits for, and the events that they wait for."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from sqlalchemy import CheckConstraint, Identity, Index, Integer, func, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from queue_workflows.models import rules
from queue_workflows.models.base import Base, among, checks, one_of, store_with
from queue_workflows.states import JobFamily, StepKind, StepStatus

UNUSABLE_EVENT: Final = {"name": rules.no_text("name")}


class DurableStep(Base):
    """A step of a durable function that has ended, or that it waits for; known by its name and which call."""

    __tablename__ = "durable_steps"

    job_family: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(primary_key=True)
    # 1 for the first step of that name.
    call: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    # The order in which steps were called.
    position: Mapped[int] = mapped_column(Integer)
    kind: Mapped[str]
    status: Mapped[str]
    # Others had begun and not ended when it was called, so the next attempt may come to it in another order.
    beside: Mapped[bool] = mapped_column(server_default=text("false"))
    result: Mapped[Any | None] = mapped_column(JSONB(none_as_null=True))
    error: Mapped[dict[str, Any] | None]
    # How often its function was called.
    tries: Mapped[int] = mapped_column(Integer, server_default=text("1"))
    # The attempt of the job that stored it.
    attempt: Mapped[int] = mapped_column(Integer)
    # Which version of the code the function began under; of the first step.
    version: Mapped[str | None]
    child_id: Mapped[int | None]
    # The event that wakes it, and when it is woken in any case.
    waits_for: Mapped[str | None]
    wake_at: Mapped[datetime | None]
    started_at: Mapped[datetime] = mapped_column(server_default=func.now())
    finished_at: Mapped[datetime | None]

    __table_args__ = (
        CheckConstraint(one_of("job_family", JobFamily), name="job_family"),
        CheckConstraint(among("kind", StepKind), name="kind"),
        CheckConstraint(among("status", StepStatus), name="status"),
        CheckConstraint("(status = 'waiting') = (finished_at IS NULL)", name="waiting_is_unfinished"),
        Index(
            "ix_durable_steps_waits_for",
            "waits_for",
            postgresql_where=text("status = 'waiting' AND waits_for IS NOT NULL"),
        ),
        # Which functions may yet ask what became of a job, before that is pruned.
        Index("ix_durable_steps_child_id", "child_id", postgresql_where=text("child_id IS NOT NULL")),
    )


class DurableEvent(Base):
    """An event that nobody has taken; `is_news` until those that wait for it were woken."""

    __tablename__ = "durable_events"

    id: Mapped[int] = mapped_column(Identity(always=False), primary_key=True)
    name: Mapped[str]
    payload: Mapped[Any | None] = mapped_column(JSONB(none_as_null=True))
    is_news: Mapped[bool] = mapped_column(server_default=text("true"))
    emitted_at: Mapped[datetime] = mapped_column(server_default=text("clock_timestamp()"))

    __table_args__ = (
        *checks(rules.conditions(UNUSABLE_EVENT)),
        Index("ix_durable_events_name", "name", "id"),
        Index("ix_durable_events_news", "id", postgresql_where=text("is_news")),
        Index("ix_durable_events_emitted_at", "emitted_at"),
    )


# Its rows come and go within moments, and each look at what is new passes by those that are gone.
store_with(
    DurableEvent,
    autovacuum_vacuum_cost_delay=0,
    autovacuum_vacuum_scale_factor=0,
    autovacuum_vacuum_threshold=1000,
)
