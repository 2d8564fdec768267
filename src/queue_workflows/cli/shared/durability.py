"""How durable what a command enqueues has to be before it is told to be there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

import click
import psycopg

from queue_workflows.repositories.jobs.durability import Durability, commit_so

durability_option: Final = click.option(
    "--durability",
    type=click.Choice([each.value for each in Durability]),
    help="What synchronous_commit is for it, as in remote_apply; else as the server has it.",
)


def committed_so(
    connection: psycopg.Connection[Any], durability: str | None
) -> AbstractContextManager[object]:
    """One transaction, committed as it is asked for; without a wish each statement is its own as before."""
    return nullcontext() if durability is None else _transaction(connection, durability)


@contextmanager
def _transaction(connection: psycopg.Connection[Any], durability: str) -> Iterator[None]:
    with connection.transaction():
        commit_so(connection, durability)
        yield
