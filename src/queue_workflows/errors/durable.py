"""What goes wrong in durable functions."""

from __future__ import annotations

from typing import Any

from queue_workflows.errors.base import QwfError


class NonDeterminism(QwfError):
    """Another attempt of a durable function takes another way than the one that is stored."""

    def __init__(self, *, position: int, stored: str, called: str) -> None:
        super().__init__(
            f"step {position} was {stored}, and the code now comes to {called}",
            advice="keep what is in flight on its version (`version=`, `versions=`), or fork it at that step",
        )
        self.position, self.stored, self.called = position, stored, called


class StepFailed(QwfError):
    """A step raised each time that it was tried; `error` is what is stored of that, in this attempt or later.

    The exception itself is its cause where it was raised by this attempt.
    """

    def __init__(self, step: str, error: dict[str, Any]) -> None:
        kind = str(error.get("type") or error.get("kind") or "it failed")
        super().__init__(f"the step {step!r:.80} failed: {kind}: {error.get('message', '')}"[:2_000])
        self.step, self.error, self.error_type = step, error, kind


class StepTimeout(QwfError, TimeoutError):
    """A try of a step took longer than it may."""

    def __init__(self, step: str, timeout_s: float) -> None:
        super().__init__(f"the step {step!r:.80} took longer than {timeout_s:g} s")
        self.step, self.timeout_s = step, timeout_s


class EventTimeout(QwfError, TimeoutError):
    """Nobody emitted the event in time."""

    def __init__(self, event: str) -> None:
        super().__init__(f"the event {event!r:.80} was not emitted in time")
        self.event = event


class ChildFailed(QwfError):
    """A job that a durable function spawned has ended without a result; `error` is its last one."""

    def __init__(self, job: str, status: str, error: dict[str, Any] | None) -> None:
        said = f": {error.get('message', '')}" if error else ""
        super().__init__(f"{job} is {status}{said}"[:2_000], advice=f"`qwf explain {job}`")
        self.job, self.status, self.error = job, status, error
