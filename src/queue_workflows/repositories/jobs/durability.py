"""How far what a producer enqueues has come when its commit is answered, as it asks for one transaction.

The server waits at COMMIT for what `synchronous_commit` says in that transaction, so it is set there, and
nowhere else: for the rest of a transaction of the caller's, too, as there is one COMMIT for all of it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from queue_workflows.errors import ConfigurationError
from queue_workflows.repositories.sql import checks as check
from queue_workflows.repositories.sql.connection import Handle, Statements

COMMIT_SO: Final = "SELECT set_config('synchronous_commit', %(durability)s::text, true)"
COMMITS_SO: Final = "SELECT current_setting('synchronous_commit')"


class Durability(StrEnum):
    """What has to have happened before a commit is answered, from the least to the most."""

    OFF = "off"
    LOCAL = "local"
    REMOTE_WRITE = "remote_write"
    ON = "on"
    REMOTE_APPLY = "remote_apply"


def commit_so(conn: Handle, durability: str | None) -> None:
    """Have the transaction of a connection committed so; without a wish nothing is sent, and nothing changes.

    Refused where there is no transaction that it could hold for, before anything is written.
    """
    if durability is None:
        return
    wanted = check.word("durability", durability, Durability)
    statements = Statements(conn, "ingest_jobs")
    statements.rows(COMMIT_SO, {"durability": wanted})
    ((held,),) = statements.rows(COMMITS_SO, {})
    if held != wanted:
        raise ConfigurationError(
            f"durability={wanted!r} is for a transaction, and this connection commits each statement",
            advice="open a transaction around it, as by `with conn.transaction():`, or leave conn out",
        )
