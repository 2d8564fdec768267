"""The wiring of a host app that has workflows."""

from __future__ import annotations

from support.apps.film import FILM, FLOP, SCENE
from support.tasks import worker_tasks

from queue_workflows import set_workflow_provider

assert worker_tasks  # its node modules are this app's too

set_workflow_provider(load_workflow={"film": FILM, "scene": SCENE, "flop": FLOP}.get)
