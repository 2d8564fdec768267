"""`qwf run`: workflows and their runs."""

from __future__ import annotations

from typing import Final

import click

from queue_workflows.cli.shared.lazy_group import Entry, LazyGroup

ENTRIES: Final = {
    "start": Entry("queue_workflows.cli.runs.start:start", "Start a run, by name or from a file."),
    "list": Entry("queue_workflows.cli.runs.listing:list_", "List runs."),
    "show": Entry("queue_workflows.cli.runs.listing:show", "Draw a run, with its nodes' states and times."),
    "nodes": Entry("queue_workflows.cli.runs.nodes:nodes", "Page through the jobs of one node."),
    "timeline": Entry("queue_workflows.cli.runs.timeline:timeline", "Draw what ran when, and waited."),
    "grid": Entry("queue_workflows.cli.runs.grid:grid", "Show a workflow's last runs, node by node."),
    "workflows": Entry("queue_workflows.cli.runs.grid:workflows", "List the workflows that ran of late."),
    "watch": Entry("queue_workflows.cli.runs.watch:watch", "Follow a run until it is over."),
    "cancel": Entry("queue_workflows.cli.runs.decide:cancel", "Cancel runs, or a node."),
    "retry": Entry("queue_workflows.cli.runs.decide:retry", "Run again what failed or follows a node."),
    "submit-input": Entry("queue_workflows.cli.runs.answer:submit", "Answer a node that waits for input."),
    "unpoison": Entry("queue_workflows.cli.runs.decide:unpoison", "Try events again that were given up."),
    "unpin": Entry("queue_workflows.cli.runs.decide:unpin", "Free runs of hooks from their host."),
    "check": Entry("queue_workflows.cli.runs.documents:check", "Say what is wrong with workflow documents."),
    "schema": Entry("queue_workflows.cli.runs.documents:schema", "Print the JSON Schema of documents."),
}


@click.group(cls=LazyGroup, entries=ENTRIES, no_args_is_help=True)
def run() -> None:
    """Start, follow and steer runs of workflows; check their documents.

    RUN is a run's id, or its first eight digits or more where they say which.
    """
