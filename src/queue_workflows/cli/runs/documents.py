"""`qwf run check` and `qwf run schema`: workflow documents, without a database."""

from __future__ import annotations

from collections.abc import Sequence

import click

from queue_workflows.cli.shared.operator import json_option, print_json, say
from queue_workflows.cli.shared.values import document_file
from queue_workflows.drawing.words import on_one_line
from queue_workflows.errors import DocumentError, ExitCode, Problem
from queue_workflows.workflow.document.json_schema import document_schema
from queue_workflows.workflow.providing import complete_document, unknown_workflows


@click.command()
@click.argument("files", metavar="FILE…", nargs=-1, required=True)
@json_option
def check(*, files: Sequence[str], as_json: bool) -> ExitCode:
    """Say what is wrong with workflow documents, a line for each problem.

    FILE is YAML or JSON; `-` is standard input. With the host app (--app) the workflows that a document
    starts are looked for too; a document that names a pipeline needs it. Ends with 78 if anything is wrong,
    or with 2 if it is only that a FILE cannot be read.
    """
    found: list[Problem] = []
    unread = 0
    for file in files:
        try:
            document = complete_document(document_file(file))
            strangers = unknown_workflows(document)
        except DocumentError as wrong:
            found += [problem._replace(file=file) for problem in wrong.problems]
            continue
        except click.UsageError as wrong:
            found.append(Problem(wrong.message.removeprefix(f"{file}: "), file=file))
            unread += 1
            continue
        found += [problem._replace(file=file) for problem in strangers]
        if not strangers and not as_json:
            click.echo(on_one_line(f"{file}: {document.name}, {_number(len(document.nodes), 'node')}"))
    if as_json:
        print_json([problem._asdict() for problem in found])
    else:
        for problem in found:
            click.echo(on_one_line(str(problem)))
    if not found:
        return ExitCode.DONE
    spoilt = len({problem.file for problem in found})
    say(f"{_number(len(found), 'problem')} in {_number(spoilt, 'document')} of {len(set(files)):,}")
    return ExitCode.USAGE if unread == len(found) else ExitCode.CONFIGURATION


@click.command()
def schema() -> None:
    """Print the JSON Schema of workflow documents, for editors and other programs.

    An editor that knows YAML schemas completes and checks a document that begins with the comment
    `# yaml-language-server: $schema=workflow.schema.json`.
    """
    print_json(document_schema())


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
