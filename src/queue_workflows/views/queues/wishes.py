"""What operators asked of a queue's workers, as answers for machines have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from queue_workflows.models import WorkerControl

_TOLD: Final = ("host_label", "queue", "desired", "actor", "reason", "expires_at")


def json_of(wishes: Sequence[WorkerControl]) -> list[dict[str, Any]]:
    """Of each: which workers it is for, what they are to do, and which operator asked it, why, until when."""
    return [{name: getattr(wish, name) for name in _TOLD} for wish in wishes]
