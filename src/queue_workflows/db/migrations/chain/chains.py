"""The two migration chains as data: where they lie and which version table is theirs.

`env.py` serves both and learns which one it runs from `config.attributes["chain"]`. The engine's metadata
is not known here: models stand above db, so `env.py` brings it.
"""

from __future__ import annotations

import io
import threading
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

import sqlalchemy as sa
from alembic.config import Config

from queue_workflows.config import ENGINE_VERSION_TABLE, HostMigrations, current_config
from queue_workflows.db.shipped_chain import chain_directory, engine_versions
from queue_workflows.errors import ConfigurationError

ChainName = Literal["engine", "host"]
IncludeName = Callable[[str | None, str, Any], bool]

LEGACY_LEDGER: Final = "queue_schema_version_legacy"

# Alembic keeps the environment and the operations that are running in module globals.
ENVIRONMENT: Final = threading.RLock()


@dataclass(frozen=True)
class Chain:
    """One line of revisions and the version table that remembers how far a database has come along it."""

    name: ChainName
    versions: Path
    version_table: str
    metadata: sa.MetaData | None = None
    include_name: IncludeName | None = None


def in_checkout() -> bool:
    """Only a checkout may grow engine revisions; a wheel's are frozen."""
    return chain_directory().name != "_alembic"


def engine_chain() -> Chain:
    """The engine's own chain."""
    return Chain("engine", engine_versions(), ENGINE_VERSION_TABLE)


def host_chain(
    host: HostMigrations | None = None,
    *,
    migrations_dir: Path | str | None = None,
    version_table: str | None = None,
) -> Chain | None:
    """The host app's chain: the one given, else the one of `configure(host_migrations=…)`, else none."""
    if (migrations_dir is None) != (version_table is None):
        raise ConfigurationError(
            "migrations_dir and version_table belong together", advice="give both of them, or neither"
        )
    metadata: sa.MetaData | None = None
    if migrations_dir is not None and version_table is not None:
        host = HostMigrations(migrations_dir, version_table, sa.MetaData())
    else:
        host = host or current_config().host_migrations
        metadata = host.metadata if host else None
    if host is None:
        return None
    return Chain("host", host.directory, host.version_table, metadata, host.include_name)


def select_chains(name: str, host: Chain | None) -> list[Chain]:
    """The chains that `engine`, `host` or `all` means, in upgrade order: what is referred to comes first."""
    if name == "all":
        return [engine_chain(), *([host] if host else [])]
    if name == "engine":
        return [engine_chain()]
    if name == "host":
        if host is None:
            raise ConfigurationError(
                "no host chain is configured",
                advice="call configure(host_migrations=HostMigrations(…)) in the module named by --app",
            )
        return [host]
    raise ConfigurationError(
        f"there is no chain {name!r}", advice=f"use one of {', '.join(get_args(ChainName))}, all"
    )


def alembic_config(chain: Chain, **attributes: Any) -> Config:
    """A configuration without a file: chain and connection travel as attributes, never as DSN text."""
    config = Config(stdout=io.StringIO(), cmd_opts=Namespace(quiet=True))
    config.set_main_option("script_location", _literal(chain_directory()))
    config.set_main_option("version_locations", _literal(chain.versions))
    config.set_main_option("path_separator", "newline")
    config.set_main_option("file_template", "%%(rev)s_%%(slug)s")
    config.attributes.update(chain=chain, **attributes)
    return config


def _literal(path: Path) -> str:
    """The configuration parser would take a percent sign in a path for an interpolation."""
    return str(path).replace("%", "%%")
