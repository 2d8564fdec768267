"""`qwf queue`: the queues, and what goes into them and comes out."""

from __future__ import annotations

from typing import Final

import click

from queue_workflows.cli.lazy import Entry, LazyGroup

ENTRIES: Final = {
    "stats": Entry(
        "queue_workflows.cli.queue_stats:stats", "Show how full the queues are and how they move."
    ),
    "import": Entry("queue_workflows.cli.queue_import:import_", "Enqueue the jobs of a file, one a line."),
    "enqueue": Entry("queue_workflows.cli.queue_enqueue:enqueue", "Enqueue a job, or many alike."),
    "run": Entry("queue_workflows.cli.queue_run:run", "Work on a queue, and show how it goes."),
    "retry-failed": Entry("queue_workflows.cli.queue_retry:retry_failed", "Run failed jobs again."),
    "pause": Entry("queue_workflows.cli.queue_pausing:pause", "Let no worker of a queue claim any more."),
    "resume": Entry("queue_workflows.cli.queue_pausing:resume", "Take a pause back."),
}


@click.group(cls=LazyGroup, entries=ENTRIES, no_args_is_help=True)
def queue() -> None:
    """Fill the queues, see them, work on one, pause it."""
