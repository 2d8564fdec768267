"""What both job families share: the columns that claiming, fencing, retrying and holding work on."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, Float, Index, Integer, SmallInteger, func, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column

from queue_workflows.models.base import among
from queue_workflows.models.rules import MAX_ATTEMPTS
from queue_workflows.states import JOB_TERMINAL, JobStatus

_TERMINAL = sorted(JOB_TERMINAL)

# Rows change status a few times and are then dead weight: vacuum early. Half of a page is left free, as its
# jobs are mostly claimed, and ended, at one moment: a version on another page writes a lock and each column.
JOB_STORAGE = {
    "fillfactor": 50,
    "autovacuum_vacuum_scale_factor": 0.02,
    "autovacuum_vacuum_threshold": 1000,
    "autovacuum_vacuum_insert_scale_factor": 0.05,
    "autovacuum_analyze_scale_factor": 0.05,
    "autovacuum_vacuum_cost_delay": 1,
}


class Claimable:
    """Mixin of a job row; `position` is declared by each family because its sequence is its own."""

    queue: Mapped[str]
    status: Mapped[str] = mapped_column(server_default=JobStatus.QUEUED.value)
    # Why a claimed row was put aside, and what frees it (a limit's key, a task's name, a lock's name).
    hold_reason: Mapped[str | None]
    hold_key: Mapped[str | None]
    # One bounded entry per row of holds for the same thing, written when a hold ends, and of an attempt that
    # was given back; empty for most jobs.
    past_holds: Mapped[list[Any] | None]
    priority: Mapped[int] = mapped_column(SmallInteger, server_default=text("5"))
    # When a scheduled row becomes claimable; never looked at for a queued one.
    run_at: Mapped[datetime] = mapped_column(server_default=func.now())
    # Opened anew only by an operator's retry; dispatch events of an older one are dropped.
    generation: Mapped[int] = mapped_column(Integer, server_default=text("1"))
    # The fence: +1 per claim, never reset.
    attempt: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    # The budget: +1 per exception and watchdog end; releases, holds and crashes are not in it.
    failures: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    max_attempts: Mapped[int] = mapped_column(SmallInteger, server_default=text(str(MAX_ATTEMPTS)))
    # First retry delay in seconds, doubled each time; NULL takes the engine's default.
    backoff_s: Mapped[float | None] = mapped_column(Float(53))
    crash_count: Mapped[int] = mapped_column(SmallInteger, server_default=text("0"))
    # Held by a worker that crashed holding several: claimed alone from now on, so that a crash is its own.
    suspect: Mapped[bool] = mapped_column(server_default=text("false"))
    # Crashes of its own that end it; NULL takes the setting.
    max_crashes: Mapped[int | None] = mapped_column(SmallInteger)
    # Once its function has begun, only an operator's retry lets it begin again.
    at_most_once: Mapped[bool] = mapped_column(server_default=text("false"))
    # The generation in which that function has begun, of a job that begins at most once; of another that may
    # have killed a worker the attempt in which it has, below zero.
    begun_generation: Mapped[int | None] = mapped_column(Integer)
    # The worker's incarnation; kept after the end to say what ran it, empty while nobody holds the row.
    claimed_by: Mapped[str | None]
    # Not indexed, so that renewals stay HOT.
    lease_expires_at: Mapped[datetime | None]
    timeout_s: Mapped[float | None] = mapped_column(Float(53))
    stall_timeout_s: Mapped[float | None] = mapped_column(Float(53))
    # Stored, not enforced: neither the claim nor a worker goes by it.
    host_lock: Mapped[str | None]
    # A worker that claims the job takes a slot of this key, as far as the key has a cap.
    limit_key: Mapped[str | None]
    progress: Mapped[dict[str, Any] | None]
    # One bounded, redacted entry per failed attempt.
    errors: Mapped[list[Any]] = mapped_column(JSONB(none_as_null=True), server_default=text("'[]'::jsonb"))
    cancel_requested_at: Mapped[datetime | None]
    # W3C trace context of the code that enqueued it.
    traceparent: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    # Start of the current or last attempt.
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


def claimable_constraints(statuses: tuple[JobStatus, ...]) -> tuple[CheckConstraint, ...]:
    """What a job row must look like in each status, whatever writes it."""
    terminal = among("status", _TERMINAL)
    return (
        CheckConstraint(among("status", statuses), name="status"),
        CheckConstraint(
            "status <> 'running'"
            " OR (claimed_by IS NOT NULL AND lease_expires_at IS NOT NULL AND attempt > 0)",
            name="running_is_claimed",
        ),
        CheckConstraint("status = 'running' OR lease_expires_at IS NULL", name="lease_only_running"),
        CheckConstraint(
            f"claimed_by IS NULL OR {among('status', ('queued', 'scheduled'), which='<> ALL')}",
            name="waiting_is_unclaimed",
        ),
        CheckConstraint(f"({terminal}) = (finished_at IS NOT NULL)", name="terminal_is_finished"),
        CheckConstraint("hold_reason IS NULL OR status = 'scheduled'", name="hold_is_scheduled"),
        CheckConstraint("hold_key IS NULL OR hold_reason IS NOT NULL", name="hold_key_has_reason"),
        CheckConstraint("priority BETWEEN 0 AND 9", name="priority"),
        CheckConstraint(
            "generation > 0 AND attempt >= 0 AND failures >= 0 AND crash_count >= 0 AND max_attempts > 0",
            name="counts",
        ),
    )


def claimable_indexes(table: str) -> tuple[Index, ...]:
    """Indexes of a job table; predicates are literal statuses, so that a prepared plan can use them."""
    return (
        # Exactly the claim's ORDER BY, over claimable rows only.
        Index(
            f"ix_{table}_claim",
            "queue",
            text("priority DESC"),
            "position",
            postgresql_where=text("status = 'queued'"),
        ),
        # Suspects, which are claimed after all others; in words that the index of the claim does not serve.
        Index(
            f"ix_{table}_suspect",
            "queue",
            "crash_count",
            text("priority DESC"),
            "position",
            postgresql_where=text("COALESCE(status = 'queued' AND suspect, false)"),
        ),
        # Promotion of what is due.
        Index(f"ix_{table}_due", "run_at", postgresql_where=text("status = 'scheduled'")),
        # What a freed slot or a starting worker promotes, first in line first. The status is not named, and
        # not by what asks for it: old statistics would make the index of what is due seem as good.
        Index(
            f"ix_{table}_hold",
            "hold_reason",
            "hold_key",
            "queue",
            text("priority DESC"),
            "position",
            postgresql_where=text("hold_reason IS NOT NULL"),
        ),
        # How many of a limit's key may be claimed now; in words that the index of the claim does not serve.
        Index(
            f"ix_{table}_keyed",
            "limit_key",
            "queue",
            postgresql_where=text("COALESCE(status = 'queued', false) AND limit_key IS NOT NULL"),
        ),
        # Reclaim, and what a worker holds.
        Index(f"ix_{table}_running", "claimed_by", postgresql_where=text("status = 'running'")),
        # What operators look for, list and retry: few, among any number that ended well.
        Index(f"ix_{table}_failed", "id", postgresql_where=text("status = 'failed'")),
        # What failed lately, in groups: by when it ended, of what ended so alone; in words that no other
        # index serves, as the planner might read all that failed, or all that ended lately.
        Index(
            f"ix_{table}_failed_at",
            text("(finished_at AT TIME ZONE 'UTC')"),
            "id",
            postgresql_where=text("status IN ('failed', '')"),
        ),
        # Pruning and history.
        Index(f"ix_{table}_finished", "finished_at", postgresql_where=text("finished_at IS NOT NULL")),
    )
