"""Schedules: what the ticker enqueues, and when."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from sqlalchemy import CheckConstraint, Float, Index, Integer, SmallInteger, func, text
from sqlalchemy.orm import Mapped, mapped_column

from queue_workflows.models import rules
from queue_workflows.models.base import Base, checks, one_of
from queue_workflows.states import CatchUp

# What no ticker could use. What is paused may be as it is, so that it can be seen and mended.
UNUSABLE: Final = {
    "name": rules.no_text("name"),
    "cron": rules.no_text("cron"),
    "timezone": rules.no_text("timezone"),
    "most_caught_up": f"catch_up_cap > {rules.MOST_CAUGHT_UP}",
    "jitter": rules.no_span_or_none("jitter_s"),
    "task_name": rules.no_text("task_name"),
    "queue": rules.no_ingest_queue("queue"),
    "args": rules.no_json_object("args"),
    "limit_key": rules.no_limit_key("limit_key"),
    "host_lock": rules.no_host_lock("host_lock"),
    "last_tick_at": rules.no_moment("last_tick_at"),
    "next_tick_at": rules.no_moment("next_tick_at"),
    "declared_until": rules.no_moment("declared_until"),
}
USABLE: Final = rules.conditions(UNUSABLE, unless="NOT enabled")


class Schedule(Base):
    """A periodic ingest job; each (schedule, tick) is inserted once however many tickers run."""

    __tablename__ = "schedules"

    name: Mapped[str] = mapped_column(primary_key=True)
    cron: Mapped[str]
    timezone: Mapped[str] = mapped_column(server_default="UTC")
    catch_up: Mapped[str] = mapped_column(server_default=CatchUp.LATEST.value)
    # How many missed ticks `all` may make up for.
    catch_up_cap: Mapped[int] = mapped_column(Integer, server_default=text("100"))
    jitter_s: Mapped[float] = mapped_column(Float(53), server_default=text("0"))
    task_name: Mapped[str]
    queue: Mapped[str]
    args: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    priority: Mapped[int] = mapped_column(SmallInteger, server_default=text("5"))
    limit_key: Mapped[str | None]
    host_lock: Mapped[str | None]
    enabled: Mapped[bool] = mapped_column(server_default=text("true"))
    # In the code of `declared_by`; what that no longer has does not tick.
    declared: Mapped[bool] = mapped_column(server_default=text("false"))
    last_tick_at: Mapped[datetime | None]
    next_tick_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())
    # The host app that declares it in code, which version of that, and how long a scheduler vouches for it.
    declared_by: Mapped[str | None]
    declaration: Mapped[str | None]
    declared_until: Mapped[datetime | None]

    __table_args__ = (
        CheckConstraint(one_of("catch_up", CatchUp), name="catch_up"),
        CheckConstraint("catch_up_cap > 0", name="catch_up_cap"),
        CheckConstraint("jitter_s >= 0", name="jitter_s"),
        CheckConstraint("priority BETWEEN 0 AND 9", name="priority"),
        *checks(USABLE),
        Index("ix_schedules_due", "next_tick_at", postgresql_where=text("enabled")),
    )
