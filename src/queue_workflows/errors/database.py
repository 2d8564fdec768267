"""What is wrong with a database, its schema, or what was asked of its migrations."""

from __future__ import annotations

from collections.abc import Sequence

from queue_workflows.errors.base import ConfigurationError, ExitCode, QwfError


class DatabaseError(QwfError):
    """Something about the database connection or server, rather than about a statement."""

    exit_code = ExitCode.UNREACHABLE


class DatabaseUnreachable(DatabaseError):
    """No server answers, or it stopped answering."""


class ReadOnlyServer(DatabaseError):
    """The server answers but takes no writes: a standby, or a read-only database."""


class AccessRefused(DatabaseError):
    """The server refuses this user, password, database or operation."""

    exit_code = ExitCode.CONFIGURATION


class UnsupportedServer(DatabaseError):
    """What answers is no Postgres, or one older than we support."""

    exit_code = ExitCode.CONFIGURATION


class OptionsRefused(UnsupportedServer):
    """A pooling proxy in between takes no startup options."""


class SessionsNotKept(DatabaseError):
    """A pooling proxy in between keeps no sessions, and what was asked for needs one."""

    exit_code = ExitCode.CONFIGURATION


class EmbeddedServerError(DatabaseError):
    """The embedded Postgres could not be prepared or started."""


class EmbeddedSetupError(EmbeddedServerError):
    """The embedded Postgres is not there, or cannot work with this directory, account or these programs."""

    exit_code = ExitCode.CONFIGURATION


class UnusableConnection(ConfigurationError):
    """A caller's connection that cannot be used.

    `kind` is its class, and `state` what is the matter with it: nothing, where it is no connection at all.
    """

    def __init__(self, kind: str, state: str, *, wanted: str, advice: str | None = None) -> None:
        link = " " if state.startswith(("in ", "on ", "to ")) else ", "
        article = "an" if kind[:1] in "aeiou" else "a"
        super().__init__(f"conn is {article} {kind}{link if state else ''}{state}; {wanted}", advice=advice)
        self.kind, self.state = kind, state


class FailedTransaction(UnusableConnection):
    """A caller's connection is in a transaction that has failed: the server does nothing in it."""

    def __init__(self, kind: str) -> None:
        super().__init__(
            kind,
            "in a failed transaction",
            wanted="an earlier statement of it was refused, and nothing can be done in it",
            advice="roll it back, or to a savepoint before that statement, and call again",
        )


class OtherDatabase(UnusableConnection):
    """A caller's connection is to another database than the configured one; both are named."""

    def __init__(self, kind: str, database: str, configured: Sequence[str]) -> None:
        names = " or ".join(repr(name) for name in configured)
        super().__init__(
            kind,
            f"to the database {database!r}",
            wanted=f"configured is {names}, where this application's workers look",
            advice="bring a connection to that one, or set QWF_DB_URL to this one, "
            "as a test suite with a database of its own does (`queue_workflows.testing.configured_database`)",
        )
        self.database, self.configured = database, tuple(configured)


class SchemaError(QwfError):
    """The database's schema and this code do not fit together."""

    exit_code = ExitCode.SCHEMA


class SchemaBehind(SchemaError):
    """The schema is older than the code needs, or absent; `chain` is the chain that it is about."""

    def __init__(
        self, current: str | None, needed: str, *, advice: str | None = None, chain: str = "engine"
    ) -> None:
        super().__init__(
            f"{_schema_of(chain)} is at {current or 'nothing'}, this needs {needed}",
            advice=advice or f"run `qwf db upgrade{'' if chain == 'engine' else f' --chain {chain}'}`",
        )
        self.current, self.needed, self.chain = current, needed, chain


class SchemaAhead(SchemaError):
    """The schema is at a revision that this code has never heard of."""

    def __init__(
        self, current: str, newest_known: str, *, advice: str | None = None, chain: str = "engine"
    ) -> None:
        super().__init__(
            f"{_schema_of(chain)} is at {current}, this code knows revisions up to {newest_known}",
            advice=advice
            or "install a newer queue-workflows, or downgrade the schema with the version that made it",
        )
        self.current, self.newest_known, self.chain = current, newest_known, chain


def _schema_of(chain: str) -> str:
    """The engine's schema is the one that people mean; another chain is named."""
    return "the database schema" if chain == "engine" else f"the schema of the {chain} chain"


class SchemaDrift(SchemaError):
    """The schema differs from what its revision says it is; `differences` lists how.

    `statements` would mend it, where they are known: for a person to read, and to run.
    """

    def __init__(
        self,
        message: str,
        differences: list[str],
        *,
        advice: str | None = None,
        statements: Sequence[str] = (),
    ) -> None:
        super().__init__(message, advice=advice)
        self.differences = differences
        self.statements = list(statements)


class MigrationRefused(SchemaError):
    """A migration that would harm something was not started."""


class HistoryRefused(ConfigurationError):
    """Foreign keys refer to ingest jobs, so that none may move to a history; `keys` says which."""

    def __init__(self, keys: Sequence[str], *, advice: str | None = None) -> None:
        super().__init__(
            f"foreign keys refer to ingest_jobs: {', '.join(keys)}; "
            "a job that moves would take along what refers to it",
            advice=advice or "drop them and keep the job's id in a plain column, or leave history as it is",
        )
        self.keys = list(keys)


class UnknownRevision(QwfError):
    """A revision was asked for that the chain does not have."""

    exit_code = ExitCode.USAGE

    def __init__(self, asked: str, newest_known: str, *, advice: str | None = None) -> None:
        super().__init__(
            f"there is no revision {asked!r}; the newest is {newest_known}",
            advice=advice or "`qwf db history` lists them",
        )
        self.asked, self.newest_known = asked, newest_known


class RevisionOutOfReach(QwfError):
    """A revision that is there, and to which no upgrade or downgrade leads from where the chain stands."""

    exit_code = ExitCode.USAGE

    def __init__(self, asked: str, direction: str, start: str, *, advice: str | None = None) -> None:
        super().__init__(
            f"{'an' if direction == 'upgrade' else 'a'} {direction} from {start} does not lead to {asked!r}",
            advice=advice or "`qwf db history` lists the revisions, oldest first",
        )
        self.asked, self.direction, self.start = asked, direction, start


class MigrationBlocked(QwfError):
    """A lock that a migration needs was not to be had in time, or a statement of it took too long."""

    exit_code = ExitCode.DEADLINE
