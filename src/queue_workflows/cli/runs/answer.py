"""`qwf run submit-input`: what a node asks, and the answer to it."""

from __future__ import annotations

import json
import sys
from typing import Any

import click
import psycopg

from queue_workflows.cli import Invocation
from queue_workflows.cli.shared.operator import (
    asking_user,
    json_option,
    operators_connection,
    print_json,
    print_table,
    say,
)
from queue_workflows.cli.shared.run_names import run_named
from queue_workflows.cli.shared.values import mapping_in, mapping_of
from queue_workflows.db.connections.snapshot_read import at_one_moment
from queue_workflows.drawing.words import on_one_line, say_moment
from queue_workflows.engine.runs.verbs import asked_node, submit_input
from queue_workflows.views.runs.question import Answer, json_of, json_of_submission, question
from queue_workflows.workflow.document.nodes import InputNode


@click.command("submit-input")
@click.argument("run_name", metavar="RUN")
@click.argument("node")
@click.argument("answer", metavar="[JSON]", required=False)
@click.option("--file", metavar="FILE", help="The answer, as JSON or YAML; - is standard input.")
@click.option(
    "--by",
    default=asking_user,
    metavar="NAME",
    help="Your name, for the record.  [default: USER@HOST]",
)
@click.option("--show", is_flag=True, help="Answer nothing: show what is asked, and the answers so far.")
@json_option
@click.pass_obj
def submit(
    invocation: Invocation,
    *,
    run_name: str,
    node: str,
    answer: str | None,
    file: str | None,
    by: str,
    show: bool,
    as_json: bool,
) -> None:
    """Answer NODE of RUN, which waits for input.

    The answer is an object, as in '{"ok": true}'; in a terminal it is asked for if none is given. One that
    the node's schema does not allow is refused, and the node goes on waiting.
    """
    if answer is not None and file is not None:
        raise click.UsageError("give the answer itself, or a --file of it; not both")
    if show:
        if answer is not None or file is not None:
            raise click.UsageError("--show takes no answer")
        _show(invocation, run_name, node, as_json=as_json)
        return
    with operators_connection(invocation) as connection:
        run_id = run_named(connection, run_name)
        if answer is not None:
            payload = mapping_of("the answer", answer)
        elif file is not None:
            payload = mapping_in("--file", file)
        else:
            payload = _from_terminal(connection, run_id, node)
        submission = submit_input(run_id, node, payload, conn=connection, submitted_by=by)
    if as_json:
        print_json(json_of_submission(run_id, node, submission))
    else:
        say(f"answer {submission} to {node} is stored; an orchestrator takes it up")


def _show(invocation: Invocation, run_name: str, node: str, *, as_json: bool) -> None:
    with operators_connection(invocation) as connection, at_one_moment(connection):
        asked = question(connection, run_named(connection, run_name), node)
    if as_json:
        print_json(json_of(asked))
        return
    click.echo(f"{asked.node} is {asked.state}{'' if asked.is_open else ', and takes no answer any more'}")
    if asked.prompt:
        click.echo(on_one_line(asked.prompt))
    schema = asked.answer_schema
    print_table(
        ["PROPERTY", "SCHEMA"], [[name, json.dumps(of)] for name, of in schema.items()] if schema else []
    )
    answers = [
        (str(one.id), say_moment(one.created_at), one.submitted_by or "-", one.status, _said(one))
        for one in asked.answers
    ]
    print_table(["ID", "AT", "BY", "STATUS", "ANSWER"], answers)


def _said(one: Answer) -> str:
    """What it says, or why it was refused."""
    return one.error or json.dumps(one.payload)


def _from_terminal(connection: psycopg.Connection[Any], run_id: Any, node: str) -> dict[str, Any]:
    if sys.stdin is None or sys.stdin.closed or not sys.stdin.isatty():
        raise click.UsageError("there is no answer: give it as JSON, or with --file")
    return ask(asked_node(run_id, node, conn=connection))


def ask(node: InputNode) -> dict[str, Any]:
    """Put the node's question to the person at the terminal, property by property."""
    if node.prompt:
        click.echo(node.prompt, err=True)
    if node.answer_schema is None:
        return mapping_of("the answer", click.prompt("answer (JSON)", default="{}", err=True))
    return {
        name: _asked(name, schema if isinstance(schema, dict) else {})
        for name, schema in node.answer_schema.items()
    }


def _asked(name: str, schema: dict[str, Any]) -> Any:
    """One property, by its type: yes or no, one of a few, a number, a text, and else JSON."""
    label = f"{name} ({schema['description']})" if schema.get("description") else name
    default = schema.get("default")
    if schema.get("type") == "boolean":
        return click.confirm(label, default=default, err=True)
    choices = schema.get("enum")
    if choices and all(isinstance(choice, str) for choice in choices):
        return click.prompt(label, type=click.Choice(choices), default=default, err=True)
    kinds = {"integer": int, "number": float, "string": str}
    if schema.get("type") in kinds:
        return click.prompt(label, type=kinds[schema["type"]], default=default, err=True)
    shown = None if default is None else json.dumps(default)
    while True:
        try:
            return json.loads(click.prompt(f"{label} (JSON)", default=shown, err=True))
        except ValueError as wrong:
            say(f"that is no JSON: {wrong}")
