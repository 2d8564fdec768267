"""The wiring of a host app that is told to stop while it is imported, and keeps whatever it catches."""

from __future__ import annotations

import signal

from support.tasks import worker_tasks

assert worker_tasks  # importing them registers them
caught: list[BaseException] = []

try:
    signal.raise_signal(signal.SIGTERM)
except BaseException as stop:
    caught.append(stop)
