"""The one way in which what is claimed here is brought to its end.

    queued ──claim──> running ──run()──> a final state, written under the fence
                         └── told to stop, or its worker ends: update_and_requeue() ──> queued
    cleanup() on every way out

Runs and their jobs go this way through the engine's own verbs: their claim, their ending, their release. What
has rows of its own, as the programs of a machine, has it from here.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Claimed(Protocol[T_co]):
    """Something that this process has claimed, and nobody else works on as long as its lease holds."""

    def run(self) -> T_co:
        """Do it, and write how it ended."""

    def update_and_requeue(self) -> None:
        """Let go of it, so that it is claimed again."""

    def cleanup(self) -> None:
        """Leave nothing behind; called on every way out."""


def bring_to_its_end(claimed: Claimed[T_co]) -> T_co:
    """Run it; if that is broken off, it is queued again."""
    try:
        return claimed.run()
    except BaseException:
        claimed.update_and_requeue()
        raise
    finally:
        claimed.cleanup()
