"""The shop's tables, and the session that each request has."""

from __future__ import annotations

import os

from flask import Flask
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, scoped_session, sessionmaker

engine = create_engine(os.environ["DATABASE_URL"])
session = scoped_session(sessionmaker(engine))


class Base(DeclarativeBase):
    """The shop's own metadata."""


class Order(Base):
    """What somebody bought."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    email: Mapped[str]
    receipt: Mapped[str | None]


def init_app(app: Flask) -> None:
    """What a request, or a job, has not committed by its end is rolled back."""

    @app.teardown_appcontext
    def close(_error: BaseException | None) -> None:
        session.remove()
