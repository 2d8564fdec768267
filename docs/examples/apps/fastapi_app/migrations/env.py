"""The shop's own Alembic environment, from `alembic init -t async`; two lines of it are about the engine."""

from __future__ import annotations

import asyncio

from alembic import context
from shop.database import Base, engine
from sqlalchemy import Connection

from queue_workflows.db import include_name  # qwf

target_metadata = Base.metadata


def run_migrations_offline() -> None:
    """`alembic upgrade head --sql`: no database is asked, so there is nothing to leave out."""
    context.configure(dialect_name="postgresql", target_metadata=target_metadata, literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()


def do_run_migrations(connection: Connection) -> None:
    """On a connection of the shop's engine."""
    context.configure(
        connection=connection,
        target_metadata=target_metadata,
        include_name=include_name,  # qwf
    )
    with context.begin_transaction():
        context.run_migrations()


async def run_migrations_online() -> None:
    """Connect, migrate, let go."""
    async with engine.connect() as connection:
        await connection.run_sync(do_run_migrations)
    await engine.dispose()


if context.is_offline_mode():
    run_migrations_offline()
else:
    asyncio.run(run_migrations_online())
