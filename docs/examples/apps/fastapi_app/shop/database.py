"""The shop's tables, and the transaction that each request has."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

engine = create_async_engine(os.environ["DATABASE_URL"])
sessions = async_sessionmaker(engine, expire_on_commit=False)


class Base(DeclarativeBase):
    """The shop's own metadata."""


class Order(Base):
    """What somebody bought."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    email: Mapped[str]
    receipt: Mapped[str | None]


async def transaction() -> AsyncIterator[AsyncSession]:
    """One transaction a request: committed at its end, rolled back if it raises."""
    async with sessions.begin() as session:
        yield session


# `scope="function"` commits before the answer is sent: an order can be read once its answer is there.
Transaction = Annotated[AsyncSession, Depends(transaction, scope="function")]
