"""Keyed limits: what is declared and set, leased slots, token buckets, and limits that adapt."""

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


UNUSABLE_APP: Final = {
    "owner": rules.no_text("owner"),
    "declaration": rules.no_text("declaration"),
    "declared_until": rules.no_moment("declared_until"),
}
# What no worker could go by.
UNUSABLE_DECLARED: Final = {
    "key_pattern": rules.no_key_pattern("key_pattern"),
    "owner": rules.no_text("owner"),
    "says": "max_slots IS NULL AND per_s IS NULL",
    "max_slots": "COALESCE(max_slots < 0, false)",
    "rate": "(per_s IS NULL) <> (burst IS NULL)"
    f" OR COALESCE(NOT (per_s > 0 AND per_s <= {rules.MOST_TOKENS:.0f}"
    f" AND burst > 0 AND burst <= {rules.MOST_TOKENS:.0f}), false)",
    "adapts": "(down IS NULL) <> (floor_slots IS NULL AND floor_per_s IS NULL)"
    " OR (down IS NULL) <> (doubles_s IS NULL)"
    " OR COALESCE(NOT (down > 0 AND down < 1 AND doubles_s > 0 AND doubles_s <= 86400), false)",
    "floors": "COALESCE(NOT floor_slots BETWEEN 1 AND max_slots, floor_slots IS NOT NULL)"
    " OR COALESCE(NOT (floor_per_s > 0 AND floor_per_s <= per_s), floor_per_s IS NOT NULL)",
}
UNUSABLE_TASK: Final = {
    "task_name": rules.no_text("task_name"),
    "owner": rules.no_text("owner"),
    "limit_key": f"COALESCE({rules.no_limit_key('limit_key')}, false)",
    "host_lock": f"COALESCE({rules.no_host_lock('host_lock')}, false)",
}
UNUSABLE_ADAPTED: Final = {
    "limit_key": rules.no_limit_key("limit_key"),
    "kind": "kind NOT IN ('cap', 'rate')",
    "value": f"NOT (value > 0 AND value <= {rules.MOST_TOKENS:.0f} AND doubles_s > 0 AND doubles_s <= 86400)",
    "lowered_at": rules.no_moment("lowered_at"),
}


class AppDeclaration(Base):
    """The version of a host app that is in force, and until when one of its processes vouches for it.

    What it declares of limits and of tasks is in the two tables below.
    """

    __tablename__ = "app_declarations"

    owner: Mapped[str] = mapped_column(primary_key=True)
    # A digest of all that is declared.
    declaration: Mapped[str]
    declared_until: Mapped[datetime]
    declared_at: Mapped[datetime] = mapped_column(server_default=func.now())

    __table_args__ = tuple(checks(rules.conditions(UNUSABLE_APP)))


class LimitDeclaration(Base):
    """What one host app declares of a key or pattern in its code; of several the stricter holds.

    A cap, a rate or both, and how they adapt: `down` times itself when a server asks for less, never below
    the floor, and back to what is declared by doubling every `doubles_s` seconds.
    """

    __tablename__ = "limit_declarations"

    key_pattern: Mapped[str] = mapped_column(primary_key=True)
    owner: Mapped[str] = mapped_column(primary_key=True)
    max_slots: Mapped[int | None] = mapped_column(Integer)
    per_s: Mapped[float | None] = mapped_column(Float(53))
    burst: Mapped[float | None] = mapped_column(Float(53))
    floor_slots: Mapped[int | None] = mapped_column(Integer)
    floor_per_s: Mapped[float | None] = mapped_column(Float(53))
    down: Mapped[float | None] = mapped_column(Float(53))
    doubles_s: Mapped[float | None] = mapped_column(Float(53))

    __table_args__ = tuple(checks(rules.conditions(UNUSABLE_DECLARED)))


class TaskDeclaration(Base):
    """What a task's own code says of its jobs that others depend on, for producers that do not import it.

    With `computes_key` the key is made of a job's arguments, by the worker that claims it.
    """

    __tablename__ = "task_declarations"

    task_name: Mapped[str] = mapped_column(primary_key=True)
    owner: Mapped[str] = mapped_column(primary_key=True)
    limit_key: Mapped[str | None]
    computes_key: Mapped[bool] = mapped_column(server_default=text("false"))
    host_lock: Mapped[str | None]

    __table_args__ = tuple(checks(rules.conditions(UNUSABLE_TASK)))


class AdaptedLimit(Base):
    """A key's cap or rate as it was lowered last; from then on it grows with time, and nobody writes that."""

    __tablename__ = "adapted_limits"

    limit_key: Mapped[str] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[float] = mapped_column(Float(53))
    doubles_s: Mapped[float] = mapped_column(Float(53))
    lowered_at: Mapped[datetime] = mapped_column(server_default=func.now())

    __table_args__ = tuple(checks(rules.conditions(UNUSABLE_ADAPTED)))


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
for _seldom in (AppDeclaration, LimitDeclaration, TaskDeclaration, AdaptedLimit):
    store_with(_seldom, fillfactor=50, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=500)
