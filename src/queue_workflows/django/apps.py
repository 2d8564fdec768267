"""What becomes of a Django project that has the app: one database, one `migrate`, its tasks known."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TextIO

from django.apps import AppConfig
from django.core.management import CommandError
from django.core.management.color import color_style
from django.db import connections
from django.db.models.signals import pre_migrate
from django.utils.module_loading import autodiscover_modules

from queue_workflows import configure, db, set_invoke_context
from queue_workflows.config import current_config
from queue_workflows.db.migrations import Progress
from queue_workflows.django.database import alias, url
from queue_workflows.errors import QwfError

# The module of each app that is imported for the tasks, and whatever else of ours, that it registers.
TASKS: Final = "tasks"


class QueueWorkflowsConfig(AppConfig):  # type: ignore[misc] # Django has no types
    """`queue_workflows.django`; without models or migrations of Django's own."""

    name = "queue_workflows.django"
    label = "queue_workflows"
    verbose_name = "Jobs and workflows"

    def ready(self) -> None:
        """Told by Django once all models are there; what the project has configured itself stays."""
        config = current_config()
        if "db_url" not in config.overrides:
            configure(db_url=url)
        if config.invoke_context is None:
            set_invoke_context(living_connections)
        pre_migrate.connect(migrate_first, sender=self, dispatch_uid="queue_workflows")
        autodiscover_modules(TASKS)


@contextmanager
def living_connections(_job: object = None, _run: object = None) -> Iterator[None]:
    """Around each job what Django does around each request: a connection that is dead or too old is closed.

    A project with an invoke context of its own wraps the body of it in this.
    """
    _close_old()
    try:
        yield
    finally:
        _close_old()


def _close_old() -> None:
    """Not in a transaction, where Django would take any for left behind: a test's jobs run within its own."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def migrate_first(*, using: str, verbosity: int = 1, stdout: TextIO | None = None, **_: Any) -> None:
    """The engine's chain, before the project's own migrations, which may refer to its tables."""
    if using != alias():
        return
    style = color_style()

    def report(step: Progress) -> None:
        if step.done and verbosity > 0:
            applied = f"  Applied {step.chain} {step.revision} {step.subject}..."
            print(applied, style.SUCCESS("OK"), file=stdout)

    try:
        db.bootstrap(url(), report=report)
    except QwfError as refused:
        raise CommandError(str(refused), returncode=refused.exit_code) from refused
