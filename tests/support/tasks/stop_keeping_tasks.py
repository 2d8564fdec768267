"""A host app's wiring that is told to stop while it is imported, catches whatever comes, and keeps it."""

from __future__ import annotations

import signal

from support.tasks import worker_tasks

assert worker_tasks  # importing them registers them
caught: list[BaseException] = []

try:
    signal.raise_signal(signal.SIGTERM)
except BaseException as stop:  # as a wiring does that goes on without what it cannot have
    caught.append(stop)
