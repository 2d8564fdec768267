"""The shop's own Alembic environment, from `alembic init`; two lines of it are about the engine."""

from __future__ import annotations

from alembic import context
from shop.database import Base, engine

from queue_workflows.db import include_name  # qwf

target_metadata = Base.metadata


def run_migrations_offline() -> None:
    """`alembic upgrade head --sql`: no database is asked, so there is nothing to leave out."""
    context.configure(dialect_name="postgresql", target_metadata=target_metadata, literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()


def run_migrations_online() -> None:
    """On a connection of the shop's engine."""
    with engine.connect() as connection:
        context.configure(
            connection=connection,
            target_metadata=target_metadata,
            include_name=include_name,  # qwf
        )
        with context.begin_transaction():
            context.run_migrations()


if context.is_offline_mode():
    run_migrations_offline()
else:
    run_migrations_online()
