"""The demo's own application: orders in a table of its own, and the task that their jobs run.

The table lies in a schema of its own, so that no host app's autogenerate ever meets it, and so that one
statement removes it.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

SCHEMA: Final = "qwf_demo"
QUEUE: Final = "demo"
TASK: Final = "describe_order"

# The lock keeps two demos that start together from racing for the same CREATE; it ends with the transaction.
PREPARE: Final = (
    "SELECT pg_advisory_xact_lock(hashtext('qwf_demo'))",
    "CREATE SCHEMA IF NOT EXISTS qwf_demo",
    "CREATE SEQUENCE IF NOT EXISTS qwf_demo.batch",
    """
    CREATE TABLE IF NOT EXISTS qwf_demo.orders (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        batch bigint NOT NULL,
        text text NOT NULL
    )
    """,
)
NEXT_BATCH: Final = "SELECT nextval('qwf_demo.batch')"

# What is ordered, and the priority of its job: 9 is claimed first.
CATALOGUE: Final = (
    ("a catalogue of every lighthouse between Brest and Bergen", 5),
    ("three postcards, second class", 1),
    ("the night train's timetable, and quickly", 9),
    ("a map of the canals, with the locks", 5),
    ("spare parts for an orrery", 5),
    ("a pardon for the cook", 9),
)
ROLLED_BACK: Final = CATALOGUE[:3]


class Base(DeclarativeBase):
    """Not the engine's: this is a host app's."""


class Order(Base):
    """A row of the application, stored in the transaction that enqueues its job."""

    __tablename__ = "orders"
    __table_args__ = {"schema": SCHEMA}

    id: Mapped[int] = mapped_column(sa.BigInteger, sa.Identity(always=True), primary_key=True)
    batch: Mapped[int] = mapped_column(sa.BigInteger)
    text: Mapped[str]


def prepare(connection: sa.Connection) -> None:
    """Make the demo's table where it is missing."""
    for statement in PREPARE:
        connection.execute(sa.text(statement))


def next_batch(connection: sa.Connection) -> int:
    """A number that no other run of the demo has, even one at the same time."""
    number: int = connection.execute(sa.text(NEXT_BATCH)).scalar_one()
    return number


def describe_order(_reason: str, args: dict[str, Any]) -> dict[str, Any]:
    """The task: what a worker does for one order. It may run twice, and nothing comes of that."""
    text = str(args["text"])
    return {"words": len(text.split()), "sha256": hashlib.sha256(text.encode()).hexdigest()[:12]}
