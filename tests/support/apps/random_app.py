"""The wiring of a host app whose workflows are random; those that they start are not."""

from __future__ import annotations

from support.reference.random_workflows import child
from support.tasks import worker_tasks

from queue_workflows import set_workflow_provider

assert worker_tasks  # its node modules are this app's too

set_workflow_provider(load_workflow={f"child-{does}": child(does) for does in ("complete", "fail")}.get)
