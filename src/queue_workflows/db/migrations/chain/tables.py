"""Which tables the engine's revisions make and drop: asked of the revisions, for they are the truth.

A host's revisions may ask the database something on their way, so they cannot be run dry like ours.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Final

from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import Script

from queue_workflows.db.migrations.chain.chains import ENVIRONMENT, engine_chain
from queue_workflows.db.migrations.chain.revisions import load_script

CREATED_TABLE: Final = re.compile(r'^\s*CREATE TABLE (?:IF NOT EXISTS )?"?(\w+)', re.MULTILINE)
MONTH_OF_HISTORY: Final = re.compile(r"ingest_jobs_history_[0-9]{4}_[0-9]{2}")
DROPPED_TABLE: Final = re.compile(r'^\s*DROP TABLE (?:IF EXISTS )?"?(\w+)', re.MULTILINE)


@cache
def engine_tables() -> frozenset[str]:
    """Every table that a revision of the engine creates, whatever became of it later."""
    return frozenset().union(*(made for made, _dropped in _changes().values()))


def is_month_of_history(name: str | None) -> bool:
    """Whether a table is a part of one of ours: the database makes and drops these as time goes by."""
    return name is not None and MONTH_OF_HISTORY.fullmatch(name) is not None


@cache
def tables_at(revision: str) -> frozenset[str]:
    """The tables that the engine has at a revision."""
    there: frozenset[str] = frozenset()
    for one, (made, dropped) in _changes().items():
        there = (there | made) - dropped
        if one == revision:
            break
    return there


@cache
def first_tables() -> frozenset[str]:
    """The tables of the engine's first revision: where they are, a migration has been."""
    return next(iter(_changes().values()))[0]


def tables_dropped(revisions: Iterable[Script]) -> frozenset[str]:
    """The tables that these downgrades of the engine drop."""
    return frozenset(DROPPED_TABLE.findall(_dry_sql(rev.module.downgrade for rev in revisions)))


@cache
def _changes() -> dict[str, tuple[frozenset[str], frozenset[str]]]:
    """What each revision of the engine creates and drops on the way up, oldest first."""
    changes = {}
    for revision in reversed(list(load_script(engine_chain()).walk_revisions())):
        text = _dry_sql([revision.module.upgrade])
        changes[revision.revision] = (
            frozenset(CREATED_TABLE.findall(text)),
            frozenset(DROPPED_TABLE.findall(text)),
        )
    return changes


def _dry_sql(functions: Iterable[Callable[[], None]]) -> str:
    """What functions of our revisions would send; they may write DDL by hand."""
    buffer = io.StringIO()
    context = MigrationContext.configure(
        dialect_name="postgresql", opts={"as_sql": True, "literal_binds": True, "output_buffer": buffer}
    )
    with ENVIRONMENT, Operations.context(context):
        for function in functions:
            function()
    return buffer.getvalue()
