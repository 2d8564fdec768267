"""Python's clocks and its sleep, as they were before any job ran.

A job may replace those of the module `time`, as tests and tracing libraries do. What guards jobs, and what is
on the way of each of them, keeps time by these: `from queue_workflows import clock as time`.
"""

from __future__ import annotations

from time import monotonic, perf_counter, sleep, time

__all__ = ["monotonic", "perf_counter", "sleep", "time"]
