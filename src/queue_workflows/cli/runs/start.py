"""`qwf run start`: one run of a workflow, from a name or a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing

import click

from queue_workflows.cli import Invocation
from queue_workflows.cli.runs.watch import follow
from queue_workflows.cli.shared.durability import committed_so, durability_option
from queue_workflows.cli.shared.operator import json_option, print_json, say
from queue_workflows.cli.shared.values import STDIN, document_file, mapping_in, pairs
from queue_workflows.db.connections.engine import Database
from queue_workflows.engine.runs.verbs import start_run
from queue_workflows.errors import ExitCode
from queue_workflows.repositories.runs.runs import StartedRun
from queue_workflows.workflow.document.load import Document
from queue_workflows.workflow.providing import SUFFIXES, complete_document, find_document


@click.command()
@click.argument("workflow", metavar="NAME|FILE")
@click.option("--input", "-i", "given", metavar="K=TEXT|K:=JSON", multiple=True, help="One of its inputs.")
@click.option(
    "--inputs", "file", metavar="FILE", help="All its inputs, as JSON or YAML; - is standard input."
)
@click.option("--label", "labels", metavar="K=TEXT|K:=JSON", multiple=True, help="To find the run by.")
@click.option(
    "--priority", type=click.IntRange(0, 9), help="0 to 9, higher first; else the document's, or 5."
)
@click.option(
    "--max-open-runs",
    type=click.IntRange(1),
    metavar="N",
    help="How many runs of the tree that it begins may be open at once, with itself.",
)
@click.option("--dedupe-key", metavar="KEY", help="Start nothing if a run of it has this key already.")
@click.option("--watch", is_flag=True, help="Follow the run, and end as it does; see `qwf run watch`.")
@click.option("--here", is_flag=True, help="Do all of it in this command, and end as the run does.")
@durability_option
@json_option
@click.pass_obj
def start(
    invocation: Invocation,
    *,
    workflow: str,
    given: Sequence[str],
    file: str | None,
    labels: Sequence[str],
    priority: int | None,
    max_open_runs: int | None,
    dedupe_key: str | None,
    watch: bool,
    here: bool,
    durability: str | None,
    as_json: bool,
) -> ExitCode:
    """Start a run, and print its id.

    With --here this command runs an orchestrator and the workers that the run needs for as long as it takes,
    and shows each node as it goes. Without a database of yours an embedded one is started in .qwf/.

    NAME is a workflow that the host app (--app) provides. A word with a slash or one of the endings .yaml,
    .yml and .json is a FILE. --input overrides what --inputs says.
    """
    document = _document(workflow)
    inputs = mapping_in("--inputs", file) if file is not None else {}
    inputs |= pairs("--input", given, document.inputs)
    found_by = pairs("--label", labels)

    def begin(database: Database) -> StartedRun:
        with (
            closing(database.connect(autocommit=True)) as connection,
            committed_so(connection, durability),
        ):
            started = start_run(
                document,
                inputs,
                conn=connection,
                priority=priority,
                dedupe_key=dedupe_key,
                max_open_runs=max_open_runs,
                labels=found_by,
            )
        if not started.created:
            say(f"run {started.id} of {document.name} has this key already: nothing was started")
        return started

    if here:
        from queue_workflows.cli.runs.here import queues_of, run_here

        return run_here(
            invocation,
            lambda database: begin(database).id,
            queues=queues_of(document),
            as_json=as_json,
        )
    with Database.open(invocation.db_url, role="cli", creates=False) as database:
        run = begin(database)
        if watch:
            return follow(database, run.id, as_json=as_json)
    _tell(run, document, as_json=as_json)
    return ExitCode.DONE


def _document(workflow: str) -> Document:
    if workflow == STDIN or workflow.endswith(SUFFIXES) or os.sep in workflow:
        return complete_document(document_file(workflow))
    return find_document(workflow)


def _tell(run: StartedRun, document: Document, *, as_json: bool) -> None:
    """The id alone goes to stdout, for scripts."""
    if as_json:
        print_json({"run": run.id, "created": run.created, "workflow": document.name})
        return
    click.echo(str(run.id))
    if run.created:
        say(f"started {document.name}; `qwf run watch {run.id}` follows it")
