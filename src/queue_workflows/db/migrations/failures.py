"""What goes wrong on the way of a migration, said so that the reader knows what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg
import sqlalchemy as sa
from alembic.util import CommandError

from queue_workflows.db.migrations.session import MigrationSession, Watch
from queue_workflows.errors import (
    AccessRefused,
    DatabaseUnreachable,
    MigrationBlocked,
    MigrationRefused,
    QwfError,
    ReadOnlyServer,
    SchemaError,
)

# Where new tables would go, whether this role may put them there, and which tables belong to others.
RIGHTS: Final = sa.text("""
    SELECT current_user AS role, current_schema() AS schema,
      coalesce(has_schema_privilege(current_schema(), 'CREATE'), false) AS may_create,
      (SELECT array_agg(format('%s (owner %s)', c.oid::regclass, c.relowner::regrole) ORDER BY c.relname)
       FROM pg_class c
       WHERE c.oid IN (SELECT to_regclass(quote_ident(name)) FROM unnest(CAST(:tables AS text[])) name)
         AND NOT pg_has_role(c.relowner, 'USAGE')) AS foreign_tables
""")

# Of a revision that builds indexes beside writers, which is no transaction.
LEFT: Final = (
    "what it has done stands, and until then an index may be invalid: that answers nothing, but is written to"
)


def check_rights(connection: sa.Connection, tables: list[str]) -> None:
    """Name the missing right before the first revision fails on it half-way."""
    row = connection.execute(RIGHTS, {"tables": tables}).one()
    connection.rollback()
    if row.schema is None:
        raise AccessRefused(
            f"role {row.role} has no schema to put tables in",
            advice="create the schema that search_path names, or grant USAGE on it",
        )
    if not row.may_create:
        raise AccessRefused(
            f"role {row.role} lacks the CREATE right on schema {row.schema}",
            advice=f"GRANT CREATE ON SCHEMA {row.schema} TO {row.role}, or migrate as the migrator role",
        )
    if row.foreign_tables:
        raise AccessRefused(
            f"role {row.role} does not own {', '.join(row.foreign_tables)}",
            advice="migrate as the owner, or make this role a member of it",
        )


@contextmanager
def translated(session: MigrationSession) -> Iterator[None]:
    """Turn a failed step into the one error that says what happened and what to do."""
    try:
        yield
    except sa.exc.DBAPIError as error:
        raise explain(error.orig, session.watch, session.lock_timeout_s) from error
    except psycopg.Error as error:
        raise explain(error, session.watch, session.lock_timeout_s) from error
    except CommandError as error:
        raise MigrationRefused(str(error)) from error


def explain(cause: BaseException | None, watch: Watch, lock_timeout_s: float) -> QwfError:
    """The error for what the server said during a step."""
    where = watch.doing or "the migration"
    blocked = _blocked(cause, where, watch, lock_timeout_s)
    if blocked is not None:
        return blocked
    if isinstance(cause, psycopg.errors.InsufficientPrivilege):
        return AccessRefused(f"{where}: {_message(cause)}", advice="migrate as the owner of these tables")
    if isinstance(cause, psycopg.errors.ReadOnlySqlTransaction):
        return ReadOnlyServer(f"{where}: {_message(cause)}", advice="migrate on the primary server")
    if isinstance(cause, psycopg.OperationalError) and (cause.sqlstate or "57P")[:3] in ("57P", "080"):
        return DatabaseUnreachable(
            f"the connection was lost in {where}, which is {watch.fate}", advice=_again(watch)
        )
    stands = "the revisions before it stand; `qwf db current` shows where, --debug the whole error"
    return SchemaError(
        f"{where} failed and was {watch.fate}: {_message(cause)}",
        advice=f"{stands}. {LEFT.capitalize()}" if watch.is_in_parts else stands,
    )


def _again(watch: Watch, more: str = "") -> str:
    """To run it again is enough, also where something is left that looks wrong."""
    return f"run it again{more}" + (f"; {LEFT}" if watch.is_in_parts else "")


def _blocked(
    cause: BaseException | None, where: str, watch: Watch, lock_timeout_s: float
) -> MigrationBlocked | None:
    """The error for a step that others kept from ending; None if it is something else."""
    if isinstance(cause, psycopg.errors.LockNotAvailable):
        return MigrationBlocked(
            f"{where} waited {lock_timeout_s:g} s for a lock held by {watch.describe()}; it was {watch.fate}",
            advice=_again(watch, " when that session is done, or with a longer --lock-timeout"),
        )
    if isinstance(cause, psycopg.errors.DeadlockDetected):
        return MigrationBlocked(
            f"{where} was in a deadlock with {watch.describe()}; it was {watch.fate}", advice=_again(watch)
        )
    if isinstance(cause, psycopg.errors.QueryCanceled):
        return MigrationBlocked(
            f"{where} was ended by the server and {watch.fate}: {_message(cause)}",
            advice=_again(
                watch, "; only the revision itself sets a statement_timeout, else it was pg_cancel_backend"
            ),
        )
    return None


def _message(cause: BaseException | None) -> str:
    primary = cause.diag.message_primary if isinstance(cause, psycopg.Error) else None
    return primary or str(cause).strip().splitlines()[0]
