"""The wiring of `support.studio`, for processes that are told of it by QWF_APP."""

from __future__ import annotations

from support import studio, worker_tasks

assert worker_tasks  # its node modules are this app's too
studio.wire()
