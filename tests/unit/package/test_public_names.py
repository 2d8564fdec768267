"""The names that others have in their code and in their scripts: none goes or comes unnoticed.

A name that is added goes into `public_names.txt` with its change; to take one away takes a new major version.
"""

from __future__ import annotations

from pathlib import Path

import click

import queue_workflows
from queue_workflows import db, errors, models, repositories, testing
from queue_workflows.cli.main import cli
from queue_workflows.django.apps import living_connections
from queue_workflows.django.asgi import with_operators_page
from queue_workflows.flask import init_app
from queue_workflows.hooks.plugin_config import load_plugin_config
from queue_workflows.workflow.providing import complete_document

STATED = Path(__file__).with_name("public_names.txt")


def commands(command: click.Command, path: list[str], context: click.Context) -> list[str]:
    """A line for a command, its arguments and options, and one for each below it."""
    # The options of `qwf` itself stand hidden behind each command.
    options = [
        param
        for param in command.params
        if isinstance(param, click.Option) and (param.expose_value or not param.hidden)
    ]
    arguments = [str(param.name).upper() for param in command.params if isinstance(param, click.Argument)]
    names = sorted(name for option in options for name in (*option.opts, *option.secondary_opts))
    lines = [" ".join([*path, *arguments, *names])]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if (below := command.get_command(context, name)) is not None:
                inner = click.Context(below, parent=context, info_name=name)
                lines += commands(below, [*path, name], inner)
    return lines


def test_public_names_are_those_that_are_stated() -> None:
    """Of the package, its repositories, errors and models, and of the command line with its options."""
    parts = {
        "queue_workflows": queue_workflows.__all__,
        "queue_workflows.db": db.__all__,
        "queue_workflows.errors": errors.__all__,
        "queue_workflows.models": models.__all__,
        "queue_workflows.repositories": repositories.__all__,
        "queue_workflows.testing": testing.__all__,
    }
    lines = [f"{part}.{name}" for part, names in parts.items() for name in sorted(names)]
    # What pages tell users to import from deeper down.
    deeper = (
        load_plugin_config,
        complete_document,
        living_connections,
        with_operators_page,
        init_app,
    )
    lines += [f"{one.__module__}.{one.__name__}" for one in deeper]
    lines += commands(cli, ["qwf"], click.Context(cli))
    assert lines == STATED.read_text(encoding="utf-8").splitlines()
