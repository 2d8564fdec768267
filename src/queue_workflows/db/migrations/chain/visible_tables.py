"""What one chain's autogenerate and check may look at, so that neither touches the other's tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from queue_workflows.config import ENGINE_VERSION_TABLE
from queue_workflows.db.migrations.chain.chains import LEGACY_LEDGER, Chain
from queue_workflows.db.migrations.chain.tables import engine_tables, is_month_of_history

# Columns of the engine's tables that no code reads or writes any more. They stay for a release, as code of
# the version before lists them; a revision of the next one drops them.
LEFT_BEHIND: Final = frozenset({("workflow_runs", "current_step")})


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
        """Whether a thing is the chain's: a host app may use our metadata for its tables.

        What was left behind in one of ours is nothing to compare.
        """
        if kind == "column" and reflected and self.chain.name == "engine":
            return (thing.table.name, name) not in LEFT_BEHIND
        return kind != "table" or reflected or self.owns_table(name, thing.schema)

    def owns_table(self, name: str | None, schema: str | None) -> bool:
        """Tables outside the default schema are never the engine's; months of its history nobody compares."""
        if schema is None and is_month_of_history(name):
            return False
        versions = {ENGINE_VERSION_TABLE, LEGACY_LEDGER, self.chain.version_table}
        ours = schema is None and name in self.engine_tables
        if self.chain.name == "engine":
            return ours
        return not ours and not (schema is None and name in versions)


def sight_of(chain: Chain, engine_metadata_tables: Iterable[str]) -> Sight:
    """The engine's tables: its models' and all that its revisions made, so that a dropped model shows up."""
    schemas = {table.schema for table in chain.metadata.tables.values()} if chain.metadata else set()
    return Sight(chain, engine_tables() | frozenset(engine_metadata_tables), frozenset({None, *schemas}))
