"""Whether a device is free again after its worker has ended: pure, from what its vendor's tool says.

    proving ──used no more than before its worker, and a little──> free
       │
       └──not within the patience──> stuck, with the reason

A dead process may leave memory behind: in a driver that lost track of it, in a child that nobody could end. A
worker started there would fail for want of memory, job after job. So a device counts as free only on the
evidence of a look that began after the worker's whole tree had ended. Silence of the tool is no evidence, and
a look that never ends is waited for only so long.

A device of which no memory was ever told has none to prove: there the end of the tree has to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Any, Final, Self

from queue_workflows.telemetry.hw.device import Device


@dataclass(frozen=True, slots=True)
class Sight:
    """What the tools said when they were asked at that moment, and what kept them from saying more."""

    asked_at: float = -inf
    devices: Mapping[str, Device] = field(default_factory=dict)
    troubles: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """That a worker was on a device, and how much of its memory was in use before; None: not told."""

    worker_id: str
    before_mb: int | None

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {"worker_id": self.worker_id, "before_mb": self.before_mb}

    @classmethod
    def of(cls, plain: object) -> Self | None:
        """What was written down; None for anything else."""
        if not isinstance(plain, dict) or not isinstance(plain.get("worker_id"), str):
            return None
        before = plain.get("before_mb")
        return cls(plain["worker_id"], before if isinstance(before, int) else None)


class Proof(StrEnum):
    """What is known of a device after a worker."""

    FREE = "free"
    OPEN = "open"
    STUCK = "stuck"


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long a device may take to be free, and how much more than before may be in use then."""

    patience_s: float
    tolerance_mb: int


# However slow the machine is, one look at least decides; it may ask several tools, several times.
LOOK_WITHIN_S: Final = 120.0
NO_BOUNDS: Final = Bounds(0.0, 0)


def prove(
    device: Device, left_by: Occupancy, sight: Sight, *, since: float, now: float, bounds: Bounds
) -> tuple[Proof, str]:
    """How it stands with a device after its worker's tree had ended at `since`, and why it is not free."""
    seen = sight.devices.get(device.id)
    is_fresh = sight.asked_at >= since
    if is_fresh and seen is not None and _is_back(seen, left_by, bounds):
        return Proof.FREE, ""
    patience_s = bounds.patience_s if is_fresh else bounds.patience_s + LOOK_WITHIN_S
    after = f"{patience_s:g} s after {left_by.worker_id} had ended"
    reason = _reason(device, seen, left_by, sight, is_fresh=is_fresh, after=after)
    return (Proof.STUCK if now - since >= patience_s else Proof.OPEN), reason


def _is_back(seen: Device, left_by: Occupancy, bounds: Bounds) -> bool:
    if left_by.before_mb is None:
        return True
    return seen.memory_used_mb is not None and seen.memory_used_mb <= left_by.before_mb + bounds.tolerance_mb


def _reason(
    device: Device, seen: Device | None, left_by: Occupancy, sight: Sight, *, is_fresh: bool, after: str
) -> str:
    trouble = sight.troubles.get(device.vendor)
    if not is_fresh:
        return f"nobody has looked {after}, so nobody knows whether its memory is free"
    if seen is None:
        return f"{trouble or 'it is not listed any more'}, {after}"
    if seen.memory_used_mb is None:
        return f"how much of its memory is in use was not told any more {after}"
    return (
        f"{seen.memory_used_mb:,} MB of its memory are in use {after};"
        f" {left_by.before_mb:,} MB were before it began"
    )
