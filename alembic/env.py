"""One environment for both chains.

`queue_workflows.db.migrations` hands over the chain and the connection in `config.attributes`. Run by hand (`alembic …`
in a checkout) it serves the engine's chain on the database that the settings name.
"""

from __future__ import annotations

from logging.config import fileConfig
from typing import Any

from alembic import context

from queue_workflows.db.migrations.chain.chains import Chain, engine_chain
from queue_workflows.db.migrations.chain.visible_tables import sight_of
from queue_workflows.db.migrations.session import migration_session
from queue_workflows.models import Base


def mapped_tables() -> set[str]:
    """Our own mapped tables only: a host app may map its tables on our base, and they are still its own."""
    ours = (m for m in Base.registry.mappers if m.class_.__module__.startswith("queue_workflows.models"))
    return {table.name for mapper in ours for table in mapper.tables}  # type: ignore[attr-defined]


def drop_empty(_context: Any, _revision: Any, directives: list[Any]) -> None:
    """Autogenerate without a difference writes no file."""
    config = context.config
    writing = config.attributes.get("autogenerate") or getattr(config.cmd_opts, "autogenerate", False)
    if writing and directives and directives[0].upgrade_ops.is_empty():
        directives.clear()


def run(chain: Chain, **how: Any) -> None:
    sight = sight_of(chain, mapped_tables())
    context.configure(
        target_metadata=chain.metadata if chain.name == "host" else Base.metadata,
        version_table=chain.version_table,
        include_schemas=len(sight.schemas) > 1,
        include_name=sight.include_name,
        include_object=sight.include_object,
        compare_type=True,
        compare_server_default=True,
        transaction_per_migration=True,
        process_revision_directives=drop_empty,
        **how,
    )
    with context.begin_transaction():
        context.run_migrations()


def main() -> None:
    attributes = context.config.attributes
    chain = attributes.get("chain")
    if chain is None and context.config.config_file_name is not None:
        # Only by hand: a host app that calls us keeps the logging it has set up.
        fileConfig(context.config.config_file_name, disable_existing_loggers=False)
    if context.is_offline_mode():
        # Named parameters: a format style would double every percent sign of the script.
        run(
            chain or engine_chain(),
            dialect_name="postgresql",
            dialect_opts={"paramstyle": "named"},
            literal_binds=True,
        )
    elif "connection" in attributes:
        run(chain or engine_chain(), connection=attributes["connection"])
    else:
        with migration_session() as session:
            run(engine_chain(), connection=session.connection)


main()
