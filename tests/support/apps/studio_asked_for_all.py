"""The studio as a host app's module, with a resolver of every reference."""

from support.apps import studio
from support.tasks import worker_tasks

from queue_workflows import set_ref_resolver

assert worker_tasks  # its node modules are this app's too
studio.wire()
set_ref_resolver(studio.every, every=True)
