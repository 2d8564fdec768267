"""The two migration chains as data: where they lie, which version table is theirs, what each may see.

`env.py` serves both and learns which one it runs from `config.attributes["chain"]`. The engine's metadata
is not known here: models stand above db, so `env.py` brings it.
"""

from __future__ import annotations

import io
import re
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, get_args

import sqlalchemy as sa
from alembic.config import Config
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import Script, ScriptDirectory
from alembic.util import CommandError

from queue_workflows.config import ENGINE_VERSION_TABLE, HostMigrations, current_config
from queue_workflows.errors import ConfigurationError, UnknownRevision

ChainName = Literal["engine", "host"]
IncludeName = Callable[[str | None, str, Any], bool]

LEGACY_LEDGER: Final = "queue_schema_version_legacy"

CREATED_TABLE: Final = re.compile(r'^\s*CREATE TABLE (?:IF NOT EXISTS )?"?(\w+)', re.MULTILINE)
DROPPED_TABLE: Final = re.compile(r'^\s*DROP TABLE (?:IF EXISTS )?"?(\w+)', re.MULTILINE)


@dataclass(frozen=True)
class Chain:
    """One line of revisions and the version table that remembers how far a database has come along it."""

    name: ChainName
    versions: Path
    version_table: str
    metadata: sa.MetaData | None = None
    include_name: IncludeName | None = None


def chain_directory() -> Path:
    """Where `env.py` and the engine's revisions lie: inside the package, or beside `src` in a checkout."""
    package = Path(__file__).absolute().parents[2]
    for candidate in (package / "_alembic", package.parent.parent / "alembic"):
        if (candidate / "env.py").is_file():
            return candidate
    raise ConfigurationError(
        f"the migration chain is missing beside {package}", advice="reinstall queue-workflows from its wheel"
    )


def in_checkout() -> bool:
    """Only a checkout may grow engine revisions; a wheel's are frozen."""
    return chain_directory().name != "_alembic"


def engine_chain() -> Chain:
    """The engine's own chain."""
    return Chain("engine", chain_directory() / "engine" / "versions", ENGINE_VERSION_TABLE)


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


def load_script(chain: Chain) -> ScriptDirectory:
    """The chain's revisions, read from disk; two files with one id are refused, for one would be lost."""
    script = ScriptDirectory.from_config(alembic_config(chain))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=r"Revision .* is present more than once")
        try:
            _ = script.revision_map.heads
        except UserWarning as twice:
            raise ConfigurationError(
                f"{chain.versions}: {twice}",
                advice="give one of the two files another `revision`, and let it follow the other",
            ) from None
    return script


def newest(script: ScriptDirectory) -> str:
    """The head as people name it; a host chain may have several."""
    return ", ".join(script.get_heads()) or "nothing"


def subject(revision: Script) -> str:
    """A revision's one-line subject, without the full stop."""
    lines = (revision.doc or "").strip().splitlines()
    return lines[0].rstrip(".") if lines else revision.revision


def known(script: ScriptDirectory, revision: str) -> bool:
    """Whether this code has a revision of exactly that name."""
    try:
        found = script.get_revision(revision)
    except CommandError:
        return False
    return found is not None and found.revision == revision


def find_revision(script: ScriptDirectory, name: int | str) -> str:
    """The full id behind a number, an id or its unambiguous beginning."""
    text = f"{name:04d}" if isinstance(name, int) else name
    try:
        found = script.get_revision(text) if text else None
    except CommandError:
        found = None
    if found is None:
        raise UnknownRevision(text, newest(script))
    return found.revision


def check_target(script: ScriptDirectory, text: str) -> None:
    """Refuse a misspelt revision before anything is opened; relative ones are Alembic's to judge."""
    if text in ("head", "heads", "base") or re.search(r"[+-]\d+$", text) or "@" in text:
        return
    find_revision(script, text)


def next_number(script: ScriptDirectory) -> str | None:
    """The next sequential id, or None for a chain that does not number its revisions."""
    ids = [revision.revision for revision in script.walk_revisions()]
    if not all(one.isdigit() for one in ids):
        return None
    return f"{max(map(int, ids), default=0) + 1:04d}"


@cache
def engine_tables() -> frozenset[str]:
    """Every table that a revision of the engine creates, whatever became of it later."""
    revisions = reversed(list(load_script(engine_chain()).walk_revisions()))
    return frozenset(CREATED_TABLE.findall(_dry_sql(rev.module.upgrade for rev in revisions)))


def tables_dropped(revisions: Iterable[Script]) -> frozenset[str]:
    """The tables that these downgrades of the engine drop."""
    return frozenset(DROPPED_TABLE.findall(_dry_sql(rev.module.downgrade for rev in revisions)))


def _dry_sql(functions: Iterable[Callable[[], None]]) -> str:
    """What functions of our revisions would send: the truth about them, since they may write DDL by hand.

    A host's may ask the database something on their way, so they cannot be run like this.
    """
    buffer = io.StringIO()
    context = MigrationContext.configure(
        dialect_name="postgresql", opts={"as_sql": True, "literal_binds": True, "output_buffer": buffer}
    )
    with Operations.context(context):
        for function in functions:
            function()
    return buffer.getvalue()


@dataclass(frozen=True)
class Sight:
    """What one chain's autogenerate and check may look at; everything else does not exist for it."""

    chain: Chain
    engine_tables: frozenset[str]
    schemas: frozenset[str | None]

    def include_name(self, name: str | None, kind: str, parents: Any) -> bool:
        """Whether a thing met in the database belongs to the chain."""
        if kind == "schema":
            return name in self.schemas
        if kind == "table" and not self.owns_table(name, parents.get("schema_name")):
            return False
        return self.chain.include_name is None or self.chain.include_name(name, kind, parents)

    def include_object(self, thing: Any, name: str | None, kind: str, reflected: bool, _other: Any) -> bool:
        """Whether a thing of the metadata is the chain's: a host app may use our metadata for its tables."""
        return kind != "table" or reflected or self.owns_table(name, thing.schema)

    def owns_table(self, name: str | None, schema: str | None) -> bool:
        """Tables outside the default schema are never the engine's."""
        versions = {ENGINE_VERSION_TABLE, LEGACY_LEDGER, self.chain.version_table}
        ours = schema is None and name in self.engine_tables
        if self.chain.name == "engine":
            return ours
        return not ours and not (schema is None and name in versions)


def sight_of(chain: Chain, engine_metadata_tables: Iterable[str]) -> Sight:
    """The engine's tables: its models' and all that its revisions made, so that a dropped model shows up."""
    schemas = {table.schema for table in chain.metadata.tables.values()} if chain.metadata else set()
    return Sight(chain, engine_tables() | frozenset(engine_metadata_tables), frozenset({None, *schemas}))
