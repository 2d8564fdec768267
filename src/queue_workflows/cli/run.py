"""`qwf run`: workflows and their runs."""

from __future__ import annotations

from typing import Final

import click

from queue_workflows.cli.lazy import Entry, LazyGroup

ENTRIES: Final = {
    "check": Entry("queue_workflows.cli.run_documents:check", "Say what is wrong with workflow documents."),
    "schema": Entry("queue_workflows.cli.run_documents:schema", "Print the JSON Schema of documents."),
}


@click.group(cls=LazyGroup, entries=ENTRIES, no_args_is_help=True)
def run() -> None:
    """Check workflow documents."""
