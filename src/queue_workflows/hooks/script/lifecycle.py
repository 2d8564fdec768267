"""The one way in which what is claimed for hooks is brought to its end.

    queued ──claim──> running ──run()──> a final state, written under the fence
                         └── broken off: update_and_requeue() ──> claimed again
    cleanup() on every way out

A hook's job goes it, and a program that is installed. Their leases, and the rows' moves, are those of
`states.py`; how a job's row ends is written by its worker, many in one statement.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Claimed(Protocol[T_co]):
    """Something that this process has claimed, and nobody else works on as long as its lease holds."""

    def run(self) -> T_co:
        """Do it, and say or write how it ended."""

    def update_and_requeue(self) -> None:
        """Keep what is there of it and let go of it, so that it is claimed again; raises nothing."""

    def cleanup(self) -> None:
        """Leave nothing behind; called on every way out."""


def bring_to_its_end(claimed: Claimed[T_co], *, verdicts: tuple[type[BaseException], ...] = ()) -> T_co:
    """Run it; if that is broken off, it is queued again. `verdicts` are ends of it that are raised."""
    try:
        return claimed.run()
    except verdicts:
        raise
    except BaseException:
        claimed.update_and_requeue()
        raise
    finally:
        claimed.cleanup()
