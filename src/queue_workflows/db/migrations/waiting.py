"""Waiting until somebody else has brought the schema far enough."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import sqlalchemy as sa
from alembic.script import ScriptDirectory

from queue_workflows.db.migrations.chain.chains import Chain, engine_chain
from queue_workflows.db.migrations.chain.revisions import find_revision, load_script
from queue_workflows.db.migrations.refusals import behind, refuse_misfit
from queue_workflows.db.migrations.session import connection_to, one_target
from queue_workflows.db.migrations.state import ChainState, read_state
from queue_workflows.errors import AccessRefused, DatabaseUnreachable, SchemaAhead, SchemaError

POLL_S: Final = 0.5


def wait_for_schema(
    min_version: int | str,
    timeout: float,
    *,
    dsn: str | None = None,
    engine: sa.Engine | None = None,
    conn: sa.Connection | None = None,
    role: str = "wait",
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> str:
    """Wait until the engine's schema is at `min_version` or beyond; returns where it is, needs SELECT only.

    A schema ahead of this code ends the wait at once. A database that does not answer yet is waited for too,
    and so is the right to read the version table: grants come after the first migration. A connection may be
    inside a transaction, which is left as it is; one above READ COMMITTED does not see what it waits for.
    `role` is what the wait calls itself in pg_stat_activity where it connects by itself.
    """
    chain = engine_chain()
    script = load_script(chain)
    needed = find_revision(script, min_version)
    deadline = now() + timeout

    def reached(connection: sa.Connection) -> str:
        while True:
            try:
                return _far_enough(connection, chain, script, needed)
            except SchemaAhead:
                raise
            except (SchemaError, AccessRefused):
                if now() >= deadline:
                    raise
            sleep(POLL_S)

    while True:
        try:
            with connection_to(
                one_target(dsn, engine, conn), role=role, inside_transaction=True
            ) as connection:
                return reached(connection)
        except DatabaseUnreachable:
            if now() >= deadline:
                raise
        sleep(POLL_S)


def _far_enough(connection: sa.Connection, chain: Chain, script: ScriptDirectory, needed: str) -> str:
    """Where the schema is, or why that will not do."""
    state = _answer(connection, chain, script)
    refuse_misfit(state, chain, but=("hand-made",))
    passed = () if state.status == "hand-made" else script.iterate_revisions(state.current, "base")
    if not any(needed == revision.revision for revision in passed):
        raise behind(state, needed)
    return ", ".join(state.current)


def _answer(connection: sa.Connection, chain: Chain, script: ScriptDirectory) -> ChainState:
    try:
        return read_state(connection, chain, script)
    except sa.exc.OperationalError as error:
        raise DatabaseUnreachable("the database stopped answering", advice="see its log") from error
