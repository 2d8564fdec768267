"""The wiring of `support.apps.studio`, for processes that are told of it by QWF_APP."""

from __future__ import annotations

from support.apps import studio
from support.tasks import worker_tasks

assert worker_tasks  # its node modules are this app's too
studio.wire()
