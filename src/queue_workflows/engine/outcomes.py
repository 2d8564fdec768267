"""How one attempt of a job ends: what its function may raise to say so, and what the executor makes of it.

`Skip`, `Discard` and `RetryAfter` are the function's own verdict. The outcomes are plain data for the code
that writes the end of the attempt; none of them has touched the database.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import IntEnum
from typing import Final, Self, TypeAlias

LONGEST_DELAY_S: Final = 100 * 365 * 86_400.0


class Skip(Exception):
    """Raise it when there is nothing to do: the job ends as `skipped`."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Discard(Exception):
    """Raise it when trying again cannot help: the job ends as `failed` at once. `from` keeps the cause."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class RetryAfter(Exception):
    """Raise it to be run again after a delay (a server said when); nothing is counted against the job.

    `penalize` names a rate that nobody is to use until then either.
    """

    def __init__(self, delay: float | timedelta, reason: str = "", *, penalize: str | None = None) -> None:
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        sound = isinstance(seconds, int | float) and not isinstance(seconds, bool) and math.isfinite(seconds)
        if not sound or not 0 <= seconds <= LONGEST_DELAY_S:
            raise ValueError(f"RetryAfter takes seconds or a timedelta, not {delay!r:.80}")
        super().__init__(delay, reason)
        self.delay_s = float(seconds)
        self.reason = reason
        self.penalize = penalize

    @classmethod
    def from_header(
        cls,
        value: str | None,
        reason: str = "",
        *,
        penalize: str | None = None,
        default_s: float = 60.0,
        at_most_s: float = 86_400.0,
        now: datetime | None = None,
    ) -> Self:
        """From the value of an HTTP `Retry-After`: seconds, or a date.

        `default_s` where there is none or it says nothing; a server is believed for `at_most_s`.
        """
        delay_s = _delay_of(value or "", now or datetime.now(UTC))
        delay_s = default_s if delay_s is None else min(max(delay_s, 0.0), at_most_s)
        return cls(delay_s, reason, penalize=penalize)

    def __str__(self) -> str:
        return f"again in {self.delay_s:g} s" + (f": {self.reason}" if self.reason else "")


class PutBack(RetryAfter):
    """Raised by the engine for a job that waited in vain for others of ours: no server has asked for less."""


def _delay_of(value: str, now: datetime) -> float | None:
    if value.strip().isascii() and value.strip().isdigit():
        return float(value)
    try:
        then = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    # `-0000` is read as no zone at all, and means UTC.
    return ((then if then.tzinfo else then.replace(tzinfo=UTC)) - now).total_seconds()


class PutAside(Exception):
    """The job cannot run here and now: it is put on hold for what `reason` and `key` say, uncounted."""

    def __init__(self, reason: str, key: str | None, delay_s: float) -> None:
        super().__init__(reason, key)
        self.reason, self.key, self.delay_s = reason, key, delay_s

    @property
    def outcome(self) -> OnHold:
        """What the attempt comes to."""
        return OnHold(self.delay_s, self.reason, self.key)


class Parked(BaseException):
    """A durable function waits: its job is on hold for what `reason` and `key` say, until its `run_at`.

    No `Exception`, so that the function's own `except Exception` does not take it for a failure.
    """

    def __init__(self, reason: str, key: str | None = None) -> None:
        super().__init__(reason, key)
        self.reason, self.key = reason, key

    @property
    def outcome(self) -> OnHold | Released:
        """What the attempt comes to."""
        return OnHold(None, self.reason, self.key)


class BeginAnew(Parked):
    """A durable function goes on with another round: its job is queued at once, uncounted."""

    def __init__(self) -> None:
        super().__init__("round")

    @property
    def outcome(self) -> OnHold | Released:
        """What the attempt comes to."""
        return Released("it begins another round")


class Cancelled(BaseException):
    """Raised by `ctx.raise_if_cancelled()` and `ctx.sleep()` when this attempt has to stop.

    No `Exception`, so that a task's `except Exception` does not keep a job alive that nobody wants any more.
    Clean up in `finally`, or catch it by name and raise it again.
    """


class Stop(IntEnum):
    """Why a running attempt has to stop; a greater one replaces a smaller one, never the other way round."""

    STALL = 1
    WALL_CLOCK = 2
    RELEASE = 3
    CANCEL = 4
    LEASE_LOST = 5


@dataclass(frozen=True, slots=True)
class Completed:
    """The function returned; the JSON text of its result, None for SQL NULL."""

    result_json: str | None


@dataclass(frozen=True, slots=True)
class Skipped:
    """The function found nothing to do; `result_json` is what an earlier attempt of it has come to."""

    reason: str
    result_json: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt failed; `error` is the JSON of a bounded, redacted entry for `errors[]`.

    `result_json` is what it had come to by then, as of a hook that printed records; kept if it is final.
    """

    error: str
    retryable: bool
    result_json: str | None = None


@dataclass(frozen=True, slots=True)
class RetryLater:
    """The function asked for another time; uncounted."""

    delay_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class OnHold:
    """The job waits for something, at most for so long, or until its `run_at` as it is; uncounted."""

    delay_s: float | None
    reason: str
    key: str | None


@dataclass(frozen=True, slots=True)
class CancelledOutcome:
    """The attempt stopped because its job was cancelled; `error` if it went down with one of its own."""

    reason: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Released:
    """The attempt stopped because its worker lets go of it; uncounted, and the job runs again elsewhere."""

    reason: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Abandoned:
    """The lease is lost, so another attempt owns the job: there is nothing to write."""


Outcome: TypeAlias = (
    Completed | Skipped | Failed | RetryLater | OnHold | CancelledOutcome | Released | Abandoned
)
