"""Keyed limits: leased slots and token buckets."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from sqlalchemy import CheckConstraint, Float, Index, Integer, func, text
from sqlalchemy.orm import Mapped, mapped_column

from queue_workflows.models import rules
from queue_workflows.models.base import Base, checks, one_of, store_with
from queue_workflows.states import JobFamily

# Caps that are no key's, or that nobody could read.
UNUSABLE_CAP: Final = {
    "key_pattern": rules.no_key_pattern("key_pattern"),
    "reason": rules.no_text("reason", rules.TEXT_BYTES),
}


class ConcurrencyLimit(Base):
    """How many may hold a key at once; a pattern such as `host:*` is the default of the keys it matches."""

    __tablename__ = "concurrency_limits"

    key_pattern: Mapped[str] = mapped_column(primary_key=True)
    # 0 closes the key.
    max_slots: Mapped[int] = mapped_column(Integer)
    reason: Mapped[str | None]
    updated_by: Mapped[str | None]
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())

    __table_args__ = (
        CheckConstraint("max_slots >= 0", name="max_slots"),
        *checks(rules.conditions(UNUSABLE_CAP)),
        # The few patterns among any number of keys with a limit of their own.
        Index(
            "ix_concurrency_limits_patterns",
            "key_pattern",
            postgresql_where=text("\"right\"(key_pattern, 1) = '*'"),
        ),
    )


class LimitSlot(Base):
    """One slot of a key: a leased row and no counter, so that a crash cannot leak one.

    The row stays when its lease is over, which is `-infinity` once it was given back. Nothing but its name is
    indexed, so that taking, renewing and giving back stay HOT.
    """

    __tablename__ = "limit_slots"

    limit_key: Mapped[str] = mapped_column(primary_key=True)
    slot: Mapped[int] = mapped_column(Integer, primary_key=True)
    # The fence of the attempt that holds it, or held it last.
    job_family: Mapped[str]
    job_id: Mapped[int]
    attempt: Mapped[int] = mapped_column(Integer)
    claimed_by: Mapped[str]
    acquired_at: Mapped[datetime] = mapped_column(server_default=func.now())
    lease_expires_at: Mapped[datetime]

    __table_args__ = (
        CheckConstraint(one_of("job_family", JobFamily), name="job_family"),
        CheckConstraint("slot >= 0", name="slot"),
    )


# One rule for all columns, as a bucket is written by each take.
UNUSABLE_BUCKET: Final = {
    "sound": f"{rules.no_key_pattern('rate_key')} OR tokens_per_s > {rules.MOST_TOKENS:.0f}"
    f" OR burst > {rules.MOST_TOKENS:.0f} OR tokens = '-Infinity' OR {rules.no_moment('refilled_at')}"
    f" OR COALESCE({rules.no_moment('blocked_until')}, false)"
}
# Where a key's pattern is looked for, so that a million buckets cost a take nothing.
IS_PATTERN: Final = "right(rate_key, 1) = '*'"


class RateLimit(Base):
    """A token bucket that all workers share; a pattern such as `host:*` is the rule of keys it matches."""

    __tablename__ = "rate_limits"

    rate_key: Mapped[str] = mapped_column(primary_key=True)
    tokens_per_s: Mapped[float] = mapped_column(Float(53))
    burst: Mapped[float] = mapped_column(Float(53))
    # What was left at `refilled_at`; may be negative when a take was granted in advance.
    tokens: Mapped[float] = mapped_column(Float(53))
    refilled_at: Mapped[datetime] = mapped_column(server_default=func.now())
    # A server asked everybody to wait until then.
    blocked_until: Mapped[datetime | None]
    # The actor that set the rule; None where a pattern or a job's code gave it.
    updated_by: Mapped[str | None]
    reason: Mapped[str | None]
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())

    __table_args__ = (
        CheckConstraint("tokens_per_s > 0 AND burst > 0", name="positive"),
        CheckConstraint("tokens <= burst", name="tokens"),
        *checks(rules.conditions(UNUSABLE_BUCKET)),
        Index("ix_rate_limits_patterns", "rate_key", postgresql_where=text(IS_PATTERN)),
    )


store_with(
    LimitSlot,
    fillfactor=60,
    autovacuum_vacuum_scale_factor=0,
    autovacuum_vacuum_threshold=1000,
)
store_with(
    RateLimit,
    fillfactor=50,
    autovacuum_vacuum_scale_factor=0,
    autovacuum_vacuum_threshold=500,
)
