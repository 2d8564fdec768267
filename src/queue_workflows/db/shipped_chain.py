"""The engine's chain as it ships, and whether a database is at its head: told without Alembic.

To load Alembic and every revision is a quarter of what a process costs to start, and all but the first start
after a deploy finds the schema at the head. A caller told that it is not asks `db.migrations`, which
knows why.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql

from queue_workflows.config import ENGINE_VERSION_TABLE
from queue_workflows.errors import ConfigurationError

# `recorded`: the version table names the head and nothing else. `there`: the tables that stand in the search
# path, by the statement's own snapshot, so that both are of one moment.
AT_HEAD: Final = sql.SQL("""
WITH recorded AS (
    SELECT array_agg(version_num::text) = ARRAY[%(head)s]::text[] AS is_head FROM {version_table}
),
there AS (
    SELECT count(DISTINCT c.relname) AS tables FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = ANY (current_schemas(false)) AND c.relname = ANY (%(tables)s::text[])
)
SELECT recorded.is_head AND there.tables = cardinality(%(tables)s::text[]) FROM recorded, there
""").format(version_table=sql.Identifier(ENGINE_VERSION_TABLE))


def chain_directory() -> Path:
    """Where `env.py` and the engine's revisions lie: inside the package, or beside `src` in a checkout."""
    package = Path(__file__).absolute().parents[1]
    for candidate in (package / "_alembic", package.parent.parent / "alembic"):
        if (candidate / "env.py").is_file():
            return candidate
    raise ConfigurationError(
        f"the migration chain is missing beside {package}", advice="reinstall queue-workflows from its wheel"
    )


def engine_versions() -> Path:
    """Where the engine's revisions lie, each in a file with a name that begins with its id."""
    return chain_directory() / "engine" / "versions"


def head() -> str:
    """The engine's last revision, by the names of the files."""
    return max((file.name.partition("_")[0] for file in engine_versions().glob("[0-9]*_*.py")), default="")


def is_at_head(connection: psycopg.Connection[Any], tables: Collection[str]) -> bool:
    """Whether the engine's schema is exactly what this code ships, with all these tables of it.

    On a connection in autocommit; False as well where it cannot be told.
    """
    try:
        found = connection.execute(AT_HEAD, {"head": head(), "tables": sorted(tables)}).fetchone()
    except psycopg.Error:
        return False
    return found == (True,)
