"""`qwf queue`: the queues, and what goes into them and comes out."""

from __future__ import annotations

from typing import Final

import click

from queue_workflows.cli.shared.lazy_group import Entry, LazyGroup

ENTRIES: Final = {
    "stats": Entry(
        "queue_workflows.cli.queues.stats:stats", "Show how full the queues are and how they move."
    ),
    "next": Entry(
        "queue_workflows.cli.queues.next_jobs:next_", "Show the next jobs of a queue, and what takes each."
    ),
    "waits": Entry("queue_workflows.cli.queues.waits:waits", "Show what jobs waited for that ended lately."),
    "import": Entry(
        "queue_workflows.cli.queues.import_file:import_", "Enqueue the jobs of a file, one a line."
    ),
    "enqueue": Entry("queue_workflows.cli.queues.enqueue:enqueue", "Enqueue a job, or many alike."),
    "run": Entry("queue_workflows.cli.queues.run:run", "Work on a queue, and show how it goes."),
    "retry-failed": Entry("queue_workflows.cli.queues.retry_failed:retry_failed", "Run failed jobs again."),
    "pause": Entry("queue_workflows.cli.queues.pause:pause", "Let no worker of a queue claim any more."),
    "resume": Entry("queue_workflows.cli.queues.pause:resume", "Take a pause back."),
}


@click.group(cls=LazyGroup, entries=ENTRIES, no_args_is_help=True)
def queue() -> None:
    """Fill the queues, see them, work on one, pause it."""
