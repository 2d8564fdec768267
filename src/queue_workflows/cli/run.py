"""`qwf run`: workflows and their runs."""

from __future__ import annotations

from typing import Final

import click

from queue_workflows.cli.lazy import Entry, LazyGroup

ENTRIES: Final = {
    "start": Entry("queue_workflows.cli.run_starting:start", "Start a run, by name or from a file."),
    "list": Entry("queue_workflows.cli.run_listing:list_", "List runs."),
    "show": Entry("queue_workflows.cli.run_listing:show", "Draw a run, with its nodes' states and times."),
    "watch": Entry("queue_workflows.cli.run_watching:watch", "Follow a run until it is over."),
    "cancel": Entry("queue_workflows.cli.run_deciding:cancel", "Cancel runs, or a node."),
    "retry": Entry("queue_workflows.cli.run_deciding:retry", "Run again what failed or follows a node."),
    "submit-input": Entry("queue_workflows.cli.run_answering:submit", "Answer a node that waits for input."),
    "unpoison": Entry("queue_workflows.cli.run_deciding:unpoison", "Try events again that were given up."),
    "unpin": Entry("queue_workflows.cli.run_deciding:unpin", "Free runs of hooks from their host."),
    "check": Entry("queue_workflows.cli.run_documents:check", "Say what is wrong with workflow documents."),
    "schema": Entry("queue_workflows.cli.run_documents:schema", "Print the JSON Schema of documents."),
}


@click.group(cls=LazyGroup, entries=ENTRIES, no_args_is_help=True)
def run() -> None:
    """Start, follow and steer runs of workflows; check their documents.

    RUN is a run's id, or its first eight digits or more where they say which.
    """
