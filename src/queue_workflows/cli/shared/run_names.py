"""Runs as operators name them: by the id, or by as much of its beginning as says which."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from typing import Any, Final

import click
import psycopg

from queue_workflows.errors import UnknownRun
from queue_workflows.repositories.runs.listing import RunLinesRepository
from queue_workflows.repositories.runs.runs import named_run

# Fewer digits are the time of a minute or more, in which many runs may begin.
SHORTEST: Final = 8
_BEGINNING: Final = re.compile(r"[0-9a-f]{8,32}")


def may_be_run(name: str) -> bool:
    """Whether it could name a run, where jobs are named too; a number is a job's, unless it says `run:`."""
    given = name.strip()
    beginning = given.removeprefix("run:").replace("-", "").lower()
    return not given.isdigit() and (named_run(given) is not None or bool(_BEGINNING.fullmatch(beginning)))


def run_named(connection: psycopg.Connection[Any], name: str) -> uuid.UUID:
    """The id; one that is written out is believed, whether or not there is such a run."""
    whole = named_run(name.strip())
    if whole is not None:
        return whole
    beginning = name.strip().removeprefix("run:").replace("-", "").lower()
    if not _BEGINNING.fullmatch(beginning):
        raise click.BadParameter(f"{name!r} is no run: write its id, or its first {SHORTEST} digits or more")
    found = RunLinesRepository(connection).named(beginning)
    if not found:
        raise UnknownRun(name)
    if len(found) > 1:
        shown = ", ".join(map(str, found[:2])) + (" and more" if len(found) > 2 else "")
        raise click.BadParameter(f"{name!r} may be {shown}: say which")
    return found[0]


def runs_named(connection: psycopg.Connection[Any], names: Sequence[str]) -> list[uuid.UUID]:
    """Each once, in their order."""
    return list(dict.fromkeys(run_named(connection, name) for name in names))
