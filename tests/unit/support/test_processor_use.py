"""A run says how busy the machine was."""

from __future__ import annotations

import os

from support.suite.processor_use import Times, times, use


def test_what_the_kernel_counts_is_read_as_seconds() -> None:
    """Waiting for a disk is no work; time of a guest is in that of its host already."""
    second = os.sysconf("SC_CLK_TCK")
    counts = " ".join(str(number * second) for number in (1, 2, 3, 4, 5, 6, 7, 8, 1, 2))
    assert times(f"cpu  {counts}\ncpu0 1 2 3\n") == Times(27.0, 36.0)


def test_the_line_has_the_share_and_the_seconds() -> None:
    """What was before the run is left out."""
    assert use(Times(10.0, 100.0), Times(100.0, 200.0)) == "processors: busy 90 %, 90 of 100 seconds"
